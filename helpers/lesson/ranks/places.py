"""Where a rank is in the user's code: taken in the rank, kept in a file that outlives it, told by the driver."""

from __future__ import annotations

import contextlib
import json
import linecache
import re
import sysconfig
import time
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path
from types import FrameType, TracebackType

Frame = tuple[str, int, str]  # file, line, function
Place = tuple[Frame, ...]  # the function that was sent, then the innermost frame that is no library's

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_HERE = str(Path(__file__).parent)
_METER = "__torch_dispatch__"  # a mode that counts is between the line that is meant and PyTorch
_ENTRANCE = str(Path(__file__).with_name("worker.py"))  # where the user's function is called
_CELL = re.compile(r"ipykernel_\d+[/\\]|^<ipython-input")
_DUMPED = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def of_function(function: Callable) -> Place:
    """Its first line, where it has one: before anything else is known."""
    code = getattr(function, "__code__", None)
    return () if code is None else ((code.co_filename, code.co_firstlineno, code.co_name),)


def of_thread(frame: FrameType | None) -> Place:
    """Of a running thread, given its innermost frame."""
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return _place(frames[::-1])


def of_traceback(traceback: TracebackType | None) -> Place:
    """Of an exception that was caught."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return _place(frames)


def of_crash(dumped: str) -> Place:
    """Of what faulthandler wrote when the process crashed: a stack for each thread, innermost line first."""
    stacks = ([(file, int(line), name) for file, line, name in _DUMPED.findall(one)] for one in dumped.split("\n\n"))
    return next(filter(None, (_place(stack[::-1]) for stack in stacks)), ())


def _place(frames: list[Frame]) -> Place:
    """Of all frames, outermost first: the two that tell a reader something; () outside of a call."""
    inside = list(dropwhile(lambda one: one[0] == _ENTRANCE, dropwhile(lambda one: one[0] != _ENTRANCE, frames)))
    theirs = [one for one in inside[1:] if not one[0].startswith((*_LIBRARIES, _HERE, "<")) and one[2] != _METER]
    return tuple(inside[:1] + theirs[-1:])


def recorded(path: str) -> tuple[Place, float]:
    """What a rank's Recorder wrote last to `path`, or its crash, and how many seconds ago."""
    if crashed := of_crash(_text(path + ".crash")):
        return crashed, 0.0
    for _ in range(3):  # a read may meet a write
        with contextlib.suppress(ValueError):
            found = json.loads(_text(path))
            return tuple(tuple(frame) for frame in found["place"]), time.time() - found["at"]
        time.sleep(0.01)
    return (), 0.0


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def tell(place: Place) -> str:
    """`train.py line 12, in step: dist.all_reduce(x)`; what it called after an arrow. Sources are read here."""
    return " -> ".join(map(_tell_frame, place)) or "the import of what its function needs"


def _tell_frame(frame: Frame) -> str:
    file, line, function = frame
    where = "cell" if _CELL.search(file) else Path(file).name
    source = linecache.getline(file, line).strip()
    return f"{where} line {line}, in {function}" + (f": {source}" if source else "")
