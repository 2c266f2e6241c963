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


README = (ROOT / "README.md").read_text(encoding="utf-8")


def chapters(text: str) -> set[int]:
    """The chapters that a text names, by number, in a link, or in a range.

    >>> sorted(chapters("00, [02](02_b.ipynb) and [05](05_c.ipynb), and on to [07](07_d.ipynb)"))
    [0, 2, 5, 6, 7]
    """
    plain = re.sub(r"\[(\d\d)\]\([^)]*\)", r"\1", text)
    ranges = re.findall(r"\b(\d\d)(?:, and on)? to (\d\d)\b", plain)
    named = {int(number) for number in re.findall(r"\b\d\d\b", plain)}
    return named.union(*(range(int(first), int(last) + 1) for first, last in ranges))


@pytest.mark.parametrize(
    ("door", "said"),
    [
        ("train on one card", r"on one card, read (.*?), on several"),
        ("train on several", r"on several (.*?) as well"),
        ("serve", r"to serve, (.*?)\."),
    ],
)
def test_readme_and_chapter_00_send_a_reader_to_the_same_chapters(door, said):
    (cell,) = [cell.source for cell in nb.read(START).cells if cell.id == "00-four-doors"]
    there = re.search(rf"(?m)^\| {door} \| (.*) \|$", cell)[1]
    assert chapters(there) | {0} == chapters(re.search(said, " ".join(README.split()))[1]) | {0}


def test_the_readmes_minutes_are_those_of_the_headers():
    minutes = {
        folder: [int(header(path)[1].split()[0]) for path in sorted((ROOT / folder).glob("[0-9][0-9]_*.ipynb"))]
        for folder in ("notebooks", "labs")
    }
    wanted = "A chapter takes {} to {} minutes, a lab {} to {} minutes."
    spans = [bound for span in minutes.values() for bound in (min(span), max(span))]
    assert wanted.format(*spans) in " ".join(README.split())
