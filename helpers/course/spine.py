"""How much a reader reads before there is something to do: the lint's numbers for chapters that have been told anew.

Words are those of the prose, and of what stands folded; tables, links' addresses and code are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nbformat import NotebookNode

TASK = re.compile(r"(?m)^(?:\w+ = )?(?:predict|choose|fill_in|claims\.read|asked)\(")
NO_WORDS = re.compile(r"(?m)^\|.*$|\]\([^)]*\)|<[^>]+>|```")
WORD = re.compile(r"\w[\w’'.,%-]*")


@dataclass(frozen=True)
class Spine:
    """The most words of a chapter: in all, before its first task, between two tasks."""

    words: int = 2000
    first: int = 200
    between: int = 250


SPINES = {"00": Spine(words=1300, first=100)}


def too_long(chapter: str, cells: Iterable[NotebookNode]) -> Iterator[str]:
    """What is longer than it may be; nothing for a chapter that has no numbers yet."""
    spine = SPINES.get(chapter)
    if not spine:
        return
    stretches, ends = [0], [""]
    for cell in cells:
        if cell.cell_type == "markdown":
            stretches[-1] += words(cell.source)
        elif TASK.search(cell.source):
            ends[-1] = cell.id
            stretches.append(0)
            ends.append("")
    if sum(stretches) > spine.words:
        yield f"{sum(stretches):,} words, and {spine.words:,} are the most: move what is deeper to a companion"
    for at, (stretch, end) in enumerate(zip(stretches[:-1], ends, strict=False)):
        most = spine.between if at else spine.first
        if stretch > most:
            yield f"{stretch} words before the task in cell {end}, and {most} are the most: ask earlier, or say less"


def words(text: str) -> int:
    """The words of a Markdown text.

    >>> words("# A *title*\\n\\n| a | table |\\n\\n[two words](https://example.org/path)")
    4
    """
    return len(WORD.findall(NO_WORDS.sub(" ", text)))
