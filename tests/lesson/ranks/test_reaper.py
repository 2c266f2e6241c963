"""Marked processes end with the one that started them; sleeping ones stand for engines here."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from helpers.lesson.ranks import reaper
from helpers.lesson.ranks.engines import close_if_owner, start_reaper, stop_reaper

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
DRIVER = """
import os, subprocess, sys, time
from helpers.lesson.ranks.engines import start_reaper
from helpers.lesson.ranks import reaper
mark, folder = sys.argv[1:]
watcher = start_reaper(mark, folder)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ | {reaper.MARK: mark})
forked = os.fork()  # holds the pipe open that the reaper reads
if forked:
    print(watcher.pid, forked, flush=True)
time.sleep(60)
"""


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    reaper.reap(mark, "")


def start(mark: str) -> subprocess.Popen:
    return subprocess.Popen(SLEEP, env=os.environ | {reaper.MARK: mark})


def wait_until(true, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not true():
        time.sleep(0.05)
    return true()


def running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_reap_ends_the_marked_and_no_other(mark, tmp_path):
    mine, stopped, other = start(mark), start(mark), start(uuid.uuid4().hex)
    assert wait_until(lambda: len(reaper.marked(mark)) == 2)
    stopped.send_signal(19)  # SIGSTOP: it would not heed a polite signal
    folder = tmp_path / "folder"
    (folder / "inside").mkdir(parents=True)
    reaper.reap(mark, str(folder))
    assert not folder.exists()
    assert [process.poll() is None for process in (mine, stopped, other)] == [False, False, True]
    other.kill()
    other.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_driver_leaves_no_process_and_no_folder(mark, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, mark, str(folder)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
    )
    watcher, forked = map(int, driver.stdout.readline().split())
    try:
        assert wait_until(lambda: len(reaper.marked(mark)) == 1)
        driver.kill()
        driver.wait()
        assert wait_until(lambda: not reaper.marked(mark))
        assert wait_until(lambda: not folder.exists())
        assert wait_until(lambda: not running(watcher))
    finally:
        os.kill(forked, 9)
        driver.stdout.close()


def test_the_reaper_ends_with_its_pipe_and_inherits_no_mark(mark, tmp_path, monkeypatch):
    monkeypatch.setenv(reaper.MARK, mark)  # as on a rank that starts ranks
    watcher = start_reaper(uuid.uuid4().hex, str(tmp_path / "none"))
    assert not wait_until(lambda: [p for p in reaper.marked(mark) if p.pid == watcher.pid], seconds=0.3)
    stop_reaper(watcher)
    assert watcher.returncode == 0


def test_a_forked_child_closes_nothing():
    undone = []
    for owner in (os.getpid() + 1, os.getpid()):
        undo = contextlib.ExitStack()
        undo.callback(undone.append, owner)
        close_if_owner(undo, owner)
    assert undone == [os.getpid()]
