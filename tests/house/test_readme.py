"""The README's promises: its picture is the chapter's, its commands run, its links lead somewhere."""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path

import nbformat
import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.adapters import Adapter
from helpers.catalog.serve_setup import ServeSetup
from helpers.cli import main
from helpers.memory import budget
from tests.catalog.gguf_files import gguf, llama, llama_tensors

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = README.replace("\\\n", "") + (ROOT / "docs/commands.md").read_text(encoding="utf-8")
CHAPTER = ROOT / "notebooks" / "02_where_training_memory_goes.ipynb"
PICTURE = ROOT / "notebooks" / "one_step.png"


def stored_picture() -> bytes:
    """The PNG of the chapter's cell tagged readme-picture."""
    cells = nbformat.read(CHAPTER, as_version=4).cells
    cell = next(cell for cell in cells if "readme-picture" in cell.metadata.get("tags", ()))
    return base64.b64decode(next(o.data["image/png"] for o in cell.outputs if "image/png" in o.get("data", {})))


def test_the_picture_is_the_chapters():
    """Fails once and repairs: the picture is a copy, made by this test, of what the build stored."""
    picture = stored_picture()
    if not PICTURE.exists() or PICTURE.read_bytes() != picture:
        PICTURE.write_bytes(picture)
        pytest.fail("notebooks/one_step.png was not the chapter's picture; written anew, commit it")


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https:)([^)#]+)\)", README))))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()


def test_every_chapter_is_in_the_table():
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        assert f"(notebooks/{path.name})" in README
        title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0].partition("·")[2].strip()
        assert f"[{title}]" in README


@pytest.mark.parametrize("line", re.findall(r"^workbook estimate .*$", COMMANDS, re.MULTILINE))
def test_estimates_run(line, capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "vocab_size": 100}'
    )
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(gguf(llama(), llama_tensors()))
    line = line.replace("./config.json", str(config)).replace("./model-Q4_K_M.gguf", str(file))
    assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", re.findall(r"`?make ([a-z-]+)", README))
def test_make_targets_exist(command):
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


STEP = {"optimizer": "adamw-fused", "sequence": 2048, "checkpointing": "full"}
SERVED = {"users": 8, "context": 8192}
MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-32b", "llama-3.1-70b")
LORA = Adapter("lora", rank=16, targets="all-linear")
QLORA = Adapter("lora", rank=16, targets="all-linear", base="nf4-dq")
ANSWERS = {
    "serve 8 users with 8,192 tokens each, BF16": lambda name: budget.serve(ServeSetup(name, **SERVED), "h100"),
    "the same with weights in 4 bits (AWQ)": lambda name: budget.serve(
        ServeSetup(name, weights="awq-int4", **SERVED), "h100"
    ),
    "fine-tune by QLoRA, NF4": lambda name: budget.train(
        TrainSetup(name, precision="autocast-bf16", adapter=QLORA, **STEP), "h100"
    ),
    "fine-tune by LoRA, BF16": lambda name: budget.train(
        TrainSetup(name, precision="bf16", adapter=LORA, **STEP), "h100"
    ),
    "train every weight, AdamW under autocast": lambda name: budget.train(
        TrainSetup(name, precision="autocast-bf16", **STEP), "h100"
    ),
}


@pytest.mark.parametrize("row", ANSWERS)
def test_whether_it_fits_is_what_the_closed_form_says(row):
    cells = re.search(rf"^\| {re.escape(row)} \|(.+)\|$", README, re.MULTILINE)[1].split("|")
    predicted = [f"{ANSWERS[row](name).peak_bytes / 2**30:,.1f}" for name in MODELS]
    assert [cell.strip() for cell in cells] == predicted


@pytest.mark.parametrize("anchor", re.findall(r"\]\(#([^)]+)\)", README))
def test_anchors_lead_to_a_heading(anchor):
    headings = {
        re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    assert anchor in headings
