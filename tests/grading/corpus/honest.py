"""Learners who mean well: each row is known exactly, and none may cost a point."""

from __future__ import annotations

from nbformat import NotebookNode, v4

from helpers.grading.judging.results import ATTENTION, GRADED
from tests.course.example_lab import cell_of, code
from tests.grading.corpus.case import HONEST, NOT_STARTED, PASSED, Case, every, row
from tests.grading.corpus.edits import (
    RIGHT,
    answered,
    before_right,
    inserted,
    is_graded_id,
    then,
    without,
    without_anchor,
    written,
)

MISSING = frozenset({"missing"})
DID_NOT_RUN = frozenset({"did not run"})

NOTES = """print("my notes: a started page counts")
import sys

scratch = [n * n for n in range(10)]
scratch"""
WARNS = """import warnings


def transfer_ms(size_bytes, link_bytes_per_s):
    warnings.warn("links are slower than their data sheets", stacklevel=2)
    return 1000 * size_bytes / link_bytes_per_s"""
LOGS = """import logging


def transfer_ms(size_bytes, link_bytes_per_s):
    logging.warning("%d bytes", size_bytes)
    return 1000 * size_bytes / link_bytes_per_s"""
SHOWS = """from IPython.display import HTML, display


def transfer_ms(size_bytes, link_bytes_per_s):
    display(HTML("<script>fetch('/')</script>"))
    return 1000 * size_bytes / link_bytes_per_s"""
PRINTS = """def transfer_ms(size_bytes, link_bytes_per_s):
    print("size", size_bytes)
    return 1000 * size_bytes / link_bytes_per_s"""
NUMPY = """import numpy as np


def pages(tokens, page_tokens):
    return np.int64(-(-tokens // page_tokens))"""
ARRAYS = """import numpy as np


def pack(sizes, capacity):
    bins = []
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        one = next((one for one in bins if sum(sizes[other] for other in one) + sizes[item] <= capacity), None)
        bins.append([item]) if one is None else one.append(item)
    return tuple(np.array(one) for one in bins)"""
# A number that shows itself otherwise is that number.
SHOWS_MARKUP = """class Marked(float):
    def __format__(self, form):
        return "</pre><script>alert(1)</script>\\x1b[2J\\x00"


def transfer_ms(size_bytes, link_bytes_per_s):
    return Marked(1000 * size_bytes / link_bytes_per_s)"""
CEIL = "def up(value, step):\n    return -(-value // step)"
USES_CEIL = "def pages(tokens, page_tokens):\n    return up(tokens, page_tokens)"
FIRST_TRY = "def pages(tokens, page_tokens):\n    return tokens.pages\n\n\nprint(pages(17, 16))"
OLD_TRY = "# rounds down: why?\ndef pages(tokens, page_tokens):\n    return tokens // page_tokens"
SAVES = """%%time
import json
import threading
import tracemalloc

tracemalloc.start()
with open("pages.json", "w") as file:
    json.dump([pages(tokens, 16) for tokens in range(1, 40)], file)
one = threading.Thread(target=pages, args=(17, 16))
one.start()
one.join()
print(tracemalloc.get_traced_memory())
!pip install -q pandas
"""
SHADOWS = """class Ledger(list):
    \"\"\"A name that is given, too.\"\"\"


asked = [pages(17, 16)]
draw: int = asked[0]
del draw
print(locals().keys())"""
# `rate` is first set at the end of the answer: the second run of the cell works, the first one raises.
NEEDS_TWO_RUNS = """per_second = rate


def transfer_ms(size_bytes, link_bytes_per_s):
    return per_second * size_bytes / link_bytes_per_s


rate = 1000"""
SETS_RATE_BELOW = "rate = 1000"
USES_RATE = """per_second = rate


def transfer_ms(size_bytes, link_bytes_per_s):
    return per_second * size_bytes / link_bytes_per_s"""


def _reordered(notebook: NotebookNode) -> None:
    """Each exercise from the last to the first, the setup still on top."""
    head = [cell for cell in notebook.cells if not is_graded_id(cell.id)]
    graded = [cell for cell in notebook.cells if is_graded_id(cell.id)]
    notebook.cells = [*head, *reversed(graded)]  # the checks now stand before their answers, too


def _split(notebook: NotebookNode, *, same_metadata: bool) -> None:
    """Cut the answer `pages` in two, as JupyterLab does (the metadata twice) or as others do (only once)."""
    first = cell_of(notebook, "pages")
    first.source = first.source.replace(RIGHT["pages"], CEIL)
    second = v4.new_code_cell(USES_CEIL)
    if same_metadata:
        second.metadata = first.metadata
    notebook.cells.insert(notebook.cells.index(first) + 1, second)


def _merged_with_check(notebook: NotebookNode) -> None:
    answer, check = cell_of(notebook, "pages"), cell_of(notebook, "pages-check")
    answer.source = f"{answer.source}\n\n\n{check.source}"
    notebook.cells.remove(check)


def _merged_answers(notebook: NotebookNode) -> None:
    """Two answers in the cell of the first: the second one's cell is gone, its code is not."""
    first, second = cell_of(notebook, "pages"), cell_of(notebook, "window")
    first.source = f"{first.source}\n\n\n{second.source}"
    notebook.cells.remove(second)


def _first_try_above(notebook: NotebookNode) -> None:
    """A copy of the answer's cell, its metadata with it, that raises."""
    right = cell_of(notebook, "pages")
    first = v4.new_code_cell(FIRST_TRY, metadata=right.metadata)
    notebook.cells.insert(notebook.cells.index(right), first)


def _old_try_at_the_bottom(notebook: NotebookNode) -> None:
    notebook.cells.append(v4.new_code_cell(OLD_TRY, metadata=cell_of(notebook, "pages").metadata))


def _older(notebook: NotebookNode) -> None:
    """Last year's lab: other cell ids, other check, an exercise that is gone, and none of the newest one."""
    cell_of(notebook, "pages-check").source = 'assert pages(17, 16) == 2\nprint("fine")'
    for number, cell in enumerate(notebook.cells):
        cell.id = f"year-{number}"
    old = code("def evict(pages):\n    return pages[0]", "evict", solution=True)
    notebook.cells.append(old)


def _run_out_of_order(notebook: NotebookNode) -> None:
    """What a learner's saved notebook has: any counts, and outputs of other runs."""
    for count, cell in enumerate(reversed(notebook.cells)):
        if cell.cell_type == "code":
            cell.execution_count = 3 * count + 7
            cell.outputs = [v4.new_output("stream", text="from an earlier try\n")]


def _colab(notebook: NotebookNode) -> None:
    """As Colab saves it: format 4.0, no cell ids but its own in the metadata, and nothing else there."""
    notebook.nbformat_minor = 0
    for cell in notebook.cells:
        without_anchor(cell)
        cell.metadata = NotebookNode({"id": cell.pop("id"), "colab": {"base_uri": "https://localhost:8080/"}})


CASES = tuple(
    Case(name, HONEST, item, build, expect, frozenset({GRADED}) | also)
    for name, item, build, expect, also in (
        ("perfect", "perfect", answered(), row(), set()),
        ("perfect, run out of order", "perfect", then(answered(), _run_out_of_order), row(), set()),
        ("untouched", "untouched", then(), every(NOT_STARTED), set()),
        (
            "one question only",
            "one question only",
            lambda lab: written(lab, {"window": RIGHT["window"]}),
            every(NOT_STARTED) | {"window": PASSED},
            set(),
        ),
        (
            "extra cells and prints",
            "extra cells and prints",
            then(
                before_right('print("defining it again")'),
                inserted(v4.new_code_cell(NOTES), after="pages"),
                inserted(v4.new_code_cell("pages(17, 16)"), after="pages-check"),
                inserted(v4.new_markdown_cell("## My notes\n\n# Not an exercise"), after="pages-check"),
                inserted(v4.new_code_cell("1 / 0"), after="chain-check"),
            ),
            row(),
            set(),
        ),
        ("a warning on stderr", "a warning on stderr but right", answered(transfer=WARNS), row(), set()),
        ("a log line on stderr", "a warning on stderr but right", answered(transfer=LOGS), row(), set()),
        ("a display left in", "extra cells and prints", answered(transfer=SHOWS), row(), set()),
        ("a print left in", "extra cells and prints", answered(transfer=PRINTS), row(), set()),
        ("a numpy scalar", "right in another type", answered(pages=NUMPY), row(), set()),
        ("a tuple of arrays", "right in another type", answered(pack=ARRAYS), row(), set()),
        ("a float that shows markup", "right in another type", answered(transfer=SHOWS_MARKUP), row(), set()),
        ("reordered", "cells reordered, split, merged", then(answered(), _reordered), row(), set()),
        (
            "split, the metadata twice",
            "cells reordered, split, merged",
            then(answered(), lambda lab: _split(lab, same_metadata=True)),
            row(),
            set(),
        ),
        (
            "split, the metadata once",
            "cells reordered, split, merged",
            then(answered(), lambda lab: _split(lab, same_metadata=False)),
            row(),
            set(),
        ),
        ("merged with its check", "cells reordered, split, merged", then(answered(), _merged_with_check), row(), set()),
        (
            "two answers merged",
            "cells reordered, split, merged",
            then(answered(), _merged_answers),
            row(window=PASSED | MISSING),
            {ATTENTION},
        ),
        (
            "older revision",
            "older revision of the lab",
            then(answered(), without("chain-text", "ledger", "chain", "chain-check"), _older),
            row(chain=MISSING),
            {ATTENTION},
        ),
        (
            "works only after running twice",
            "works only after running twice",
            answered(transfer=NEEDS_TWO_RUNS),
            row(transfer=DID_NOT_RUN),
            set(),
        ),
        (
            "needs a cell further down",
            "works only after running twice",
            then(answered(transfer=USES_RATE), inserted(v4.new_code_cell(SETS_RATE_BELOW), after="pack-check")),
            row(transfer=DID_NOT_RUN),
            set(),
        ),
        ("a first try above", "wrong first tries kept", then(answered(), _first_try_above), row(), set()),
        ("an old try at the bottom", "wrong first tries kept", then(answered(), _old_try_at_the_bottom), row(), set()),
        (
            "saved, timed and traced",
            "scratch cells",
            then(answered(), inserted(v4.new_code_cell(SAVES), after="pack-check")),
            row(),
            set(),
        ),
        (
            "names that are given",
            "scratch cells",
            then(answered(), inserted(v4.new_code_cell(SHADOWS), after="chain-check")),
            row(),
            set(),
        ),
        ("ids of Colab only", "cells reordered, split, merged", then(answered(), _colab), row(), set()),
    )
)
