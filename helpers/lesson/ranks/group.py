"""Engines become ranks: numbered, with their environment set, joined in one group of torch.distributed."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError
from . import worker
from .engines import START_S, Engines
from .follow import Call, follow
from .outcomes import Outcome
from .seating import Seat, address, by_rank, environments, fitting_backend, threads


class Group:
    """`count` joined ranks: `perform` runs a pickled function on each, `close` ends them. Raises WorkbookError."""

    def __init__(self, count: int, backend: str | None, profile: str | None) -> None:
        self._calls = itertools.count(1)
        self.engines = Engines(profile)
        self.close = self.engines.close
        try:
            self.engines.launch(count)
            self.seats = self._seat()
            self.backend = backend or fitting_backend(self.seats)
            self._join()
        except BaseException as error:
            last_words = self.engines.last_words()
            self.close()
            if not isinstance(error, Exception):
                raise
            told = f"the ranks did not start: {type(error).__name__}: {error}"
            raise WorkbookError(told, f"{count} joined ranks", f"run the cell again; {last_words}") from None

    @property
    def view(self) -> Any:
        """An ipyparallel DirectView of the engines, in the order of ranks, that waits for what it runs."""
        return self.engines.client.direct_view([seat.engine for seat in self.seats], block=True)

    def perform(self, sent: bytes, timeout_s: float) -> list[Outcome]:
        """How the call ended on each rank; `sent` is a pickled (function, args, kwargs)."""
        number, processes = next(self._calls), self.engines.processes
        calls = [
            Call(
                self._ask(seat.engine, worker.perform, number, _paths(), sent),
                processes.get(seat.process),
                self._box(seat.engine),
            )
            for seat in self.seats
        ]
        return follow(calls, timeout_s)

    def _ask(self, engine: int, function: Callable, *args: Any) -> Any:
        return self.engines.client[engine].apply_async(function, *args)

    def _box(self, engine: int) -> str:
        return str(Path(self.engines.folder) / f"places-{engine}")

    def _seat(self) -> tuple[Seat, ...]:
        """The engines by rank, with torch loaded."""
        client = self.engines.client
        prepare = f"import os, sys; os.environ['OMP_NUM_THREADS'] = '1'; sys.path[:0] = {_paths()!r}"
        client[:].execute(prepare).get(START_S)
        begun = [self._ask(engine, worker.begin, engine, self._box(engine)) for engine in client.ids]
        return by_rank([result.get(START_S) for result in begun])

    def _join(self) -> None:
        seats, first = self.seats, self.seats[0].engine
        store_port, free_port = self._ask(first, worker.open_store, address(seats), len(seats)).get(START_S)
        told = zip(environments(seats, free_port, self.backend), threads(seats), strict=True)
        orders = [(worker.join, mine, store_port, self.backend, many) for mine, many in told]
        joined = [self._ask(seat.engine, *order) for seat, order in zip(seats, orders, strict=True)]
        for result in joined:
            result.get(START_S)


def _paths() -> list[str]:
    """Where this process finds modules: a rank must find the same."""
    return [os.path.abspath(path) for path in sys.path]
