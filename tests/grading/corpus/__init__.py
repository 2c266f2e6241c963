"""Submissions that a grader must survive, as data: each builds a notebook from a released lab and knows its row.

    for case in CASES:
        hand_in(case, released_lab, path)          # nbformat's own writer would mend it
        assert not problems(case, its_result)      # helpers.grading.judging.results.Result

Grade with CELL_LIMIT_S, any seed but "0", and the sandbox on: these are real attacks. `evidence` finds what they leave.
"""

from tests.grading.corpus import (
    dying,
    forging,
    forging_cells,
    forging_messages,
    forging_outside,
    forging_rows,
    honest,
    wrong,
)
from tests.grading.corpus.case import Case, hand_in, problems
from tests.grading.corpus.dying import CELL_LIMIT_S
from tests.grading.corpus.lab import LAB, lab

_MODULES = (honest, wrong, dying, forging, forging_cells, forging_messages, forging_outside, forging_rows)
CASES: tuple[Case, ...] = tuple(case for module in _MODULES for case in module.CASES)

__all__ = ["CASES", "CELL_LIMIT_S", "LAB", "Case", "hand_in", "lab", "problems"]
