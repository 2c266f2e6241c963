"""Engines become ranks: placed, joined in one group of torch.distributed, and called until each has an outcome."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from ...catalog.errors import WorkbookError
from .. import asking
from . import worker
from .engines import START_S, Engines
from .errors import Died, Outcome, Raised, Returned, Running
from .placement import Placement, by_rank, choose_backend, master_address, rank_environments, threads_per_rank
from .recorder import last_location

POLL_S = 0.05
SETTLE_S = 0.5  # after the first failure: other ranks may fail too, or wait for ever for the one that did


class Group:
    """`count` joined ranks: `call` runs a serialized function on each, `close` ends them. Raises WorkbookError."""

    def __init__(self, count: int, backend: str | None, profile: str | None) -> None:
        self._call_numbers = itertools.count(1)
        self.engines = Engines(profile)
        self.close = self.engines.close
        try:
            self.engines.launch(count)
            self.placements = self._prepare()
            self.backend = backend or choose_backend(self.placements)
            self._join()
        except BaseException as error:
            last_log_line = self.engines.last_log_line()
            self.close()
            if not isinstance(error, Exception):
                raise
            what = f"the ranks did not start: {type(error).__name__}: {error}"
            raise WorkbookError(what, f"{count} joined ranks", f"run the cell again; {last_log_line}") from None

    @property
    def view(self) -> Any:
        """An ipyparallel DirectView of the engines, in the order of ranks, that waits for what it runs."""
        return self.engines.client.direct_view([placement.engine for placement in self.placements], block=True)

    def call(self, serialized: bytes, timeout_s: float) -> list[Outcome]:
        """How a serialized (function, args, kwargs) ended on each rank."""
        number, processes, calls = next(self._call_numbers), self.engines.processes, []
        for placement in self.placements:
            sent = (number, _import_paths(), serialized, asking.lab())
            result = self._submit(placement.engine, worker.run_call, *sent)
            calls.append(PendingCall(result, processes.get(placement.process), self._recording(placement.engine)))
        return wait_for(calls, timeout_s)

    def _submit(self, engine: int, function: Callable, *args: Any) -> Any:
        return self.engines.client[engine].apply_async(function, *args)

    def _recording(self, engine: int) -> str:
        return str(Path(self.engines.folder) / f"location-{engine}")

    def _prepare(self) -> tuple[Placement, ...]:
        """The engines by rank, with torch loaded."""
        client = self.engines.client
        lines = (
            "import os, sys",
            "os.environ['OMP_NUM_THREADS'] = '1'",  # until a rank knows how many it shares its cores with
            "os.environ.setdefault('GOMP_SPINCOUNT', '1000')",  # then idle threads leave their cores to other ranks
            f"sys.path[:0] = {_import_paths()!r}",
        )
        client[:].execute("; ".join(lines)).get(START_S)
        prepared = [self._submit(engine, worker.prepare, engine, self._recording(engine)) for engine in client.ids]
        return by_rank([result.get(START_S) for result in prepared])

    def _join(self) -> None:
        placements, first = self.placements, self.placements[0].engine
        opened = self._submit(first, worker.open_store, master_address(placements), len(placements))
        store_port, free_port = opened.get(START_S)
        environments, threads = rank_environments(placements, free_port, self.backend), threads_per_rank(placements)
        joined = [
            self._submit(placement.engine, worker.join_group, environment, store_port, self.backend, cores)
            for placement, environment, cores in zip(placements, environments, threads, strict=True)
        ]
        for result in joined:
            result.get(START_S)


def _import_paths() -> list[str]:
    """Where this process finds modules: a rank must find the same."""
    return [os.path.abspath(path) for path in sys.path]


class PendingCall:
    """A call on one rank: ipyparallel's `result`, the `process` where it is local, the file of its Recorder."""

    def __init__(self, result: Any, process: psutil.Process | None, recording: str) -> None:
        self.result, self.process, self.recording = result, process, recording
        self.outcome: Outcome | None = None

    def poll(self) -> Outcome | None:
        """How it ended, None while it runs."""
        if self.outcome is None and self.result.done():
            self.outcome = self._answer()
        elif self.outcome is None and self.process is not None and _is_gone(self.process):
            self.outcome = Died(_exit_code(self.process, Path(self.recording)), last_location(self.recording)[0])
        return self.outcome

    def _answer(self) -> Outcome:
        import cloudpickle
        from ipyparallel.error import RemoteError

        try:
            return cloudpickle.loads(self.result.get())
        except Exception as error:
            if isinstance(error, RemoteError) and error.ename == "EngineError":  # the controller lost the engine
                return Died(None, last_location(self.recording)[0])
            return Raised(type(error).__name__, f"its answer cannot be read here: {error}", (), time.time())


def wait_for(calls: Sequence[PendingCall], timeout_s: float) -> list[Outcome]:
    """Each rank's outcome: when all have ended, after `timeout_s`, or half a second after the first failure."""
    end, failed = time.monotonic() + timeout_s, False
    while (waiting := [call for call in calls if call.poll() is None]) and time.monotonic() < end:
        if not failed and any(call.outcome and not isinstance(call.outcome, Returned) for call in calls):
            end, failed = min(end, time.monotonic() + SETTLE_S), True
        waiting[0].result.wait(POLL_S)
    return [call.poll() or Running(*last_location(call.recording)) for call in calls]


def _is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _exit_code(process: psutil.Process, recording: Path) -> int | None:
    """A forked engine's parent has written it down. ipyparallel's own thread waits for another, and the second waiter
    gets the code a moment later."""
    written = recording.with_name(f"exit-{process.pid}")
    for _ in range(20):
        if written.exists() and (code := written.read_text()):
            return int(code)
        try:
            waited = process.wait(0)
        except psutil.TimeoutExpired:
            waited = None
        if waited is not None:
            return int(waited)
        time.sleep(POLL_S)
    return None
