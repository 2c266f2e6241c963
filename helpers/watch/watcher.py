"""The watcher: reads a source once an interval, keeps a ring for each card, and says what it thinks of each.

A step of `JUMP_SHARE` of the card within one interval is an event (so is a card that goes or comes back); the latest
few are kept. What a watcher holds does not grow with the time that it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from ..catalog.errors import WorkbookError, require_whole
from ..memory.breakdown import format_bytes
from .exhaustion import JUMP_SHARE, Forecast, Trend, forecast
from .samples import Reading, Ring, Source
from .torch_counters import TorchCounters

KEPT_EVENTS = 20
WINDOW = 600  # samples: ten minutes at one a second


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


class EventKind(StrEnum):
    JUMP = "jump"
    LOST = "lost"
    FOUND = "found"


@dataclass(frozen=True)
class Event:
    """Something that happened to a card at a moment; `change_bytes` is the height of a jump, `reason` a lost card's."""

    time_s: float
    gpu: int
    kind: EventKind
    change_bytes: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.kind is EventKind.JUMP:
            sign = "+" if self.change_bytes > 0 else ""
            return f"GPU {self.gpu} jumped by {sign}{format_bytes(self.change_bytes)}"
        return f"GPU {self.gpu} {'answers again' if self.kind is EventKind.FOUND else f'is lost: {self.reason}'}"


@dataclass(frozen=True)
class Thresholds:
    """Shares of the card, and the seconds to its exhaustion, from which on a card is worth a warning or an alarm."""

    warning_share: float = 0.90
    critical_share: float = 0.95
    warning_s: float = 3600.0
    critical_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.warning_share < self.critical_share <= 1:
            what = f"thresholds of {self.warning_share} and {self.critical_share}"
            raise WorkbookError(what, "shares of the card, 0 < warning < critical <= 1", "pass 0.90 and 0.95")
        if not 0 < self.critical_s < self.warning_s:
            what = f"thresholds of {self.warning_s} and {self.critical_s} s to exhaustion"
            raise WorkbookError(what, "seconds, 0 < critical < warning", "pass warning_s=3600, critical_s=600")

    def severity(self, reading: Reading, expected: Forecast) -> Severity:
        """How bad a card's state is; a lost card is critical."""
        if reading.lost or not reading.total_bytes:
            return Severity.CRITICAL
        share = reading.used_bytes / reading.total_bytes
        if share >= self.critical_share or expected.expected_s <= self.critical_s:
            return Severity.CRITICAL
        if share >= self.warning_share or expected.expected_s <= self.warning_s:
            return Severity.WARNING
        return Severity.OK


@dataclass(frozen=True)
class CardState:
    """A card as the view and the exporter show it: its reading, its forecast, and the processes that opted in."""

    reading: Reading
    forecast: Forecast
    severity: Severity
    processes: tuple[TorchCounters, ...]
    history: tuple[int, ...]


class Watcher:
    """Samples a source; `states()` says what is known now. `counters` reads those of processes that opted in."""

    def __init__(
        self,
        source: Source,
        thresholds: Thresholds | None = None,
        window: int = WINDOW,
        counters: Callable[[], list[TorchCounters]] = list,
    ) -> None:
        require_whole("window", window, 2, unit="samples")
        self.source, self.thresholds, self.window = source, thresholds or Thresholds(), window
        self.events: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self.samples = 0
        self.jumps: dict[int, int] = {}
        self._counters, self._rings = counters, dict[int, Ring]()
        self._readings: dict[int, Reading] = {}
        self._lock = Lock()  # an exporter asks from threads of its own

    def sample(self, time_s: float) -> None:
        """Take one reading of every card. A lost card's samples are dropped: it will come back with other memory."""
        readings = self.source.read(time_s)
        with self._lock:
            self.samples += 1
            for reading in readings:
                self._note(time_s, self._readings.get(reading.gpu), reading)
                self._keep(time_s, reading)

    def states(self) -> list[CardState]:
        processes = self._counters()
        with self._lock:
            return [self._state(gpu, processes) for gpu in sorted(self._readings)]

    def _keep(self, time_s: float, reading: Reading) -> None:
        self._readings[reading.gpu] = reading
        ring = self._rings.setdefault(reading.gpu, Ring(self.window))
        if reading.lost:
            ring.clear()
        else:
            ring.add(time_s, reading.used_bytes)

    def _state(self, gpu: int, processes: list[TorchCounters]) -> CardState:
        reading, samples = self._readings[gpu], list(self._rings[gpu])
        known = bool(samples and reading.total_bytes)
        expected = forecast(samples, reading.total_bytes) if known else Forecast(Trend.TOO_SHORT)
        mine = tuple(one for one in processes if one.uuid == reading.uuid)
        history = tuple(used for _, used in samples)
        return CardState(reading, expected, self.thresholds.severity(reading, expected), mine, history)

    def _note(self, time_s: float, before: Reading | None, now: Reading) -> None:
        if now.lost:
            if before is None or not before.lost:
                self.events.append(Event(time_s, now.gpu, EventKind.LOST, reason=now.lost))
            return
        if before is None:
            return
        if before.lost:
            self.events.append(Event(time_s, now.gpu, EventKind.FOUND))
            return
        change = now.used_bytes - before.used_bytes
        if abs(change) >= JUMP_SHARE * now.total_bytes:
            self.jumps[now.gpu] = self.jumps.get(now.gpu, 0) + 1
            self.events.append(Event(time_s, now.gpu, EventKind.JUMP, change))
