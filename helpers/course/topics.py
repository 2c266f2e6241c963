"""The table of topics: the cell that teaches each, and the question that checks it; docs/topics.md is made of it.

`topics.toml` names a topic's section by the id of its heading's cell, and a word; the cell is the first in that section
with the word. The section stands in the chapter, or else in its companion. A topic whose section, word or question is
gone is an error: the table cannot outlive what it points to.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError
from . import notebook

TOPICS = Path(__file__).with_name("topics.toml")
PAGE = Path("docs", "topics.md")
HERE = "here"  # checked by a question of its own section
TOLD = "told"  # taught, and asked for nowhere
_HEADING = re.compile(r"(?m)^##+ (.+)$")
_ASKS = re.compile(r"\b(?:predict|claim|fill_in|check)\(|_{3,}|guess=|<summary>")
_INTRODUCTION = """# Topics

Each topic of the workbook, the cell that teaches it, and where it is checked: a question of a lab, or, where it says
*in its section*, a prediction, a fill-in or a question in that section. *Told only*: nothing asks for it yet. Cells are
counted from 0. `workbook topics` writes this page.
"""


@dataclass(frozen=True)
class Topic:
    """One row: `cell` counts from 0, as Jupyter's files do; `question` is "02 peak-bytes", HERE or TOLD.

    `companion` is the path in the clone of the companion that has the section; empty where the chapter has it.
    """

    chapter: str
    name: str
    section: str
    cell: int
    cell_id: str
    question: str
    companion: str = ""

    @property
    def row(self) -> str:
        lab = f"lab {self.question[:2]}: " + ", ".join(f"`{name}`" for name in named(self.question))
        checked = {HERE: "in its section", TOLD: "told only"}.get(self.question, lab)
        section = f"[{self.section}](../{self.companion}), deeper" if self.companion else self.section
        return f"| {self.name} | {section} | {self.cell} (`{self.cell_id}`) | {checked} |"


def topics(root: Path) -> tuple[Topic, ...]:
    """Every topic, found in the notebooks under `root`. WorkbookError for the first that is not there any more."""
    return tuple(topic for chapter, rows in _listed().items() for topic in _in_chapter(root, chapter, rows))


def page(root: Path) -> str:
    """docs/topics.md, as Markdown: one table a chapter, in the order in which they are read."""
    by_chapter: dict[str, list[Topic]] = {}
    for topic in topics(root):
        by_chapter.setdefault(topic.chapter, []).append(topic)
    return "\n".join((_INTRODUCTION, *(_table(root, chapter, rows) for chapter, rows in by_chapter.items())))


def named(question: str) -> list[str]:
    """The answers that `question` names: "02 peak-bytes, accumulate"; none for HERE and TOLD."""
    return [] if question in (HERE, TOLD) else question[3:].split(", ")


def _listed() -> dict[str, list[list[str]]]:
    return {chapter: table["topics"] for chapter, table in tomllib.loads(TOPICS.read_text(encoding="utf-8")).items()}


def _in_chapter(root: Path, chapter: str, rows: list[list[str]]) -> Iterator[Topic]:
    paths = [_one(root / notebook.CHAPTERS, chapter), *(root / notebook.COMPANIONS).glob(f"{chapter}_*.ipynb")]
    places = {path: notebook.read(path).cells for path in paths}
    for row in rows:
        path = next((path for path, cells in places.items() if any(cell.id == row[1] for cell in cells)), paths[0])
        companion = path.relative_to(root).as_posix() if notebook.is_companion(path) else ""
        yield _topic(root, chapter, row, places[path], companion)


def _topic(root: Path, chapter: str, row: list[str], cells: list[NotebookNode], companion: str) -> Topic:
    name, heading, word, question = row
    section = _section(cells, heading, f"{chapter}: {name}")
    found = next((number for number in section if word.lower() in cells[number].source.lower()), None)
    if found is None:
        raise _gone(f"{chapter}: {name}", f"no cell of section {heading} says {word!r}")
    asks = any(_ASKS.search(cells[number].source) for number in section)
    if question == HERE and not asks:
        raise _gone(f"{chapter}: {name}", f"section {heading} asks nothing")
    missing = set(named(question)) - _questions(root, question[:2]) if named(question) else set()
    if missing:
        raise _gone(f"{chapter}: {name}", f"lab {question[:2]} has no question {min(missing)!r}")
    title = _HEADING.findall(cells[section[0]].source)[-1].removesuffix(" · deeper")
    return Topic(chapter, name, title, found, cells[found].id, question, companion)


def _section(cells: list[NotebookNode], heading: str, topic: str) -> range:
    """The cells from the one whose id is `heading` to the next heading."""
    first = next((number for number, cell in enumerate(cells) if cell.id == heading), None)
    if first is None or not _is_heading(cells[first]):
        raise _gone(topic, f"no heading stands in a cell {heading!r}")
    after = range(first + 1, len(cells))
    return range(first, next((number for number in after if _is_heading(cells[number])), len(cells)))


def _is_heading(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown" and bool(_HEADING.search(cell.source))


def _questions(root: Path, lab: str) -> set[str]:
    """The answers' ids in the worked lab."""
    cells = notebook.read(_one(root / "solutions", lab)).cells
    return {cell.metadata.nbgrader.grade_id for cell in cells if cell.metadata.get("nbgrader", {}).get("solution")}


def _one(folder: Path, number: str) -> Path:
    found = sorted(folder.glob(f"{number}_*.ipynb"))
    if not found:
        raise WorkbookError(f"no notebook {number} in {folder}", "the repository's root", "name the clone's folder")
    return found[0]


def _table(root: Path, chapter: str, rows: list[Topic]) -> str:
    path = _one(root / notebook.CHAPTERS, chapter)
    title = path.stem[3:].replace("_", " ").capitalize()
    head = f"## [{chapter} · {title}](../{notebook.CHAPTERS}/{path.name})\n\n| topic | section | cell | checked |"
    return "\n".join((head, "|---|---|---|---|", *(row.row for row in rows), ""))


def _gone(topic: str, why: str) -> WorkbookError:
    return WorkbookError(f"topic {topic}: {why}", "a section, a word in it, and a question", f"mend {TOPICS.name}")
