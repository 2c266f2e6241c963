"""workspace/START.md, the first page: the chapters with their time, what each needs, and how far the reader is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..lesson import notes
from . import notebook as nb
from .progress import Chapter, Lab, chapters

START = "START.md"
HEAD = """# The GPU Memory Workbook

Predict what a model needs, measure it, explain the difference. **Begin with chapter 00**: click its title, then run its
cells one by one with Shift+Enter. A lab is for after its chapter.

| | chapter | time | needs | so far | lab |
|---|---|---|---|---|---|
"""
TAIL = """
**These notebooks are yours.** Nothing overwrites what you write in them, and `git pull` leaves them alone.

In a terminal (File > New > Terminal), with `source .venv/bin/activate` first:

| command | what it does |
|---|---|
| `workbook explain-oom -` | paste an out-of-memory message of yours, then Ctrl-D: why it failed, and what to change |
| `workbook check 02` | weighs your lab 02: points, and for each miss a sentence that helps |
| `workbook check 02 --show 3` | after you tried: a worked answer to its third question |
| `workbook progress` | how far you are; writes this page anew |
| `workbook workspace --fresh 02` | new copies of chapter and lab 02; yours are renamed, not deleted |
| `workbook doctor` | what this machine is, and which chapters it can run |

Where something is missing or red, the message says what to do. What you do stays on
this machine: no account, no upload.
"""


def start_page(root: Path) -> str:
    """The page for the workbook at `root`, with what is noted in its workspace."""
    noted: dict = {"chapters": {}, "labs": {}}
    with suppress(OSError, ValueError):  # a broken file of notes is told of by who writes it
        noted = notes.read(root / notes.FOLDER)
    return HEAD + "".join(map(_row, chapters(root, noted))) + "".join(_appendix(root)) + TAIL


def write_start_page(root: Path) -> None:
    """Write the page as things stand. OSError where the workspace cannot be written."""
    folder = root / notes.FOLDER
    folder.mkdir(exist_ok=True)
    (folder / START).write_text(start_page(root), encoding="utf-8", newline="\n")


def renew_start_page(root: Path) -> None:
    """Write it anew where there is a workspace, and it can be written."""
    with suppress(OSError):
        if (root / notes.FOLDER).is_dir():
            write_start_page(root)


def _row(one: Chapter) -> str:
    title = f"[{one.title}](chapters/{one.name})"
    needs = one.header.get("needs", "").partition(" · ")[0]
    return f"| {one.number} | {title} | {_minutes(one.header)} | {needs} | {one.said or '–'} | {_lab(one.lab)} |\n"


def _appendix(root: Path) -> Iterator[str]:
    for path in nb.find_all(root, [nb.APPENDIX]):
        title = nb.read(path).cells[0].source.splitlines()[0].lstrip("# ").rpartition(" · ")[2]
        yield f"\n[{title}](chapters/{path.name}) is an appendix, to be read at any time.\n"


def _lab(lab: Lab | None) -> str:
    if lab is None:
        return ""
    points = f"{lab.points:g} points" if lab.earned is None else f"**{lab.earned:g}** of {lab.points:g} points"
    return f"[lab {lab.name.partition('_')[0]}](labs/{lab.name}), {_minutes(lab.header)}, {points}"


def _minutes(header: dict[str, str]) -> str:
    """The main line's, and those of its deeper sections where there are any."""
    first, _, deeper = header.get("time", "").partition(" · ")
    found = re.search(r"\d+", deeper)
    more = f" (+ {found[0]} deeper)" if found else ""
    return first.partition(",")[0] + more
