"""Ranks under everything that happens to a notebook: kills, crashes, hangs of each kind, drivers that die."""

from __future__ import annotations

import _thread
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from helpers.lesson.ranks import RankError, Ranks
from tests.lesson.ranks import calls

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


HUNG = "{} had not returned after 2 s on rank 1"
FAILURES = [  # what happened, the line it is at
    (calls.crashes, (), "rank 1 died of SIGSEGV (segmentation fault)", "ctypes.string_at(0)"),
    (calls.holds_the_interpreter, (), HUNG, ""),
]
OTHER_FAILURES = [
    (calls.one_is_killed, (signal.SIGKILL,), "rank 1 died of SIGKILL (killed)", "os.kill(os.getpid(), sig)"),
    (calls.one_is_killed, (signal.SIGABRT,), "rank 1 died of SIGABRT (aborted)", "os.kill(os.getpid(), sig)"),
    (calls.one_sleeps, (60,), HUNG, "time.sleep(seconds)"),
    (calls.one_loops, (), HUNG, ""),
]


def for_a_night(cases):
    return [pytest.param(*case, marks=pytest.mark.all) for case in cases]


@pytest.mark.parametrize(("function", "args", "happened", "line"), FAILURES + for_a_night(OTHER_FAILURES))
def test_each_failure_is_told(ranks2, function, args, happened, line):
    before, name = calls.everything_of(ranks2), function.__name__
    with pytest.raises(RankError) as error:
        ranks2.run(function, *args, timeout_s=2)
    lines = error.value.what.splitlines()
    assert lines[0] == happened.format(name)
    assert re.search(rf"calls.py line \d+, in {name}: {re.escape(line)}", lines[1])
    assert lines[2:] == (["  rank 0 had returned"] if happened is HUNG else [])
    assert ("no Python has run since" in lines[1]) is (function is calls.holds_the_interpreter)
    assert calls.left_of(*before) == []
    assert ranks2.run(dist.get_rank) == [0, 1]


@pytest.mark.parametrize(
    ("sig", "told"),
    [
        pytest.param(signal.SIGKILL, "rank 1 died of SIGKILL (killed)", marks=pytest.mark.all),
        (signal.SIGSTOP, "one_sleeps had not returned after 3 s on rank 1"),
    ],
)
def test_a_rank_that_is_killed_or_stopped_from_outside(ranks2, sig, told):
    rank_1 = ranks2.run(os.getpid)[1]
    threading.Timer(1, os.kill, (rank_1, sig)).start()
    with pytest.raises(RankError) as error:
        ranks2.run(calls.one_sleeps, 60, timeout_s=3)
    assert error.value.what.startswith(told)
    assert "in one_sleeps: time.sleep(seconds)" in error.value.what
    assert not psutil.pid_exists(rank_1) or psutil.Process(rank_1).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def interruptible():
    """Whoever started the tests, an interrupt arrives."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_ranks_and_the_next_call_works(ranks2, interruptible):
    before = calls.everything_of(ranks2)
    threading.Timer(0.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        ranks2.run(calls.one_sleeps, 60)
    assert calls.left_of(*before) == []
    assert ranks2.run(dist.get_rank) == [0, 1]


def test_a_function_that_has_not_begun_is_not_told_by_the_call_before(ranks2, tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import os, time\n\nif 'RANK' in os.environ:\n    time.sleep(60)\n\ndef f(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import slow_to_import

    ranks2.run(calls.greet)
    with pytest.raises(RankError, match="\n  every rank at: the import of what its function needs"):
        ranks2.run(slow_to_import.f, timeout_s=1)


def test_what_a_rank_starts_ends_with_it(ranks2):
    def start() -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True).pid

    started = ranks2.run(start)
    ranks2.stop()
    assert not [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def test_a_forgotten_set_of_ranks_is_ended():
    ranks = Ranks(1)
    before = calls.everything_of(ranks)
    del ranks
    assert calls.left_of(*before) == []


# A process started in the background of a shell ignores SIGINT, and so do its children: they are told not to.
DRIVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from helpers.lesson.ranks import Ranks
from tests.lesson.ranks import calls
ranks = Ranks(2)
print(*calls.everything_of(ranks), flush=True)
{then}
"""
ENDS = {
    "killed while it waits": ("time.sleep(60)", signal.SIGKILL, -signal.SIGKILL),
    "killed in a call": ("ranks.run(calls.one_sleeps, 60)", signal.SIGKILL, -signal.SIGKILL),
    "terminated": ("time.sleep(60)", signal.SIGTERM, -signal.SIGTERM),
    "interrupted": ("ranks.run(calls.one_sleeps, 60)", signal.SIGINT, -signal.SIGINT),
    "its last line": ("", None, 0),
    "an error": ("1 / 0", None, 1),
    "os._exit": ("import os; os._exit(5)", None, 5),
}


OFTEN = ["killed in a call", "interrupted", "its last line"]


@pytest.mark.parametrize("name", OFTEN + for_a_night([name] for name in ENDS if name not in OFTEN))
def test_however_the_driver_ends_nothing_is_left(name):
    then, sig, code = ENDS[name]
    driver = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", DRIVER.format(then=then)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        before = driver.stdout.readline().split()
        if sig is not None:
            time.sleep(0.5)
            driver.send_signal(sig)
        _, complaints = driver.communicate(timeout=20)
    finally:
        driver.kill()
    assert driver.returncode == code
    assert ("Traceback" in complaints) is (name in ("interrupted", "an error"))
    assert code == 1 or sig == signal.SIGINT or complaints == ""
    end = time.monotonic() + 10
    while calls.left_of(*before) and time.monotonic() < end:
        time.sleep(0.1)
    assert calls.left_of(*before) == []
