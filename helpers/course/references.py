"""The lint's rules about what a notebook points to: chapters, files, and names of the catalogue that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError
from ..catalog.policies import layout
from .notebook import CHAPTERS

_LINK = re.compile(r"\]\((?!\w+:|[#<])([^)\s#]+)")
_NUMBERS = re.compile(r"(?i)\b(chapters?|labs?)((?:,? (?:and |or |to )?\d\d\b)+)")
_POLICY = re.compile(r"(?:selective|module|offload|every|first|nested|sqrt|recursive|recompute)(?:[:-][\w+-]+)?")
_TO_COME = "to come"


def dead(cells: list[NotebookNode], path: Path) -> Iterator[tuple[str, str]]:
    """(cell, what is wrong) for each link to a file that is not there, and each chapter or lab that nobody can open.

    One that is still to come may be named where its sentence says so: "chapter 04, still to come, ...".
    """
    root = path.parent.parent
    there = {
        folder: {one.name[:2] for one in (root / folder).glob("[0-9][0-9]_*.ipynb")}
        for folder in (CHAPTERS, "solutions")
    }
    for cell in cells:
        if cell.cell_type == "markdown":
            gone = (link for link in _LINK.findall(cell.source) if not (path.parent / link).exists())
            yield from ((cell.id, f"a link to {link}, which is not there") for link in gone)
        for sentence in _sentences(cell.source):
            for kind, numbers in _NUMBERS.findall(sentence):
                known = there[CHAPTERS if kind.lower().startswith("chapter") else "solutions"]
                for number in re.findall(r"\d\d", numbers):
                    if number not in known and _TO_COME not in sentence:
                        yield cell.id, f"{kind} {number} does not exist: say that it is still to come, or leave it out"


def unknown_policy(cell: NotebookNode) -> str:
    """The first name in code font that looks like a checkpointing policy and is none; '' without one."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"(?s)```.*?```", "", cell.source))
    return next((span for span in spans if _POLICY.fullmatch(span) and not _is_policy(span)), "")


def _is_policy(name: str) -> bool:
    if name in ("module", "offload", "every", "first", "nested", "recompute"):  # words of their own, too
        return True
    try:
        return bool(layout(name.replace(":K", ":2"), 64))
    except WorkbookError:
        return False


def _sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?:])\s+(?=[A-Z*`\[])|\n\n|\|", text)
