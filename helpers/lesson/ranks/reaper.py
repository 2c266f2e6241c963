"""Ends every process of a set of ranks, also when the process that started them was killed. Run as a script.

Engines, the controller and whatever they start inherit a mark in their environment. The reaper ends what carries it. It
reads a pipe that its parent holds open and never writes to: its end means that the parent stopped the ranks, or is
gone, however it went.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading

import psutil

STARTED = f"{__package__}.started"  # an event, with the numbers of processes: a guard lets them live
MARK = "WORKBOOK_RANKS"
ROUNDS = 40  # a process may be starting the next one while we look; each round waits up to a quarter of a second


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that carry the mark, except this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def reap(mark: str, folder: str) -> None:
    """Kill what carries the mark and remove the folder; nothing happens where both are gone."""
    for _ in range(ROUNDS):
        alive = marked(mark)
        if not alive:
            break
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=0.25)
    shutil.rmtree(folder, ignore_errors=True)


def wait_for_the_end(parent: int) -> None:
    """Returns when the pipe on standard input closes, or the process `parent` is no longer the parent."""
    reader = threading.Thread(target=os.read, args=(0, 1), daemon=True)
    reader.start()
    while reader.is_alive() and os.getppid() == parent:  # a forked child of the parent may hold the pipe open
        reader.join(1.0)


if __name__ == "__main__":
    wait_for_the_end(int(sys.argv[1]))
    reap(*sys.argv[2:])
