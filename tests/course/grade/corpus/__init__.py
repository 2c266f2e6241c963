"""Submissions that a grader must survive, as data: each builds a notebook from a released lab and knows its row.

    for case in CASES:
        hand_in(case, released_lab, path)          # nbformat's own writer would mend it
        assert not problems(case, its_result)      # helpers.course.grade.model.Result

Grade with CELL_LIMIT_S, any seed but "0", and the sandbox on: these are real attacks. `evidence` finds what they leave.
"""

from tests.course.grade.corpus import (
    dying,
    forging,
    forging_cells,
    forging_judge,
    forging_messages,
    forging_outside,
    honest,
    wrong,
)
from tests.course.grade.corpus.case import Case, hand_in, problems
from tests.course.grade.corpus.dying import CELL_LIMIT_S
from tests.course.grade.corpus.lab import LAB, lab

_MODULES = (honest, wrong, dying, forging, forging_cells, forging_messages, forging_outside, forging_judge)
CASES: tuple[Case, ...] = tuple(case for module in _MODULES for case in module.CASES)

__all__ = ["CASES", "CELL_LIMIT_S", "LAB", "Case", "hand_in", "lab", "problems"]
