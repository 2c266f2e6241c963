"""The README's promises: its picture is the chapter's, its commands run, its links lead somewhere."""

from __future__ import annotations

import base64
import re
import shlex
from pathlib import Path

import nbformat
import pytest

from helpers.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("line", re.findall(r"^workbook estimate .*$", README, re.MULTILINE))
def test_estimates_run(line, capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "vocab_size": 100}'
    )
    assert main(shlex.split(line.replace("./config.json", str(config)))[1:]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("command", re.findall(r"`?make ([a-z-]+)", README))
def test_make_targets_exist(command):
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
