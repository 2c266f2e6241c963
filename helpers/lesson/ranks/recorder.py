"""Where a rank is in the user's code, recorded in a file that can still be read when the rank no longer answers.

The rank records with `Recorder`; the driver reads with `last_location` and prints with `format_location`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import linecache
import os
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import dropwhile
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType

CodeLine = tuple[str, int, str]  # file, line, function
Location = tuple[CodeLine, ...]  # the function that was sent, then the innermost line outside of libraries; or empty

PERIOD_S = 0.05
RECORDING_BYTES = 4096
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).parent)
_WORKER = str(Path(__file__).with_name("worker.py"))  # calls the user's function
_METER = "__torch_dispatch__"  # a mode that counts bytes stands between the user's line and PyTorch
_CELL = re.compile(r"ipykernel_\d+[/\\]|^<ipython-input")
_DUMPED_LINE = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


class Recorder:
    """Writes the location of a running call to `path` every 50 ms, and the stack of a crash to `path`.crash.

    One per process: it wraps `os._exit` and `os.kill`, with which a process can end without a trace.
    """

    def __init__(self, path: str) -> None:
        shared = Path(path).parent.is_dir()  # on another machine it need not be
        self.file = os.open(path if shared else os.devnull, os.O_CREAT | os.O_WRONLY, 0o600)
        self.crash = open(path + ".crash" if shared else os.devnull, "w")  # noqa: SIM115 - as long as the process
        self.process, self.thread, self.running = os.getpid(), 0, threading.Event()
        faulthandler.enable(self.crash)
        for name in ("_exit", "kill"):
            setattr(os, name, self._recorded_before(getattr(os, name)))
        threading.Thread(target=self._record_periodically, daemon=True, name="recorder").start()

    @contextmanager
    def during(self, function: Callable) -> Iterator[None]:
        """Record this thread while `function` runs in it."""
        self.thread = threading.get_ident()
        self.write(location_of_function(function))
        self.running.set()
        try:
            yield
        finally:
            self.running.clear()

    def record(self) -> None:
        """Write the location now; a forked child writes nothing, for it is not the rank."""
        if self.running.is_set() and os.getpid() == self.process:
            self.write(location_of_thread(sys._current_frames().get(self.thread)))

    def write(self, location: Location) -> None:
        """An empty location means that a call was received and its function has not started."""
        os.pwrite(self.file, json.dumps({"at": time.time(), "location": location}).encode().ljust(RECORDING_BYTES), 0)

    def _recorded_before(self, end: Callable) -> Callable:
        @wraps(end)
        def recorded(*args: object) -> object:
            self.record()
            return end(*args)

        return recorded

    def _record_periodically(self) -> None:
        while self.running.wait():
            time.sleep(PERIOD_S)
            self.record()


def location_of_function(function: Callable) -> Location:
    """The function's first line; empty for one that is not written in Python."""
    code = getattr(function, "__code__", None)
    return () if code is None else ((code.co_filename, code.co_firstlineno, code.co_name),)


def location_of_thread(innermost: FrameType | None) -> Location:
    """From the innermost frame of a running thread."""
    stack = [] if innermost is None else [_code_line(frame, line) for frame, line in walk_stack(innermost)]
    return location_in(stack[::-1])


def location_of_traceback(traceback: TracebackType | None) -> Location:
    """Where a caught exception was raised."""
    return location_in([_code_line(frame, line) for frame, line in walk_tb(traceback)])


def _code_line(frame: FrameType, line: int) -> CodeLine:
    return frame.f_code.co_filename, line, frame.f_code.co_name


def location_of_crash(dump: str) -> Location:
    """From what faulthandler wrote: a stack for each thread, innermost line first."""
    for thread in dump.split("\n\n"):
        stack = [(file, int(line), name) for file, line, name in _DUMPED_LINE.findall(thread)]
        if location := location_in(stack[::-1]):
            return location
    return ()


def location_in(stack: list[CodeLine]) -> Location:
    """The two lines of a stack, outermost first, that help a reader; empty outside of a call."""
    from_worker = dropwhile(lambda line: line[0] != _WORKER, stack)
    called = list(dropwhile(lambda line: line[0] == _WORKER, from_worker))
    users = [line for line in called[1:] if not line[0].startswith((*_LIBRARIES, _PACKAGE, "<")) and line[2] != _METER]
    return tuple(called[:1] + users[-1:])


def last_location(path: str) -> tuple[Location, float]:
    """What a rank's Recorder wrote last to `path`, or where it crashed, and how many seconds ago."""
    if crashed := location_of_crash(_text(path + ".crash")):
        return crashed, 0.0
    for _ in range(3):  # a read may overlap a write
        with contextlib.suppress(ValueError):
            found = json.loads(_text(path))
            return tuple(tuple(line) for line in found["location"]), time.time() - found["at"]
        time.sleep(0.01)
    return (), 0.0


def format_location(location: Location) -> str:
    """`train.py line 12, in step: dist.all_reduce(x)`, and after an arrow what it called. Reads the sources here."""
    return " -> ".join(map(_format_line, location)) or "the import of what its function needs"


def _format_line(code_line: CodeLine) -> str:
    file, line, function = code_line
    name = "cell" if _CELL.search(file) else Path(file).name
    source = linecache.getline(file, line).strip()
    return f"{name} line {line}, in {function}" + (f": {source}" if source else "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
