"""Forgers, and the unlucky, who change the notebook around the answers: the reference decides, not their copy."""

from __future__ import annotations

import copy
from collections.abc import Callable

from nbformat import NotebookNode, v4

from helpers.grading.judging.results import ATTENTION, GRADED, UNREADABLE
from tests.course.example_lab import cell_of
from tests.grading.corpus.case import FAILED, FORGING, NOT_PASSED, NOT_STARTED, Case, Outcomes, every, row
from tests.grading.corpus.edits import (
    RIGHT,
    WRONG_ANSWERS,
    answered,
    inserted,
    then,
    with_metadata,
    without,
    without_anchor,
    wrong_but,
)
from tests.grading.corpus.lab import POINTS

LOST: Outcomes = frozenset({"missing", "not started"})
# A notebook without a single answer cell of the lab may as well be another one.
ANY_STATUS = frozenset({GRADED, ATTENTION, UNREADABLE})
MARKS = "deleted, duplicated or retyped cells"
CHECK_OF_OWN = 'print("0 tokens, pages of 16: 0 int")'


def changed(key: str, change: Callable[[NotebookNode], object]) -> Callable[[NotebookNode], None]:
    """Apply `change` to the cell with the id `key`."""
    return lambda notebook: change(cell_of(notebook, key)) and None


def edit_checks(notebook: NotebookNode) -> None:
    """Checks that check nothing, worth a hundred points each, skipped, raising, ignored, and the learner's own."""
    for number, key in enumerate(POINTS):
        check = cell_of(notebook, f"{key}-check")
        check.source = CHECK_OF_OWN
        check.metadata["nbgrader"]["points"] = 100
        check.metadata["tags"] = [["nbval-skip"], ["nbval-raises-exception"], ["nbval-ignore-output"]][number % 3]
        check.outputs, check.execution_count = [], None
    cell_of(notebook, "transfer-check").metadata["nbgrader"] |= {"solution": True, "grade": False}
    notebook.metadata["workbook"] = {"seed": "0", "source": "../../../etc/passwd", "stubs": {}}


def swap_ids(notebook: NotebookNode) -> None:
    """Each answer says that it is the next one's check, and the checks that they are answers."""
    for key in POINTS:
        answer, check = cell_of(notebook, key), cell_of(notebook, f"{key}-check")
        answer.metadata["nbgrader"], check.metadata["nbgrader"] = (
            check.metadata["nbgrader"],
            answer.metadata["nbgrader"],
        )


def retype(key: str, kind: str) -> Callable[[NotebookNode], None]:
    """Make a code cell a markdown or raw one, as a key pressed by accident does."""

    def edit(notebook: NotebookNode) -> None:
        place = notebook.cells.index(cell_of(notebook, key))
        old = notebook.cells[place]
        new = {"markdown": v4.new_markdown_cell, "raw": v4.new_raw_cell}[kind](old.source, id=old.id)
        new.metadata = old.metadata
        notebook.cells[place] = new

    return edit


def duplicate(key: str, source: str | None = None, *, same_id: bool = False) -> Callable[[NotebookNode], None]:
    """Put a second copy of a cell below the first, with another source perhaps."""

    def edit(notebook: NotebookNode) -> None:
        cell = copy.deepcopy(cell_of(notebook, key))
        cell.source = source or cell.source
        cell.id = key if same_id else f"{key}-again"
        notebook.cells.insert(notebook.cells.index(cell_of(notebook, key)) + 1, cell)

    return edit


def repeat(key: str, times: int) -> Callable[[NotebookNode], None]:
    """Copies of a cell, one below the other."""
    return then(*(duplicate(key) for _ in range(times)))


def strip(cell: NotebookNode) -> None:
    """Neither metadata nor anchor."""
    without_anchor(cell)
    cell.metadata = NotebookNode()


def anchor(cell: NotebookNode) -> None:
    """Neither metadata nor its id: what is left is the anchor."""
    cell.metadata = NotebookNode()
    cell.id = v4.new_code_cell().id


def odd(cell: NotebookNode) -> None:
    cell.metadata["nbgrader"] = {"grade_id": ["pages"], "solution": "yes", "points": "many"}
    cell.metadata["tags"] = [["nbval-skip"], 1]


WRONG_PAGES = {"pages": WRONG_ANSWERS["pages"]}
SKIPS = "# NBVAL_SKIP\n# NBVAL_IGNORE_OUTPUT\n   #NBVAL_RAISES_EXCEPTION\n"
IN_A_TEXT = 'NOTE = """\n# NBVAL_SKIP\n# NBVAL_IGNORE_OUTPUT\n"""\n\n\n'
IN_A_DOCSTRING = """def transfer_ms(size_bytes, link_bytes_per_s):
    '''
    # NBVAL_SKIP
    '''
    return 1000 * size_bytes / link_bytes_per_s"""
MARKED = {key: SKIPS + source for key, source in WRONG_ANSWERS.items()}

_TABLE = (
    ("marks on wrong answers", "NBVAL marks in answers and strings", wrong_but(**MARKED), every(FAILED)),
    (
        "marks on right answers",
        "NBVAL marks in answers and strings",
        answered(**{key: SKIPS + source for key, source in RIGHT.items()}),
        row(),
    ),
    ("marks in a text", "NBVAL marks in answers and strings", answered(pages=IN_A_TEXT + RIGHT["pages"]), row()),
    ("marks in a docstring", "NBVAL marks in answers and strings", answered(transfer=IN_A_DOCSTRING), row()),
    (
        "marks in a cell of their own",
        "NBVAL marks in answers and strings",
        then(wrong_but(), inserted(v4.new_code_cell(SKIPS), after="setup")),
        every(FAILED),
    ),
    ("edited checks, right answers", "edited checks and points", then(answered(), edit_checks), row()),
    ("edited checks, wrong answers", "edited checks and points", then(wrong_but(), edit_checks), every(FAILED)),
    ("edited checks, no answers", "edited checks and points", then(edit_checks), every(NOT_STARTED)),
    ("swapped ids", "edited checks and points", then(wrong_but(), swap_ids), every(NOT_PASSED)),
    ("an answer deleted", MARKS, then(answered(), without("pages")), row(pages=LOST)),
    ("every answer deleted", MARKS, then(answered(), without(*POINTS)), every(LOST)),
    ("a check deleted", MARKS, then(answered(), without("pages-check")), row()),
    ("every check deleted", MARKS, then(answered(), without(*(f"{key}-check" for key in POINTS))), row()),
    ("an answer twice", MARKS, then(answered(), duplicate("pages")), row()),
    ("an answer twice, same cell id", MARKS, then(answered(), duplicate("pages", same_id=True)), row()),
    ("wrong, then right", MARKS, then(answered(**WRONG_PAGES), duplicate("pages", RIGHT["pages"])), row()),
    ("right, then wrong", MARKS, then(answered(), duplicate("pages", WRONG_ANSWERS["pages"])), row(pages=FAILED)),
    ("a check twice", MARKS, then(answered(), duplicate("pages-check")), row()),
    (
        "a wrong answer's check twice",
        MARKS,
        then(answered(**WRONG_PAGES), duplicate("pages-check", CHECK_OF_OWN)),
        row(pages=FAILED),
    ),
    ("an answer 200 times", MARKS, then(answered(), repeat("pages", 200)), row()),
    ("an answer made markdown", MARKS, then(answered(), retype("pages", "markdown")), row(pages=LOST)),
    ("an answer made raw", MARKS, then(answered(), retype("pages", "raw")), row(pages=LOST)),
    ("a check made markdown", MARKS, then(answered(), retype("pages-check", "markdown")), row()),
    ("an answer emptied", MARKS, answered(pages="   \n"), row(pages=LOST)),
    ("ids only", "stripped metadata", then(answered(), with_metadata(strip)), row()),
    ("anchors only", "stripped metadata", then(answered(), with_metadata(anchor)), row()),
    ("metadata of wrong types", "stripped metadata", then(answered(), with_metadata(odd)), row()),
)
CASES = tuple(Case(name, FORGING, item, build, expect, ANY_STATUS) for name, item, build, expect in _TABLE)
