"""Cards that nobody owns: invented series of used memory, seeded, for tests and to see the view without a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ..catalog.errors import require_name, require_whole
from .samples import Reading

MIB = 2**20
TOTAL_BYTES = 80 * 2**30
PERIOD_S = 90.0
JUMP_AT_S = 300.0


def leak(time_s: float, noise: float) -> float:
    """Half of the card, and 20 MiB a second that nobody frees; noise of 200 MiB."""
    return TOTAL_BYTES / 2 + 20 * MIB * time_s + 200 * MIB * noise


def sawtooth(time_s: float, noise: float) -> float:
    """A caching allocator whose cache fills for 90 s and is emptied: 30 to 54 GiB."""
    return (30 + 24 * (time_s % PERIOD_S) / PERIOD_S) * 2**30 + 50 * MIB * noise


def jump(time_s: float, noise: float) -> float:
    """A second model is loaded after five minutes: 20 GiB, then 50."""
    return (20 if time_s < JUMP_AT_S else 50) * 2**30 + 50 * MIB * noise


def steady(time_s: float, noise: float) -> float:
    """A server whose pool was allocated at its start."""
    return 72 * 2**30 + 50 * MIB * noise


SERIES: dict[str, Callable[[float, float], float]] = {
    function.__name__: function for function in (leak, sawtooth, jump, steady)
}


def series(name: str, seconds: int, seed: int = 0, every_s: float = 1.0) -> list[tuple[float, int]]:
    """Samples of one of `SERIES`, the same for the same seed. WorkbookError for a name that is not there."""
    require_whole("seconds", seconds, 1, unit="samples")
    drawn, value = random.Random(seed), SERIES[require_name("series", name, SERIES)]
    return [(step * every_s, int(value(step * every_s, drawn.gauss(0, 1)))) for step in range(seconds)]


@dataclass
class SimulatedCard:
    """A source with one card, whose used memory follows one of `SERIES` from the first reading on."""

    series: str
    seed: int = 0
    _drawn: random.Random = field(init=False, repr=False)
    _start_s: float | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        require_name("series", self.series, SERIES)
        self._drawn = random.Random(self.seed)

    def read(self, time_s: float) -> tuple[Reading, ...]:
        if self._start_s is None:
            self._start_s = time_s
        used = SERIES[self.series](time_s - self._start_s, self._drawn.gauss(0, 1))
        used_bytes = min(max(int(used), 0), TOTAL_BYTES)
        return (Reading(0, "simulated", f"simulated: {self.series}", used_bytes, TOTAL_BYTES, 0.9),)
