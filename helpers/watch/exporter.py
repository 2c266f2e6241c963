"""What Prometheus reads: every metric with its name, its labels and its meaning, served over HTTP.

Names follow Prometheus' conventions: base units (bytes, seconds, ratios), the unit last, `_total` for what only
counts up. A forecast that does not exist is a metric that is absent, never a large number. The text and the server are
prometheus_client's, which escapes labels and speaks both exposition formats; JupyterLab brings it along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..catalog.errors import WorkbookError, require_package, require_whole
from .exhaustion import Trend
from .watcher import CardState, Watcher

Labelled = tuple[tuple[str, ...], float]
BOUNDS = ("earliest", "expected", "latest")


@dataclass(frozen=True)
class Metric:
    """A metric: `samples(state)` yields a card's label values beyond the first, `gpu`, each with its value."""

    name: str
    text: str
    samples: Callable[[CardState], Iterator[Labelled]]
    labels: tuple[str, ...] = ()
    counts_up: bool = False


def _present(value: Callable[[CardState], float | None]) -> Callable[[CardState], Iterator[Labelled]]:
    """One sample of a card that answers and has the value."""

    def samples(state: CardState) -> Iterator[Labelled]:
        found = None if state.reading.lost else value(state)
        if found is not None:
            yield (), found

    return samples


def _up(state: CardState) -> Iterator[Labelled]:
    yield (state.reading.uuid, state.reading.name), 0.0 if state.reading.lost else 1.0


def _exhaustion(state: CardState) -> Iterator[Labelled]:
    if state.forecast.trend is Trend.GROWING:
        times = (state.forecast.earliest_s, state.forecast.expected_s, state.forecast.latest_s)
        yield from (((bound,), seconds) for bound, seconds in zip(BOUNDS, times, strict=True))


def _growth(state: CardState) -> float | None:
    return None if state.forecast.trend is Trend.TOO_SHORT else state.forecast.slope


def _of_processes(field: str) -> Callable[[CardState], Iterator[Labelled]]:
    def samples(state: CardState) -> Iterator[Labelled]:
        yield from (((str(one.pid),), getattr(one, field)) for one in state.processes)

    return samples


PID = ("pid",)
METRICS = (
    Metric("gpu_up", "1 while the card answers, 0 once it is lost", _up, ("uuid", "name")),
    Metric(
        "gpu_memory_used_bytes", "memory in use, by everybody and the driver", _present(lambda s: s.reading.used_bytes)
    ),
    Metric("gpu_memory_total_bytes", "memory of the card", _present(lambda s: s.reading.total_bytes)),
    Metric(
        "gpu_utilization_ratio",
        "share of time in which a kernel ran, 0 to 1",
        _present(lambda s: s.reading.utilization),
    ),
    Metric("gpu_memory_growth_bytes_per_second", "Theil-Sen slope of memory in use", _present(_growth)),
    Metric(
        "gpu_memory_exhaustion_seconds", "until the card is full; absent unless memory grows", _exhaustion, ("bound",)
    ),
    Metric("torch_memory_allocated_bytes", "tensors, as PyTorch counts them", _of_processes("allocated_bytes"), PID),
    Metric("torch_memory_reserved_bytes", "segments that PyTorch holds", _of_processes("reserved_bytes"), PID),
    Metric("torch_memory_allocated_peak_bytes", "most allocated bytes so far", _of_processes("peak_bytes"), PID),
    Metric(
        "torch_memory_alloc_retries_total",
        "times the cache was freed for room",
        _of_processes("alloc_retries"),
        PID,
        True,
    ),
    Metric("torch_memory_oom_total", "out-of-memory errors", _of_processes("ooms"), PID, True),
)
SAMPLES_TOTAL = "gpu_watch_samples_total"
JUMPS_TOTAL = "gpu_memory_jumps_total"
SERVED = frozenset({*(metric.name for metric in METRICS), SAMPLES_TOTAL, JUMPS_TOTAL})


class Collector:
    """A collector for any registry of prometheus_client: reads the watcher whenever Prometheus asks."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher, self._core = watcher, _prometheus("prometheus_client.core")

    def collect(self) -> Iterator[Any]:
        states = self.watcher.states()
        for metric in METRICS:
            family = self._family(metric.name, metric.text, ("gpu", *metric.labels), metric.counts_up)
            for state in states:
                for labels, value in metric.samples(state):
                    family.add_metric([str(state.reading.gpu), *labels], value)
            yield family
        jumps = self._family(JUMPS_TOTAL, "steps of memory in use by 2 % of the card or more", ("gpu",), True)
        for state in states:
            jumps.add_metric([str(state.reading.gpu)], self.watcher.jumps.get(state.reading.gpu, 0))
        yield jumps
        samples = self._family(SAMPLES_TOTAL, "readings that the watcher has taken", (), True)
        samples.add_metric([], self.watcher.samples)
        yield samples

    def _family(self, name: str, text: str, labels: tuple[str, ...], counts_up: bool) -> Any:
        kind = self._core.CounterMetricFamily if counts_up else self._core.GaugeMetricFamily
        return kind(name, text, labels=labels)


def exposition(watcher: Watcher) -> str:
    """All metrics in Prometheus' text format, as the server gives them."""
    text: bytes = _prometheus().generate_latest(_registry(watcher))
    return text.decode()


def serve_metrics(watcher: Watcher, port: int, address: str = "127.0.0.1") -> tuple[int, Callable[[], None]]:
    """Serve the metrics at /metrics from a thread; returns the port, any free one for 0, and a function that ends it.

    WorkbookError where the port is taken.
    """
    require_whole("port", port, 0, 65535)
    try:
        server, thread = _prometheus().start_http_server(port, address, _registry(watcher))
    except OSError as error:
        what = f"port {port} of {address} cannot be opened: {error.strerror or error}"
        raise WorkbookError(what, "a free port of this machine", "pass another --port, or 0 for any") from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), end


def _registry(watcher: Watcher) -> Any:
    registry = _prometheus().CollectorRegistry()
    registry.register(Collector(watcher))
    return registry


def _prometheus(module: str = "prometheus_client") -> ModuleType:
    return require_package(module, "the exporter", "python -m pip install prometheus-client")
