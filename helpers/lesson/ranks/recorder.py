"""A black box for each rank: a file that says where it is, to be read when the rank cannot answer any more."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

from . import places

PERIOD_S = 0.05
BOX_BYTES = 4096


class Recorder:
    """Writes the place of a running call to `path` twenty times a second, and a crash to `path`.crash.

    One per process, as it wraps the two ways in which a process ends itself without a trace.
    """

    def __init__(self, path: str) -> None:
        shared = Path(path).parent.is_dir()  # on another machine it need not be
        self.file = os.open(path if shared else os.devnull, os.O_CREAT | os.O_WRONLY, 0o600)
        self.crash = open(path + ".crash" if shared else os.devnull, "w")  # noqa: SIM115 - as long as the process
        self.process, self.thread, self.running = os.getpid(), 0, threading.Event()
        faulthandler.enable(self.crash)
        os._exit, os.kill = self._noting(os._exit), self._noting(os.kill)
        threading.Thread(target=self._write_on, daemon=True, name="recorder").start()

    @contextmanager
    def during(self, function: Callable) -> Iterator[None]:
        """Record this thread while `function` runs in it."""
        self.thread = threading.get_ident()
        self.write(places.of_function(function))
        self.running.set()
        try:
            yield
        finally:
            self.running.clear()

    def note(self) -> None:
        """Write the place now. What a forked child does is not the rank's doing."""
        if self.running.is_set() and os.getpid() == self.process:
            self.write(places.of_thread(sys._current_frames().get(self.thread)))

    def _noting(self, end: Callable) -> Callable:
        @wraps(end)
        def noted(*args: object) -> object:
            self.note()
            return end(*args)

        return noted

    def _write_on(self) -> None:
        while self.running.wait():
            time.sleep(PERIOD_S)
            self.note()

    def write(self, place: places.Place) -> None:
        """() says that a call has come and its function has not begun."""
        os.pwrite(self.file, json.dumps({"at": time.time(), "place": place}).encode().ljust(BOX_BYTES), 0)
