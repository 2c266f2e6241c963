"""Cells that run once, and trials in forks: each sees what ran before, none sees another, and a bad end costs one."""

from __future__ import annotations

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course.forked_cells import CellRun, Trial, run_in_forks

TWICE = "def twice(x):\n    return 2 * x"
ASK = "print(twice(4))\nassert twice(1) == 2, f'twice(1) is 2, not {twice(1)}'"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One process, with a trial for each way to end."""
    trials = [
        Trial(("def twice(x):\n    return x", ASK, "print('later')")),
        Trial(("def twice(x):\n    return x", ASK, "print('later')"), until="twice(1) is 2"),
        Trial((ASK,)),
        Trial(("while True: pass", ASK)),
        Trial(("import os\nos._exit(0)", ASK)),
        Trial(("input()",)),
        Trial(("def twice(x)",)),
        Trial(("print(seed)\n'a value'\ndisplay('shown')",)),
    ]
    before = ["import os\nseed = os.environ['WORKBOOK_SEED']", TWICE, ASK]
    return run_in_forks(tmp_path_factory.mktemp("cells"), before, trials, seed="7", limit_s=5)


def test_the_cells_before_ran_once_and_printed(ran):
    assert ran.before == (CellRun(""), CellRun(""), CellRun("8\n"))


def test_a_trial_replaces_what_was_there_and_goes_on_after_an_error(ran):
    asked = CellRun("4\n", "AssertionError: twice(1) is 2, not 1")
    assert ran.trials[0] == (CellRun(""), asked, CellRun("later\n"))
    assert ran.trials[1] == (CellRun(""), asked), "it ends with the words that were waited for"


def test_the_next_trial_sees_nothing_of_it(ran):
    assert ran.trials[2] == (CellRun("8\n"),)


def test_who_hangs_or_dies_fails_in_every_cell_and_costs_no_other_trial(ran):
    assert [run.error for run in ran.trials[3]] == ["TimedOut: more than 5 seconds"] * 2
    assert [run.error for run in ran.trials[4]] == ["ProcessDied: the process ended"] * 2
    assert ran.trials[5][0].error.startswith("EOFError")
    assert ran.trials[6][0].error.startswith("SyntaxError")


def test_what_is_shown_is_not_printed(ran):
    assert ran.trials[7] == (CellRun("7\n"),)


def test_no_trial_is_made_of_cells_that_fail(tmp_path):
    ran = run_in_forks(tmp_path, ["1 / 0", "print('never')"], [Trial(("print('never')",))])
    assert ran.before == (CellRun("", "ZeroDivisionError: division by zero"),)
    assert ran.trials == ()


def test_a_process_that_ends_is_an_error(tmp_path):
    with pytest.raises(WorkbookError, match="ended with status 3"):
        run_in_forks(tmp_path, ["import os\nos._exit(3)"])


RANKS = """
import torch
import torch.distributed as dist
from helpers.lesson.ranks import Ranks

ranks = Ranks(2, timeout_s=20)

def summed(x):
    both = torch.tensor([float(x + dist.get_rank())])
    dist.all_reduce(both)
    return both.item(), dist.get_rank()

def one_fails():
    if dist.get_rank() == 1:
        raise ValueError("rank one's own words")
    dist.barrier()
"""


@pytest.mark.slow
def test_ranks_are_forks_that_meet_and_tell_their_error(tmp_path):
    trials = [Trial(("print(ranks.run(summed, 3))",)), Trial(("ranks.run(one_fails)",)), Trial(("print(ranks)",))]
    ran = run_in_forks(tmp_path, [RANKS, "print(ranks.run(summed, 1))"], trials)
    assert ran.before[1] == CellRun("[(3.0, 0), (3.0, 1)]\n")
    assert ran.trials[0] == (CellRun("[(7.0, 0), (7.0, 1)]\n"),)
    assert ran.trials[1] == (CellRun("", "RuntimeError: rank 1 raised ValueError: rank one's own words"),)
