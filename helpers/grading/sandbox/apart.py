"""Answers run apart from what asks them: in a thread of their own, from which nothing leads to the asker's frames.

A frame leads to its caller's variables, a traceback or a generator to a frame, `gc` to every object, a debugger's hook
or a signal's handler to whatever runs. `tamper_checks` names who spells that in words; here it is refused and named
whatever the spelling, by the events that Python itself raises (PEP 578):

*   `f_back` ends where the answer's thread begins, and in that thread nobody can set a handler of signals.
*   While something is asked, the ways to frames and to all objects are refused to a learner's code. What libraries do
    for themselves is not. In cells of the learner's own, frames are given and named.
*   What was there before answers began is hidden from `gc` for good.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import gc
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import helpers

_HOOK, _FRAME, _ATTRIBUTE = "sys.addaudithook", "sys._getframe", "object.__getattr__"
_OF_FRAMES = (_FRAME, "sys._current_frames")
_TO_FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}  # attributes
_WATCHED = {
    *(_HOOK, _FRAME, _ATTRIBUTE, "sys._current_frames", "sys._current_exceptions", "sys.settrace", "sys.setprofile"),
    *("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys.monitoring.register_callback"),
    *("ctypes.PyObj_FromPtr", "ctypes.string_at", "ctypes.wstring_at", "ctypes.cdata"),
}
OF_THE_LAB = "<cell of the lab "  # begins the name of the file that a cell which asks is compiled as
_PASS_ON = ("/inspect.py", "/traceback.py", "/logging/__init__.py")  # functions here give frames to who calls them
_PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_LIBRARIES = (*_PATHS, str(Path(helpers.__file__).parent), "<frozen ", OF_THE_LAB)
WORDS = "an answer reached for {}, by which what asks it could be seen: it was refused"
NAMED = "a cell of the learner's own reached for {}, by which the kernel itself can be seen"


class Apart:
    """Where answers run. `reached` says what they reached for, in words, since it was emptied."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self._asking = False
        self._looking: set[int] = set()  # threads in which an event is being looked at
        self._modules: dict[str, Any] = {}
        self._finders, self._callbacks = (list(sys.meta_path), list(sys.path_hooks)), list(gc.callbacks)
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        gc.unfreeze = list  # type: ignore[assignment]  # which gives nothing back
        sys.addaudithook(self._heard)

    def began(self) -> None:
        """Answers begin: `gc` shows nobody what is there already, and the modules are those that are there now."""
        self._modules = dict(sys.modules)
        gc.collect()
        gc.freeze()

    def run(self, ask: Callable[[], str]) -> str:
        """`ask()` in a thread of its own; what it raised is raised here."""
        done = _thread.allocate_lock()
        found: list[str | BaseException] = []
        done.acquire()

        def answer() -> None:
            try:
                found.append(ask())
            except BaseException as error:
                found.append(error)
            finally:
                done.release()

        _thread.start_new_thread(contextvars.copy_context().run, (answer,))
        done.acquire()
        (value,) = found
        if isinstance(value, BaseException):
            raise value
        return value

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While it lasts, what leads to the asker is refused."""
        self._asking = True
        try:
            yield
        finally:
            self._asking = False

    def put_back(self) -> list[str]:
        """What else runs beside an answer, as it was: modules, finders, callbacks, handlers. The modules, in words."""
        replaced = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        sys.modules.update({name: self._modules[name] for name in replaced})
        sys.meta_path[:], sys.path_hooks[:] = self._finders
        gc.callbacks[:] = self._callbacks
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler or signal.SIG_DFL)  # None is one of C, which is gone
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        return [f"module {name}" for name in replaced]

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _WATCHED or not (self._asking or event in (_HOOK, *_OF_FRAMES)):
            return
        if event == _HOOK:
            raise RuntimeError("hooks of audit events cannot be added here")
        thread = _thread.get_ident()
        if thread in self._looking or (event == _ATTRIBUTE and arguments[1] not in _TO_FRAMES):
            return
        self._looking.add(thread)
        try:
            learners = _is_learners(sys._getframe(1))
        finally:
            self._looking.discard(thread)
        what = arguments[1] if event == _ATTRIBUTE else event
        if learners and not self._asking:
            self.reached.append(NAMED.format(what))
        elif learners:
            self.reached.append(WORDS.format(what))
            raise RuntimeError(f"{what} is not for answers")


def _is_learners(frame: FrameType | None) -> bool:
    """Whether the code in `frame` is no library's, or is one that gives frames to code that is none, or to nobody."""
    file = frame.f_code.co_filename if frame is not None else ""
    if frame is None or not file.startswith(_LIBRARIES):
        return True
    back = frame.f_back
    return file.endswith(_PASS_ON) and (back is None or not back.f_code.co_filename.startswith(_LIBRARIES))
