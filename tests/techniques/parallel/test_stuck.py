"""A rank that hangs or dies inside a pipeline: soon a sentence that names it, and no process left."""

from __future__ import annotations

import time

import pytest

from helpers.lesson.ranks import Ranks
from helpers.lesson.ranks.errors import RankError
from tests.lesson.ranks.test_reaper import running
from tests.techniques.parallel import pipeline_cases as cases


@pytest.mark.parametrize("stuck", [2, *(pytest.param(rank, marks=pytest.mark.all) for rank in (0, 3))])
@pytest.mark.slow
def test_a_rank_that_hangs_is_named_by_those_that_wait(stuck):
    with Ranks(4) as ranks:
        pids = ranks.run(cases.pid)
        began = time.monotonic()
        with pytest.raises(RankError, match=rf"rank {stuck} does not go on: it is at F2 on stage {stuck}") as error:
            ranks.run(cases.stops_at_stage, stuck, "hang", 3)
        assert stuck not in error.value.ranks
        assert time.monotonic() - began < 40  # the driver itself waits 60 s
        assert not any(map(running, pids))


@pytest.mark.slow
def test_a_rank_that_dies_is_named():
    with Ranks(4) as ranks:
        pids = ranks.run(cases.pid)
        began = time.monotonic()
        with pytest.raises(RankError, match="rank 1 died of SIGKILL") as error:
            ranks.run(cases.stops_at_stage, 1, "die", 30)
        assert error.value.ranks == (1,)
        assert time.monotonic() - began < 40  # the driver itself waits 60 s
        assert not any(map(running, pids))
