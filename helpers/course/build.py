"""`workbook build`: run notebooks in a fresh kernel and store the outputs that nbval compares."""

from __future__ import annotations

import copy
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from . import notebook as nb
from .kernel import error_in, kernel
from .lint import findings

FOLDERS = (*nb.BOOK, "solutions")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class CellFailedError(Exception):
    """A cell raised, hung or killed the kernel: its number, first line and message, ready to print."""

    def __init__(self, number: int, source: str, error: NotebookNode) -> None:
        super().__init__(f"cell [{number}] {nb.first_line(source)!r}\n  {error.ename}: {error.evalue}")


@dataclass(frozen=True)
class Execution:
    """A notebook that ran to its end, and the wall seconds of each code cell by its number."""

    notebook: NotebookNode
    cell_seconds: dict[int, float]

    def slowest(self, count: int = 3) -> str:
        """The slowest cells, e.g. '[7] 3.2 s, [4] 1.1 s'; cells under 0.1 s are left out."""
        ranked = sorted(self.cell_seconds.items(), key=lambda item: -item[1])
        return ", ".join(f"[{n}] {s:.1f} s" for n, s in ranked[:count] if s >= 0.1)


def build(names: list[str], root: Path) -> int:
    """Run the named notebooks (all for an empty list) and store their outputs; 0 when all ran and keep lint's rules.

    A name is a chapter's number ('02': the chapter, its companion and its worked lab), 'A' for the appendix, a file's
    stem or a path. An unknown one is a WorkbookError before anything runs. A notebook whose cell fails is reported and
    left as it was.
    """
    paths = [path for name in names for path in nb.find(name, root, FOLDERS)] or nb.find_all(root, FOLDERS)
    if not paths:
        raise nb.none_there(root, FOLDERS)
    results = [_build_one(path, root) for path in dict.fromkeys(paths)]
    return 0 if all(results) else 1


def execute(notebook: NotebookNode, folder: Path, *, seed: str = "0") -> Execution:
    """Run a copy of `notebook` in `folder`. CellFailedError at the first failing cell."""
    done, seconds = copy.deepcopy(notebook), {}
    with kernel(folder, seed=seed) as run:
        for number, cell in nb.code_cells(done):
            start = time.perf_counter()
            cell.outputs, cell.execution_count = run(cell.source), number
            seconds[number] = time.perf_counter() - start
            error = error_in(cell.outputs)
            if error is not None and not nb.tags(cell) & nb.RAISES_TAGS:
                raise CellFailedError(number, cell.source, error)
    return Execution(done, seconds)


def clean(notebook: NotebookNode, root: Path) -> None:
    """Keep only what is the same on every machine and in every run; in place."""
    own = {key: value for key, value in notebook.metadata.items() if key == "workbook"}
    notebook.metadata = NotebookNode(
        own, kernelspec={"name": "python3", "display_name": "Python 3"}, language_info={"name": "python"}
    )
    for cell in notebook.cells:
        cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in nb.KEPT_CELL_METADATA})
        if cell.cell_type == "code":
            cell.outputs = [kept for output in cell.outputs if (kept := _clean_output(output, cell, root))]


def _build_one(path: Path, root: Path) -> bool:
    label = path.relative_to(root) if path.is_relative_to(root) else path
    start = time.perf_counter()
    try:
        execution = execute(nb.read(path), path.parent)
    except CellFailedError as failure:
        print(f"✗ {label}: {failure}\n  the file is unchanged", file=sys.stderr)
        return False
    clean(execution.notebook, root)
    state = "stored" if nb.write(path, execution.notebook) else "unchanged"
    slowest = execution.slowest()
    timing = f"{time.perf_counter() - start:.1f} s" + (f", slowest {slowest}" if slowest else "")
    broken = findings(execution.notebook, path)
    print(f"{'✗' if broken else '✓'} {label}: {state}, {timing}")
    print(*(f"  cell {one.cell}: {one.rule}: {one.message}" for one in broken), sep="\n", end="\n" * bool(broken))
    return not broken


def _clean_output(output: NotebookNode, cell: NotebookNode, root: Path) -> NotebookNode | None:
    """The output to store, or None. A widget's view needs a live kernel: only picture and text are stored."""
    ignored = nb.IGNORE_TAG in nb.tags(cell)
    if output.output_type == "execute_result":
        output.execution_count = cell.execution_count
    if output.output_type == "error":
        output.traceback = [f"{output.ename}: {output.evalue}"]  # the frames hold this machine's paths
    was_widget = "data" in output and output.data.pop(WIDGET_VIEW, None) is not None
    if was_widget and ignored and set(output.data) <= {"text/plain"}:
        return None  # only the widget's repr is left; in a compared cell nbval compares it, so it stays
    # Paths in a compared cell must stay visible to lint: rewriting them would only move the failure to nbval.
    return _without_paths(output, root) if ignored else output


def _without_paths(output: NotebookNode, root: Path) -> NotebookNode:
    def shorten(value: str) -> str:
        return value.replace(f"{root}/", "").replace(str(root), ".").replace(f"{Path.home()}/", "~/")

    if output.output_type == "stream":
        output.text = shorten(output.text)
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = shorten(value)
    return output
