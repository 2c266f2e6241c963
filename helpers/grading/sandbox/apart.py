"""Answers run apart from what asks them: in a thread of their own, where the known ways to the asker's frames are shut.

A frame leads to its caller's variables, a traceback or a generator to a frame, `gc` to every object, a debugger's hook
or a signal's handler to whatever runs. `tamper_checks` names who spells that in words; here it is refused and named
whatever the spelling:

*   `f_back` ends where the answer's thread begins, and in that thread nobody can set a handler of signals.
*   While something is asked, `helpers.lesson.guard` refuses the ways to frames and to all objects to a learner's code.
    In cells of the learner's own, frames are given and named.
*   What was there before answers began is hidden from `gc` for good.
"""

from __future__ import annotations

import _thread
import contextvars
import gc
import signal
import sys
from collections.abc import Callable
from typing import Any

from ...lesson.guard import guard


class Apart:
    """Where answers run, and the guard beside them."""

    def __init__(self) -> None:
        self.guard = guard()
        self._modules: dict[str, Any] = {}
        self._finders, self._callbacks = (list(sys.meta_path), list(sys.path_hooks)), list(gc.callbacks)
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        gc.unfreeze = list  # type: ignore[assignment]  # which gives nothing back

    def began(self) -> None:
        """Answers begin: `gc` shows nobody what is there already, and the modules are those that are there now."""
        self._modules = dict(sys.modules)
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
        return [f"module {name}" for name in replaced if not name.startswith("__")]  # %run changes what is "main"
