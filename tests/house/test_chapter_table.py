"""Chapter 00's table says of every chapter and lab what their own headers say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.course import notebook as nb

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "notebooks" / "00_start_here.ipynb"
FOLD = "<details><summary>All chapters, with their labs and what they need</summary>\n\n{}\n</details>"
HEAD = "| chapter | time | its lab | the chapter needs |\n|---|---|---|---|\n"


def header(path: Path) -> tuple[str, str, str]:
    """Number and title of a notebook, its minutes, and what it needs."""
    text = nb.read(path).cells[0].source
    title = text.splitlines()[0].removeprefix("# ").strip()
    cells = re.search(r"\n\| time \|.*\n\|[-|]+\n\|(.+)\|", text)[1].split("|")
    return title, re.match(r" *(\d+ minutes)", cells[0])[1], cells[-1].strip()


def row(path: Path) -> str:
    title, minutes, needs = header(path)
    lab = ROOT / "labs" / path.name
    practice = f"[Lab {path.name[:2]}](../labs/{lab.name}), {header(lab)[1]}" if lab.exists() else "none"
    chapter = f"**{title}**" if path == START else f"[{title}]({path.name})"
    return f"| {chapter} | {minutes} | {practice} | {needs} |"


def table() -> str:
    rows = map(row, sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")))
    return FOLD.format(HEAD + "\n".join(rows))


def test_the_table_is_what_the_headers_say():
    """Fails once and repairs: the table is written by this test."""
    start = nb.read(START)
    cell = next(cell for cell in start.cells if HEAD in cell.source)
    if cell.source != table():
        cell.source = table()
        nb.write(START, start)
        pytest.fail("chapter 00's table was not what the headers say; written anew, commit it")
