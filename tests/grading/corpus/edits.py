"""What the builders of the corpus do to a released lab."""

from __future__ import annotations

import copy
from collections.abc import Callable

from nbformat import NotebookNode

from helpers.course import lab_cells
from tests.course.example_lab import cell_of
from tests.grading.corpus.lab import POINTS

Build = Callable[[NotebookNode], NotebookNode]

RIGHT = {
    "pages": "def pages(tokens, page_tokens):\n    return (tokens + page_tokens - 1) // page_tokens",
    "window": """from collections import deque


class Window:
    def __init__(self, size):
        self.keys = deque(maxlen=size)

    def add(self, key):
        self.keys.append(key)

    def total(self):
        return sum(self.keys)""",
    "transfer": "def transfer_ms(size_bytes, link_bytes_per_s):\n    return size_bytes / link_bytes_per_s * 1e3",
    "pack": """def pack(sizes, capacity):
    bins = []
    for item, size in enumerate(sizes):
        for one in bins:
            if sum(sizes[other] for other in one) + size <= capacity:
                one.append(item)
                break
        else:
            bins.append([item])
    return bins""",
    "chain": """def chain(ledger, sizes):
    for before, size in zip([0, *sizes], sizes):
        ledger.take(size)
        ledger.drop(before)
    ledger.drop(sizes[-1])""",
}
WRONG_ANSWERS = {
    "pages": "def pages(tokens, page_tokens):\n    return tokens // page_tokens",
    "window": RIGHT["window"].replace("maxlen=size", "maxlen=None"),
    "transfer": "def transfer_ms(size_bytes, link_bytes_per_s):\n    return size_bytes / link_bytes_per_s",
    "pack": "def pack(sizes, capacity):\n    return [list(range(len(sizes)))] if sizes else []",
    "chain": """def chain(ledger, sizes):
    for size in sizes:
        ledger.take(size)
    ledger.drop(sum(sizes))""",
}


def written(lab: NotebookNode, sources: dict[str, str]) -> NotebookNode:
    """A copy of `lab` where the cells with these ids have these sources, below the anchor where there was one."""
    notebook = copy.deepcopy(lab)
    for key, source in sources.items():
        cell = cell_of(notebook, key)
        anchor = f"{lab_cells.anchor(key)}\n"
        cell.source = anchor + source if cell.source.startswith(anchor) else source
    return notebook


def without_anchor(cell: NotebookNode) -> None:
    """Take the anchor off, in place, so that the cell is found by what it has in its metadata or not at all."""
    first, _, rest = cell.source.partition("\n")
    cell.source = rest if first.startswith(lab_cells.anchor("")) else cell.source


def answered(**sources: str) -> Build:
    """Right answers everywhere, but for the exercises named."""
    return lambda lab: written(lab, RIGHT | sources)


def wrong_but(**sources: str) -> Build:
    """Wrong answers everywhere, but for the exercises named: what passes was forged."""
    return lambda lab: written(lab, WRONG_ANSWERS | sources)


def before_wrong(attack: str, key: str = "pages") -> Build:
    """Wrong answers everywhere, and an attack that runs when the answer `key` is defined."""
    return wrong_but(**{key: f"{attack}\n\n\n{WRONG_ANSWERS[key]}"})


def knowing(attack: str) -> Build:
    """As `before_wrong`, by an attack that has what the released lab prints under each check: SHOWN, by exercise."""

    def build(lab: NotebookNode) -> NotebookNode:
        outputs = {key: cell_of(lab, f"{key}-check").outputs for key in POINTS}
        shown = {key: "".join(output.get("text", "") for output in outputs[key]) for key in POINTS}
        return before_wrong(f"SHOWN = {shown!r}\n\n\n{attack}")(lab)

    return build


def before_right(attack: str, key: str = "transfer") -> Build:
    """Right answers everywhere, and an attack that runs when the answer `key` is defined."""
    return answered(**{key: f"{attack}\n\n\n{RIGHT[key]}"})


def while_asked(attack: str) -> Build:
    """Right answers everywhere, and an attack that runs when `transfer_ms` is first asked."""
    body = "\n".join(f"        {line}" if line else "" for line in attack.splitlines())
    first = f"    if size_bytes == 0:\n{body}\n"  # the first question, and the only one of no bytes
    return answered(transfer=RIGHT["transfer"].replace("    return", f"{first}    return"))


def then(*edits: Callable[[NotebookNode], NotebookNode | None]) -> Build:
    """One edit after the other; each may change the notebook in place, or return another."""

    def build(lab: NotebookNode) -> NotebookNode:
        notebook = copy.deepcopy(lab)
        for edit in edits:
            notebook = edit(notebook) or notebook
        return notebook

    return build


def without(*ids: str) -> Build:
    """Delete cells."""

    def edit(notebook: NotebookNode) -> None:
        notebook.cells = [cell for cell in notebook.cells if cell.id not in ids]

    return then(edit)


def inserted(cell: NotebookNode, *, after: str) -> Build:
    """Put a cell after the one with that id."""

    def edit(notebook: NotebookNode) -> None:
        place = notebook.cells.index(cell_of(notebook, after)) + 1
        notebook.cells.insert(place, copy.deepcopy(cell))

    return then(edit)


def with_metadata(change: Callable[[NotebookNode], object]) -> Build:
    """Apply `change` to each cell, in place."""

    def edit(notebook: NotebookNode) -> None:
        for cell in notebook.cells:
            change(cell)

    return then(edit)


def is_graded_id(key: str) -> bool:
    """Whether a cell's id is that of an answer of the lab, or of a cell that asks or checks it."""
    return key.removesuffix("-check").removesuffix("-ask") in POINTS
