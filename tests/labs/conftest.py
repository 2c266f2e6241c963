"""What the tests of one lab share: a test module says `LAB = lab_path("05")`, and asks for these."""

from __future__ import annotations

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb


@pytest.fixture(scope="module")
def lab(request):
    return nb.read(request.module.LAB)


@pytest.fixture(scope="module")
def names(lab):
    """What the lab's cells define, checks left out."""
    defined: dict = {}
    for cell in lab.cells:
        if cell.cell_type == "code" and not lab_cells.is_check(cell) and cell.id != "find-helpers":
            exec(cell.source, defined)
    return defined
