"""What failed calls look like, without any process: outcomes in, sentences out."""

from __future__ import annotations

import signal

import pytest

from helpers.lesson.ranks.errors import Died, Outcome, Raised, RankError, Returned, Running, rank_error

LINE_4 = (("train.py", 4, "step"),)
LINE_9 = (("train.py", 9, "step"), ("net.py", 2, "forward"))
FINE = Returned(1, "")
AGAIN_4 = "4 new ranks start by themselves; what was kept is lost"


def error(*outcomes: Outcome) -> RankError:
    found = rank_error(outcomes, "step", 5)
    assert found is not None
    return found


def test_all_returned_is_no_error():
    assert rank_error([FINE, FINE], "step", 5) is None


@pytest.mark.parametrize(
    "message",
    [
        "Connection closed by peer [127.0.0.1]:33018",
        "read [127.0.0.1]:33018: Connection reset by peer",
        "writev [127.0.0.1]:33018: Broken pipe",
        "[/third_party/gloo/transport/tcp/pair.cc:538] socket closed",
        "NCCL communicator was aborted on rank 0",
        "failed to recv, got 0 bytes. TCPStore is down",
        "Timed out waiting 1000ms for recv operation to complete",
    ],
)
def test_the_first_error_is_the_cause_and_a_lost_connection_is_not(message):
    closed = Raised("RuntimeError", message, LINE_4, seconds=1)
    found = error(closed, Raised("ValueError", "late", LINE_9, 3), Raised("ValueError", "boom", LINE_4, 2), closed)
    assert found.what == "rank 2 raised ValueError: boom\n  at: train.py line 4, in step"
    assert (found.ranks, found.alive) == ((2,), False)
    assert found.do == f"mend it and run the cell again: {AGAIN_4}"


def test_a_connection_that_closed_by_itself_is_the_cause():
    closed = Raised("RuntimeError", "Connection closed by peer", LINE_4, 1)
    assert error(FINE, closed).what.startswith("rank 1 raised RuntimeError: Connection closed by peer")


def test_the_same_error_everywhere_is_one_and_the_ranks_stay():
    found = error(*(Raised("NameError", f"rank {rank}", LINE_9, rank) for rank in range(2)))
    place = "train.py line 9, in step -> net.py line 2, in forward"
    assert found.what == f"every rank raised NameError: rank 0\n  at: {place}"
    assert found.alive
    assert "still there" in found.do


def test_errors_in_two_places_end_the_ranks():
    assert not error(Raised("NameError", "x", LINE_9, 1), Raised("NameError", "x", LINE_4, 2)).alive


def test_one_rank_that_returned_ends_the_ranks():
    assert not error(Raised("NameError", "x", LINE_9, 1), FINE).alive


def test_torchs_own_stack_is_left_out():
    message = "invalid tensor size\nException raised from check at Ops.cpp:12 (most recent call first):\nframe #0: x"
    assert error(FINE, Raised("RuntimeError", message, (), 1)).what == "rank 1 raised RuntimeError: invalid tensor size"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (7, "ended its process with exit code 7"),
        (0, "ended its process with exit code 0"),
        (-signal.SIGKILL, "died of SIGKILL (killed)"),
        (-signal.SIGSEGV, "died of SIGSEGV (segmentation fault)"),
        (None, "is gone: its process or its machine no longer answers"),
    ],
)
def test_the_cause_of_a_death_is_in_words(code, cause):
    found = error(FINE, Died(code, LINE_4), Raised("RuntimeError", "x", LINE_9, 0), Running(LINE_9, 0))
    assert found.what == f"rank 1 {cause}\n  last seen at: train.py line 4, in step"
    assert found.ranks == (1,)
    assert ("want of memory" in found.do) is (code == -signal.SIGKILL)
    assert found.do.endswith(AGAIN_4)


def test_a_signal_without_a_name_has_its_number():
    assert error(FINE, Died(-40, ())).what.startswith("rank 1 died of signal 40 (")


def test_a_hang_says_where_each_rank_is():
    found = error(Running(LINE_9, 0.04), FINE, Running(LINE_9, 0.01), Running(LINE_4, 3.2))
    assert found.what.splitlines() == [
        "step had not returned after 5 s on ranks 0, 2 and 3",
        "  ranks 0 and 2 at: train.py line 9, in step -> net.py line 2, in forward",
        "  rank 3 at: train.py line 4, in step (seen 3 s before; no Python has run since)",
        "  rank 1 had returned",
    ]
    assert found.ranks == (0, 2, 3)


def test_a_single_rank_is_called_the_rank():
    found = error(Running((), 0.0))
    assert found.what.splitlines() == [
        "step had not returned after 5 s on rank 0",
        "  rank 0 at: the import of what its function needs",
    ]
    assert found.expected == "step to return on the rank"
    assert "a new rank starts by itself" in found.do


def test_ipython_shows_the_message_alone():
    found = error(Died(7, ()))
    assert found._render_traceback_() == [f"RankError: {found}"]
