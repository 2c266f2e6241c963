"""The lint's rules about what a notebook points to: chapters, files, and names of the catalogue that do not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError
from ..catalog.policies import layout
from . import notebook as nb
from .notebook import CHAPTERS

_LINK = re.compile(r"\]\((?!\w+:|[#<])([^)\s#]+)")
_LIST = r"\d\d(?:(?:,|, and| and| or| to|–) ?\d\d)*\b"
_NUMBERED = re.compile(rf"(?i)\b(chapter|lab)s? ({_LIST})|\(({_LIST})\)")  # "chapters 02 and 05", "lab 03", "(02, 05)"
_POLICY = re.compile(r"(?:selective|module|offload|every|first|nested|sqrt|recursive|recompute)(?:[:-][\w+-]+)?")
_TO_COME = "to come"


def dead(cells: list[NotebookNode], path: Path) -> Iterator[tuple[str, str]]:
    """(cell, what is wrong) for each link to a file that is not there, and each chapter or lab that nobody can open.

    One that is still to come may be named where its sentence says so: "chapter 04, still to come, ...".
    """
    root = nb.root_of(path)
    kinds = (("chapter", CHAPTERS), ("lab", "solutions"))
    there = {f"{kind} {one.name[:2]}" for kind, folder in kinds for one in (root / folder).glob("[0-9][0-9]_*.ipynb")}
    for cell in cells:
        if cell.cell_type == "markdown":
            gone = (link for link in _LINK.findall(cell.source) if not (path.parent / link).exists())
            yield from ((cell.id, f"a link to {link}, which is not there") for link in gone)
        for sentence in _sentences(cell.source) if cell.cell_type == "markdown" else []:
            missing = [name for name in _named(sentence) if name not in there]
            if missing and _TO_COME not in sentence:
                yield cell.id, f"{missing[0]} does not exist: say that it is still to come, or leave it out"


def onward(cells: list[NotebookNode], path: Path) -> Iterator[str]:
    """What the chapter at `path` does not link to: its lab, and the chapter after it."""
    root = path.parent.parent
    after = [one.name for one in sorted(path.parent.glob("[0-9][0-9]_*.ipynb")) if one.name > path.name][:1]
    labs = [f"../labs/{one.name}" for one in (root / "solutions").glob(f"{path.name[:2]}_*.ipynb")]
    yield from (f"no link to {link}" for link in (*labs, *after) if link not in _links(cells))


def linked(cells: list[NotebookNode], path: Path) -> Iterator[str]:
    """Which links to the companion or the appendix at `path` are missing, and from a companion back to its chapter."""
    if nb.is_companion(path):
        chapter = path.parent.parent / path.name
        if not (chapter.exists() and f"deeper/{path.name}" in _links(nb.read(chapter).cells)):
            yield f"its chapter, {CHAPTERS}/{path.name}, has no link to deeper/{path.name}"
        if f"../{path.name}" not in _links(cells):
            yield f"no link back to ../{path.name}"
    elif not any(path.name in _links(nb.read(one).cells) for one in nb.find_all(nb.root_of(path), [CHAPTERS])):
        yield f"no chapter has a link to {path.name}"


def _links(cells: list[NotebookNode]) -> set[str]:
    """The files that the prose links to, as they are written."""
    return {link for cell in cells if cell.cell_type == "markdown" for link in _LINK.findall(cell.source)}


def _named(sentence: str) -> Iterator[str]:
    """ "chapter 02", "lab 03", for each that the sentence names; numbers in parentheses are chapters."""
    for kind, numbers, bare in _NUMBERED.findall(sentence):
        yield from (f"{kind.lower() or 'chapter'} {number}" for number in re.findall(r"\d\d", numbers or bare))


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
