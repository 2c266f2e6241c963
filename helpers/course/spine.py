"""The lint's numbers for chapters that have been told anew, and that no answer stands in sight of its guess.

Words are all that a reader meets between two cells of code: prose, headings, tables, blocks of code. Links' addresses
and tags are none, and nothing that stands folded. Of code only what a reader sees and did not write counts: no folded
cell, no comment, no worked answer to a gap.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode

from . import notebook as nb
from .guesses import ASKED, MET, called, kept_as, names_met
from .stubs import SOLUTION

TASK = re.compile(r"(?m)^(?:\w+ = )?(?:predict|choose|fill_in|claims\.read|asked)\(")
NO_WORDS = re.compile(r"(?s)<details>.*?</details>|\]\([^)]*\)|<[^>]+>|```\w*")
WORD = re.compile(r"\w[\w’'.,%-]*")
TEXTBOOK, TEXTBOOK_LINES = "textbook", 30  # the tag of a cell whose algorithm is the lesson, and the most lines of it
_WORKED = re.compile(rf"(?s){SOLUTION[0]}.*?{SOLUTION[1]}")
_IMPORTS = re.compile(r"(?m)^(?:from [\w.]+ )?import (?:\([^)]*\)|.*)$")
_FILLED = re.compile(r"(?m)^(?:\w+ = )?(?:fill_in|asked)\(")
# What `compare` prints: the unit, the rows of what was predicted, and the truth.
_TABLE = re.compile(r"(?m)^(?:tensors|libraries)? +(\S.*?)   off by\n((?:.*\n)*?)\S.*? +([−\d.,e+]+|inf|nan)$")
_SENTENCES = re.compile(r"(?m)\bremarks=\{|^settle\(|^\w*SLIPS = \{")
_FOLDED = re.compile(r"(?s)<details>.*?</details>")
_NUMBER = r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?)"


@dataclass(frozen=True)
class Spine:
    """The most words of a chapter: in all, before its first task, between two or at its end; lines of a cell, names."""

    words: int = 2000
    first: int = 200
    between: int = 250
    lines: int = 12
    names: int = 12


SPINES = {
    "00": Spine(words=1300, first=100),
    "01": Spine(),
    "02": Spine(),
    "03": Spine(names=14),
    "04": Spine(),
    "05": Spine(),
    "06": Spine(),
    "07": Spine(),
    "08": Spine(),
    "09": Spine(),
    "10": Spine(),
    "11": Spine(),
    "12": Spine(),
    "13": Spine(),
    "14": Spine(),
}


def broken(chapter: str, cells: Sequence[NotebookNode]) -> Iterator[str]:
    """Everything that is not as it should be in a chapter that has numbers; nothing for another."""
    if chapter in SPINES:
        for rule in (too_long, too_much_code, too_many_names):
            yield from rule(chapter, cells)
        yield from unfolded(cells)
        yield from in_sight(cells)


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
    for at, (stretch, end) in enumerate(zip(stretches, ends, strict=True)):
        most, where = spine.between if at else spine.first, f"before the task in cell {end}" if end else "at the end"
        if stretch > most:
            yield f"{stretch} words {where}, and {most} are the most without a task: ask earlier, or say less"


def words(text: str) -> int:
    """The words of a Markdown text, those of tables and of blocks of code among them.

    >>> words("# A *title*\\n\\n| a | table |\\n\\n[two words](https://example.org/path)")
    6
    """
    return len(WORD.findall(NO_WORDS.sub(" ", text)))


def too_much_code(chapter: str, cells: Iterable[NotebookNode]) -> Iterator[str]:
    """The cells in sight with more lines than a reader would type; one with the tag `textbook` may have more."""
    for cell in cells:
        if cell.cell_type == "code" and not _is_folded(cell):
            most = TEXTBOOK_LINES if TEXTBOOK in nb.tags(cell) else SPINES[chapter].lines
            if (count := lines(cell.source)) > most:
                yield f"cell {cell.id} has {count} lines of code, and {most} are the most: fold it, or show less"


def lines(source: str) -> int:
    """The lines of code, without imports, blanks, comments, and what a reader writes.

    >>> lines("import math\\n# A comment\\n\\nx = math.pi  # and another")
    1
    """
    read = _IMPORTS.sub("", _WORKED.sub("", source))
    return sum(not line.lstrip().startswith("#") for line in read.splitlines() if line.strip())


def _is_folded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def too_many_names(chapter: str, cells: Iterable[NotebookNode]) -> Iterator[str]:
    """Whether a chapter imports more names of ours than anybody remembers, beside those that every chapter has.

    Those are what `helpers.lesson` offers itself (predict, compare, check). Folded cells do not count.
    """
    own = (cell for cell in cells if not _is_folded(cell))
    nodes = (node for cell in own for statement in nb.statements(cell) for node in ast.walk(statement))
    named = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module != "helpers.lesson")
    ours = (node for node in named if f"{node.module}.".startswith("helpers."))
    names, most = {alias.name for node in ours for alias in node.names}, SPINES[chapter].names
    if len(names) > most:
        yield f"{len(names)} names of helpers are imported, and {most} are the most: {', '.join(sorted(names))}"


def unfolded(cells: Iterable[NotebookNode]) -> Iterator[str]:
    """Each cell that answers with sentences for guesses, or holds usual mistakes, and is open before it has run."""
    for cell in cells:
        if cell.cell_type == "code" and not _is_folded(cell) and _SENTENCES.search(cell.source):
            yield f"cell {cell.id} has sentences that answer, and anybody reads them before it runs: fold it"


def in_sight(cells: Sequence[NotebookNode]) -> Iterator[str]:
    """Each answer that stands in prose, unless folded, or in a figure's title before the cell that gives it.

    What is looked through begins after the answer to the task before. Of a `choose` the right option may stand in the
    prose, but in no heading or title without the others.
    """
    waiting: dict[str, tuple[int, ast.stmt]] = {}
    answered = -1
    for at, cell in enumerate(cells):
        body = nb.statements(cell)
        for name in sorted(names_met(body) & waiting.keys()):
            begin, asking = waiting.pop(name)
            for between in cells[begin + 1 : at]:
                if told := _given_away(between, asking, cell, name):
                    yield f"cell {between.id} says {told!r}, for which {name} asks and which cell {cell.id} answers"
            answered = at
        if _FILLED.search(cell.source):
            answered = at
        waiting |= {kept_as(asking): (answered, asking) for asking in body if called(asking) & {*ASKED}}


def _given_away(cell: NotebookNode, asking: ast.stmt, answer: NotebookNode, name: str) -> str:
    """The words of `cell` that give the answer to the guess `name` away; '' where it does not."""
    prose = _FOLDED.sub("", cell.source) if cell.cell_type == "markdown" else ""
    meeting = next(call for call in _calls(nb.statements(answer), *MET) if name in _names(call))
    if "choose" in called(asking):
        options = _texts(next(_calls([asking], "choose")).args[1:])
        options = [one for one in options if len(one) > 3]  # an "A" or "no" stands everywhere
        right, heads = _texts(meeting.args[:1]), re.findall(r"(?m)^#+ .*$", prose) + _titles(cell)
        return next((head for head in heads if right and right == [one for one in options if _has(head, one)]), "")
    text = "\n".join([prose, *_titles(cell)])
    row = next((keyword.arg for keyword in meeting.keywords if name in _names(keyword)), None)
    tables = _TABLE.findall(nb.stream(answer.outputs, "stdout"))
    truths = [(truth, unit) for unit, rows, truth in tables if re.search(rf"(?m)^{row}\b", rows)]
    return next((said for truth, unit in truths if (said := _said(text, truth, unit))), "")


def _said(text: str, truth: str, unit: str) -> str:
    """The number of `text` that is `truth`, perhaps with fewer or more digits, beside its unit or in bold; else ''."""
    value, digits = float(truth.replace(",", "").removeprefix("−")), len(truth.partition(".")[2])
    near = {value, round(value, 1), *(float(f"{value:.{figures}g}") for figures in (2, 3))}
    beside = {"×": r"(?:×(?!\s?\d)|times\b)"}.get(unit, rf"{re.escape(unit)}(?![\w/])")  # 2 × 3 is a product
    for found in re.finditer(rf"{_NUMBER}(?:\*\*)?\s?{beside}|\*\*{_NUMBER}\*\*", text):
        number = (found[1] or found[2]).replace(",", "")
        is_precise = len(number.replace(".", "").lstrip("0")) > 1
        if is_precise and (float(number) in near or round(float(number), digits) == value):
            return found[0]
    return ""


def _titles(cell: NotebookNode) -> list[str]:
    """What calls are given first, where it is a text of several words: titles of figures, and what is printed."""
    calls = (call for call in _calls(nb.statements(cell)) if ast.unparse(call.func) not in ASKED)
    return [text for call in calls for text in _texts(call.args[:1]) if " " in text]


def _calls(body: list[ast.stmt], *functions: str) -> Iterator[ast.Call]:
    """The calls of these functions, of all where none is named."""
    nodes = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call))
    return (node for node in nodes if not functions or ast.unparse(node.func) in functions)


def _texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _has(text: str, words: str) -> bool:
    return bool(re.search(rf"(?i)(?<!\w){re.escape(words)}(?!\w)", text))
