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
    return defined_by(lab)


def defined_by(lab) -> dict:
    """What the lab's cells define: what is given, the worked answers, the checks' own instruments."""
    defined: dict = {}
    for cell in lab.cells:
        if (lab_cells.is_given(cell) or lab_cells.is_answer(cell)) and cell.id != "find-helpers":
            exec(cell.source, defined)
    return defined
