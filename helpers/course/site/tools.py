"""The front page, the explained error, the console, and the licences of what the site serves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import __version__
from ...catalog.train_setup import TrainSetup
from ...lesson.calculators import training_answer
from ...lesson.calculators.from_address import OFFERED
from ...lesson.explained import explained_as_json
from .book import png_size
from .calculators import live
from .packages import pins
from .pages import Page

EXAMPLES = Path(__file__).parent / "examples.json"  # messages in the words that PyTorch and engines print
LINE = "estimate train --model llama-2-7b --gpu h100-80gb"
TRIES = (
    LINE,
    f"{LINE} --optimizer adamw-8bit --checkpointing full --fit",
    "estimate kv llama-3-8b --users 64 --context 8192 --gpu h100-80gb",
    "estimate zero llama-2-70b --precision bf16 --checkpointing full --zero 3 --ranks 8 --gpu a100-80gb",
    "plan train llama-3.1-8b --tokens 1e9 --cards h100=8 --deadline 24h",
    "plan serve llama-3.1-70b --users 200 --context 8192 --latency 50ms --cards h100=8,h200=4",
    "estimate op --gpu h100-80gb --op linear --tokens 1 --width 4096 --outputs 14336",
    "number 1e-8 --format fp16",
    "estimate --help",
)
DOORS = (
    ("explain-oom.html", "Explain an error", "From a pasted out-of-memory error to its cause and the cheapest change."),
    ("console.html", "Console", "Every flag of workbook estimate, in your browser."),
    ("book/index.html", "The book", "The chapters as they were executed, with a search over all of them."),
    ("claims.html", "Claims on trial", "What articles say, and what came out when it was computed."),
    ("accuracy.html", "Accuracy", "Predictions beside published measurements, row by row, errors included."),
)
SERVED = (
    ("pyodide", "Mozilla Public License 2.0", "https://github.com/pyodide/pyodide"),
    ("mathjax", "Apache License 2.0", "https://github.com/mathjax/MathJax"),
    ("minisearch", "MIT License", "https://github.com/lucaong/minisearch"),
)
PYTHON = ("CPython's standard library, in Pyodide", "", "PSF License", "https://docs.python.org/3/license.html")


def tool_pages(root: Path) -> Iterator[Page]:
    yield _front(root)
    yield _explain()
    yield _console()
    yield _licences(root)


def _front(root: Path) -> Page:
    width, height = png_size((root / "notebooks" / "one_step.png").read_bytes())
    picture = {"width": width, "height": height, "alt": _alt(root)}
    values = {**live("can_i_run"), "picture": picture, "doors": DOORS, "calculators": OFFERED}
    about = "Predict, measure and explain GPU memory: calculators, an out-of-memory explainer and a course"
    return Page("index.html", "The GPU Memory Workbook", "index", about, values, ("calculator.js", "explain.js"))


def _alt(root: Path) -> str:
    """The picture's words, as chapter 02 stores them beside it."""
    notebook = json.loads((root / "notebooks" / "02_where_training_memory_goes.ipynb").read_text(encoding="utf-8"))
    cell = next(cell for cell in notebook["cells"] if "readme-picture" in cell["metadata"].get("tags", ()))
    return str(next(o["metadata"]["image/png"]["alt"] for o in cell["outputs"] if "image/png" in o.get("data", {})))


def examples() -> list[dict[str, str]]:
    """Errors to try, each with a title and its text."""
    return list(json.loads(EXAMPLES.read_text(encoding="utf-8")))


def _explain() -> Page:
    shown = examples()
    explained = json.loads(explained_as_json(shown[0]["text"]))["html"]
    values = {"examples": shown, "explained": explained}
    about = "Paste a CUDA out-of-memory error and read its cause and the cheapest change; nothing is sent anywhere"
    return Page("explain-oom.html", "Explain an out-of-memory error", "explain-oom", about, values, ("explain.js",))


def _console() -> Page:
    """With the answer to its first line, which the command line prints as `training_answer` says it."""
    printed = str(training_answer(TrainSetup("llama-2-7b"), "h100-80gb"))
    values: dict[str, Any] = {"line": LINE, "tries": TRIES, "printed": printed}
    about = "The workbook's command line in your browser: memory and time of training and serving, in closed form"
    return Page("console.html", "Console", "console", about, values, ("console.js",))


def _licences(root: Path) -> Page:
    known = pins(root)
    parts = [(name, known[name].version, terms, address) for name, terms, address in SERVED]
    licence = (root / "LICENSE").read_text(encoding="utf-8")
    values = {"licence": licence, "parts": [*parts, PYTHON]}
    about = f"Licences of the GPU Memory Workbook {__version__} and of what its site serves"
    return Page("licences.html", "Licences", "licences", about, values)
