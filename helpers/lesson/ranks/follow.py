"""Waiting for the ranks of one call: answers, deaths and the clock, until it is known how each rank ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import psutil

from .outcomes import Died, Outcome, Raised, Returned, Running
from .places import recorded

POLL_S = 0.05
SETTLE_S = 0.5  # after the first failure: the others may fail too, or wait for ever for the one that did


class Call:
    """One rank's part: `result` is ipyparallel's promise, `process` its process where it is local, `box` its places."""

    def __init__(self, result: Any, process: psutil.Process | None, box: str) -> None:
        self.result, self.process, self.box = result, process, box
        self.outcome: Outcome | None = None

    def look(self) -> Outcome | None:
        """How it ended, None while it runs."""
        if self.outcome is None and self.result.done():
            self.outcome = self._answer()
        elif self.outcome is None and self.process is not None and _gone(self.process):
            self.outcome = Died(_exit_code(self.process), recorded(self.box)[0])
        return self.outcome

    def _answer(self) -> Outcome:
        import cloudpickle
        from ipyparallel.error import RemoteError

        try:
            return cloudpickle.loads(self.result.get())
        except Exception as error:
            if isinstance(error, RemoteError) and error.ename == "EngineError":  # the controller misses it
                return Died(None, recorded(self.box)[0])
            return Raised(type(error).__name__, f"its answer cannot be read here: {error}", (), time.time())


def follow(calls: Sequence[Call], timeout_s: float) -> list[Outcome]:
    """Each rank's outcome: after all ended, after `timeout_s`, or soon after one of them failed."""
    end, failed = time.monotonic() + timeout_s, False
    while (waiting := [call for call in calls if call.look() is None]) and time.monotonic() < end:
        if not failed and any(call.outcome and not isinstance(call.outcome, Returned) for call in calls):
            end, failed = min(end, time.monotonic() + SETTLE_S), True
        waiting[0].result.wait(POLL_S)
    return [call.look() or Running(*recorded(call.box)) for call in calls]


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _exit_code(process: psutil.Process) -> int | None:
    """ipyparallel's own thread waits for the process too; whoever comes second learns the code a moment later."""
    for _ in range(20):
        try:
            code = process.wait(0)
        except psutil.TimeoutExpired:
            code = None
        if code is not None:
            return int(code)
        time.sleep(POLL_S)
    return None
