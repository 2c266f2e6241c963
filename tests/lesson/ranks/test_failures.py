"""Ranks that fail, for real: the error says who, how and where, nothing is left, and the next call works."""

from __future__ import annotations

import re
import socket
import time

import pytest
import torch.distributed as dist

from helpers.lesson.ranks import RankError, Ranks
from tests.lesson.ranks import calls


def failed(ranks: Ranks, function, *args, **kwargs) -> RankError:
    """The error of a call that breaks the ranks; after it nothing is left, and new ones are not yet started."""
    before = calls.everything_of(ranks)
    with pytest.raises(RankError) as error:
        ranks.run(function, *args, **kwargs)
    assert calls.left_of(*before) == []
    assert repr(ranks) == "<2 ranks, stopped>"
    assert not error.value.alive
    return error.value


def test_one_raises_while_the_other_waits_for_it(ranks2):
    start = time.monotonic()
    error = failed(ranks2, calls.one_raises, timeout_s=60)
    assert time.monotonic() - start < 20, "it waits for the others' timeout"
    assert re.fullmatch(
        r'rank 1 raised ValueError: boom\n  at: calls.py line \d+, in one_raises: raise ValueError\("boom"\)',
        error.what,
    )
    assert ranks2.run(dist.get_rank) == [0, 1]


@pytest.mark.slow
def test_one_ends_its_process(ranks2):
    error = failed(ranks2, calls.one_ends_itself, 7)
    assert error.what.splitlines()[0] == "rank 1 ended its process with exit code 7"
    assert error.what.endswith("in one_ends_itself: os._exit(code)")
    assert ranks2.run(dist.get_rank) == [0, 1]


@pytest.mark.slow
def test_one_waits_in_a_collective_that_the_other_never_calls(ranks2):
    error = failed(ranks2, calls.one_collective_too_few, timeout_s=1)
    assert re.fullmatch(
        r"one_collective_too_few had not returned after 1 s on rank 0\n"
        r"  rank 0 at: calls.py line \d+, in one_collective_too_few: dist.barrier\(\)\n"
        r"  rank 1 had returned",
        error.what,
    )
    assert ranks2.run(dist.get_rank) == [0, 1]


@pytest.mark.slow
def test_ports_in_use_and_other_ranks_do_not_matter(ranks2, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # an address that answers nobody
        with Ranks(1) as others:
            assert others.run(calls.total, 1)[0].tolist() == [1, 1]
            assert ranks2.run(calls.total, 1)[0].tolist() == [3, 3]
