"""Rows out of logs: what an engine's own lines measured, as a case that the instruments can answer.

    cases_of(Path("vllm.log").read_text())      # [Case(...)]: model, versions, sizes; no path, no host, nobody's name

The lines are in log_lines.toml. A name of a model is taken where it is one of the hub; a path is somebody's own, and is
left out, so that the model must be named.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...catalog import hub
from ...catalog.devices import DEVICES, device
from ...catalog.errors import WorkbookError
from .cases import UNITS, Case
from .engine_runs import NO_CARD

_LINES = Path(__file__).parent / "log_lines.toml"
WHOLE = ("context", "tensor", "pipeline", "max_seqs", "prefill_tokens", "users", "tokens")
DECIMAL = ("share", "total_gib")
QUANTIZED = {"fp8": "fp8-e4m3"}  # while it is loaded; every other word is the checkpoint's own format
CACHES = {"fp8": "fp8-e4m3", "fp8_e4m3": "fp8-e4m3", "fp8_e5m2": "fp8-e5m2", "f16": "fp16", "f32": "fp32"}


@dataclass(frozen=True)
class LogLine:
    """One pattern of log_lines.toml; `unit` is that of a figure, "" for what tells how the run was made."""

    of: str
    tells: str
    words: re.Pattern[str]
    log: str
    unit: str = ""
    sum: bool = False

    def read(self, text: str) -> str | float | None:
        """What the first such line says; of a figure in several buffers their sum. None where there is no line."""
        found = self.words.findall(text)
        if not found:
            return None
        return sum(map(float, found)) if self.sum else found[0].replace(",", "")


@cache
def lines() -> tuple[LogLine, ...]:
    """The table, in its order."""
    found = tomllib.loads(_LINES.read_text(encoding="utf-8"))["line"]
    return tuple(LogLine(**{**one, "words": re.compile(one["words"])}) for one in found)


def cases_of(text: str, model: str | None = None, gpu: str | None = None) -> list[Case]:
    """One case for each engine whose figures are in `text`. WorkbookError where there is none, or no model is named."""
    found = [case for engine in dict.fromkeys(line.of for line in lines()) if (case := _case(text, engine, model, gpu))]
    if not found:
        what = "no line of vLLM, SGLang, llama.cpp or PyTorch with a size in it"
        expected = "the log of a start, as in `vllm serve MODEL 2>&1 | tee vllm.log`"
        raise WorkbookError(what, expected, "give a log that begins where the engine starts")
    return found


def as_entry(case: Case) -> dict[str, Any]:
    """As `user_cases.read` takes it from a file."""
    fields = {"name": case.name, "device": case.device, "engine": dict(case.setup), "figures": dict(case.figures)}
    return {**fields, "unit": case.unit, "source": case.source}


def _case(text: str, engine: str, model: str | None, gpu: str | None) -> Case | None:
    read = {line: line.read(text) for line in lines() if line.of == engine}
    told = {line.tells: value for line, value in read.items() if value is not None and not line.unit}
    figures = {
        line.tells: float(value) * UNITS[line.unit] / 2**30
        for line, value in read.items()
        if value is not None and line.unit
    }
    if not any(figures.values()):
        return None
    setup = {"engine": engine, **_setup(told, engine, model)}
    if engine != "torch" and "model" not in setup:
        what = f"the log of {engine} names no model of the hub"
        raise WorkbookError(what, "--model with a name or a config.json", "add --model: a path in a log is not taken")
    name = " ".join((engine, str(setup.get("version", "")), str(setup.get("model", "")))).replace("  ", " ").strip()
    kept = {quantity: figure for quantity, figure in figures.items() if figure}
    return Case(name, "engine", _card(text, gpu), setup, kept, "GiB", "a log of one's own")


def _setup(told: Mapping[str, Any], engine: str, model: str | None) -> dict[str, Any]:
    """The fields of a launch that the log tells, each of its own type."""
    setup: dict[str, Any] = {key: int(told[key]) for key in WHOLE if key in told}
    setup |= {key: float(told[key]) for key in DECIMAL if key in told}
    named = model or (told["model"] if hub.is_hub_name(str(told.get("model", ""))) else None)
    if named and engine != "torch":
        setup["model"] = named
    if "version" in told:
        setup["version"] = told["version"]
    plain = "fp32" if told.get("dtype") == "float32" else None
    if weights := QUANTIZED.get(str(told.get("quantization")), plain):
        setup["weights"] = weights
    if kv := CACHES.get(str(told.get("kv")), plain):
        setup["kv"] = kv
    if engine == "llama.cpp" and "users" in setup:  # which share the context
        setup["context"] = setup.get("context", 0) // setup["users"] or 1
    return setup


def _card(text: str, gpu: str | None) -> str:
    """The catalogue's name of the card that was named, or whose name PyTorch has in the log."""
    if gpu is not None:
        return device(gpu).name
    return next((name for name in DEVICES if any(told in text for told in device(name).cuda_names)), NO_CARD)
