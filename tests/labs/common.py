"""Questions that the tests of several labs ask."""

from __future__ import annotations

from pathlib import Path

from nbformat import NotebookNode

from helpers.course import notebook as nb

ROOT = Path(__file__).resolve().parents[2]


def lab_path(number: str) -> Path:
    """solutions/NN_name.ipynb of the lab with that number."""
    return nb.find(number, ROOT, ["solutions"])[0]


def printed(lab: NotebookNode, cell_id: str) -> str:
    """What the cell's stored output says."""
    return "".join(output.text for cell in lab.cells if cell.id == cell_id for output in cell.outputs)


def source(lab: NotebookNode, cell_id: str) -> str:
    return next(cell.source for cell in lab.cells if cell.id == cell_id)
