"""Engines become ranks: numbered, with their environment set, joined in one group of torch.distributed."""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError
from . import worker
from .engines import START_S, Engines
from .follow import Call, follow
from .outcomes import Outcome
from .worker import Seat

LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)


class Group:
    """`count` joined ranks: `perform` runs a pickled function on each, `close` ends them. Raises WorkbookError."""

    def __init__(self, count: int, backend: str | None, profile: str | None) -> None:
        self._calls = itertools.count(1)
        self.engines = Engines(profile)
        self.close = self.engines.close
        try:
            self.engines.launch(count)
            self.ids, self.seats = self._seat()
            self.backend = backend or self._fitting()
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
        return self.engines.client.direct_view(list(self.ids), block=True)

    def perform(self, sent: bytes, timeout_s: float) -> list[Outcome]:
        """How the call ended on each rank; `sent` is a pickled (function, args, kwargs)."""
        number, client = next(self._calls), self.engines.client
        calls = [
            Call(
                client[engine].apply_async(worker.perform, number, _paths(), sent),
                self.engines.processes.get(seat.process),
                self._box(engine),
            )
            for engine, seat in zip(self.ids, self.seats, strict=True)
        ]
        outcomes = follow(calls, timeout_s)
        if done := [call.result for call in calls if call.result.done()]:
            client.purge_local_results(done)  # else the client keeps every result of the session
        return outcomes

    def _box(self, engine: int) -> str:
        return str(Path(self.engines.folder) / f"places-{engine}")

    def _seat(self) -> tuple[tuple[int, ...], tuple[Seat, ...]]:
        """The engines by rank, those of a machine together."""
        client = self.engines.client
        client[:].execute(f"import os, sys; os.environ['OMP_NUM_THREADS'] = '1'; sys.path[:0] = {_paths()!r}").get(
            START_S
        )
        begun = {engine: client[engine].apply_async(worker.begin, self._box(engine)) for engine in client.ids}
        seats = {engine: result.get(START_S) for engine, result in begun.items()}
        ids = sorted(seats, key=lambda engine: (seats[engine].host, engine))
        return tuple(ids), tuple(seats[engine] for engine in ids)

    def _fitting(self) -> str:
        """NCCL where every rank has a GPU of its own, else gloo on the CPU."""
        here = Counter(seat.host for seat in self.seats)
        return "nccl" if all(seat.gpus >= here[seat.host] for seat in self.seats) else "gloo"

    def _join(self) -> None:
        client, here = self.engines.client, Counter(seat.host for seat in self.seats)
        address = "127.0.0.1" if len(here) == 1 else self.seats[0].host
        store_port, free_port = client[self.ids[0]].apply_async(worker.open_store, address, len(self.ids)).get(START_S)
        shared = {"MASTER_ADDR": address, "MASTER_PORT": str(free_port), "WORLD_SIZE": str(len(self.ids))}
        if len(here) == 1 and LOOPBACK:
            shared |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": LOOPBACK}
        if self.backend == "gloo":
            shared |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        taken, results = Counter(), []
        for rank, (engine, seat) in enumerate(zip(self.ids, self.seats, strict=True)):
            mine = shared | {"RANK": str(rank), "LOCAL_RANK": str(taken[seat.host])}
            taken[seat.host] += 1
            threads = max(1, seat.cores // here[seat.host])
            results.append(client[engine].apply_async(worker.join, mine, store_port, self.backend, threads))
        for result in results:
            result.get(START_S)


def _paths() -> list[str]:
    """Where this process finds modules: a rank must find the same."""
    return [os.path.abspath(path) for path in sys.path]
