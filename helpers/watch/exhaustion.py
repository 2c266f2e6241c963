"""When a card will be full: a robust slope through the latest samples, with an interval, or the word that it is steady.

The slope is Theil and Sen's, the median over all pairs of samples of the slope between the two, so that a third of the
samples may be anything. Its interval is Sen's (1968, doi.org/10.1080/01621459.1968.10480934), widened where samples
resemble their neighbours: the variance of Kendall's statistic grows by (1 + r) / (1 - r), with r the correlation of
neighbouring residuals, as it does for the mean of a first-order autoregression. Without that, a sawtooth would pass for
growth. Memory grows only when the whole interval lies above zero.

A step up of 2 % of the card or more is a jump, somebody has loaded a model, and samples from before it say nothing
about what follows; unless the window has three such steps, which are growth in large pieces. A step down does not
shorten the window, or else each tooth of a caching allocator's sawtooth would look like a leak.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, floor, inf, sqrt
from statistics import fmean, median

from ..catalog.errors import WorkbookError, require_whole
from ..memory.breakdown import format_bytes

LEAST_SAMPLES = 20
MOST_POINTS = 240  # more are thinned to as many medians: the pairs of 240 take ten milliseconds
JUMP_SHARE = 0.02  # of the card; the largest segment that PyTorch's allocator rounds to is 2 MiB, far below
STEPS_OF_GROWTH = 3
Z95 = 1.96  # of the normal distribution, for 95 %
Samples = Sequence[tuple[float, float]]


class Trend(StrEnum):
    GROWING = "growing"
    STEADY = "steady"
    TOO_SHORT = "too short to tell"


@dataclass(frozen=True)
class Forecast:
    """The slope in bytes a second with its 95 % interval, and the seconds until `total_bytes` are used.

    Seconds count from the last sample, and are infinite unless the trend is growing. `earliest_s` goes with the
    steepest slope and the upper edge of the noise, `latest_s` with the flattest slope. `samples` is how many were used.
    """

    trend: Trend
    slope: float = 0.0
    low: float = 0.0
    high: float = 0.0
    earliest_s: float = inf
    expected_s: float = inf
    latest_s: float = inf
    samples: int = 0

    def __str__(self) -> str:
        if self.trend is not Trend.GROWING:
            return str(self.trend)
        times = (
            f"{format_seconds(self.expected_s)} ({format_seconds(self.earliest_s)} to {format_seconds(self.latest_s)})"
        )
        return f"growing by {format_bytes(self.slope * 60)} a minute, full in {times}"


def forecast(samples: Iterable[tuple[float, float]], total_bytes: int) -> Forecast:
    """What the samples, oldest first, say about the time at which `total_bytes` are used.

    >>> leak = [(second, 2**30 + second * 2**20) for second in range(60)]
    >>> print(forecast(leak, 2 * 2**30))
    growing by 60.00 MiB a minute, full in 16 min 5 s (16 min 5 s to 16 min 5 s)

    WorkbookError for a total that is no whole number of bytes from 1 up.
    """
    require_whole("total_bytes", total_bytes, 1, unit="bytes")
    since = after_last_jump(list(samples), total_bytes)
    if len(since) < LEAST_SAMPLES:
        return Forecast(Trend.TOO_SHORT, samples=len(since))
    points = thinned(since)
    slope, low, high = theil_sen(points)
    trend = Trend.GROWING if low > 0 else Trend.STEADY
    if trend is Trend.STEADY:
        return Forecast(trend, slope, low, high, samples=len(since))
    now = since[-1][0]
    levels = sorted(value - slope * (time - now) for time, value in points)
    room, least_room = (max(0.0, total_bytes - level) for level in (median(levels), levels[int(0.95 * len(levels))]))
    return Forecast(trend, slope, low, high, least_room / high, room / slope, room / low, len(since))


def after_last_jump(samples: Samples, total_bytes: int) -> Samples:
    """The samples from the last jump on; all of them where there is none, or where jumps are how the counter grows."""
    least = JUMP_SHARE * total_bytes
    jumps = [index for index, ((_, before), (_, after)) in enumerate(pairwise(samples), 1) if after - before >= least]
    return samples[jumps[-1] :] if 0 < len(jumps) < STEPS_OF_GROWTH else samples


def thinned(samples: Samples, most: int = MOST_POINTS) -> Samples:
    """At most `most` points: the median time and value of as many runs of neighbouring samples."""
    if len(samples) <= most:
        return samples
    edges = [index * len(samples) // most for index in range(most + 1)]
    runs = [samples[start:end] for start, end in pairwise(edges)]
    return [(median(time for time, _ in run), median(value for _, value in run)) for run in runs]


def theil_sen(points: Samples) -> tuple[float, float, float]:
    """The median slope over all pairs, and the ends of its 95 % interval.

    >>> theil_sen([(0, 0), (1, 2), (2, 4), (3, 60), (4, 8)])[0]
    2.0
    """
    count = len(points)
    if count < 2:
        raise WorkbookError(f"{count} samples", "two or more, for a slope", "wait for the next sample")
    slopes = sorted(
        (points[j][1] - points[i][1]) / (points[j][0] - points[i][0]) for i in range(count) for j in range(i + 1, count)
    )
    slope = median(slopes)
    likeness = neighbour_correlation([value - slope * time for time, value in points])
    variance = count * (count - 1) * (2 * count + 5) / 18 * (1 + likeness) / (1 - likeness)
    spread = Z95 * sqrt(variance)
    low, high = floor((len(slopes) - spread) / 2), ceil((len(slopes) + spread) / 2)
    return slope, slopes[low] if low >= 0 else -inf, slopes[high] if high < len(slopes) else inf


def neighbour_correlation(residuals: Sequence[float]) -> float:
    """How much a residual resembles the one before it: 0 for noise, towards 1 for a slow wave. Never below 0."""
    mean = fmean(residuals)
    centred = [residual - mean for residual in residuals]
    variance = sum(value * value for value in centred)
    if variance <= 1e-18 * max(1.0, mean * mean):  # a straight line: what is left is rounding
        return 0.0
    together = sum(one * other for one, other in pairwise(centred))
    return min(max(together / variance, 0.0), 0.999)


def format_seconds(seconds: float) -> str:
    """Seconds as people read them.

    >>> format_seconds(341), format_seconds(7200), format_seconds(12.4), format_seconds(float("inf"))
    ('5 min 41 s', '2 h 0 min', '12 s', 'never')
    """
    if seconds == inf:
        return "never"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 100 * 3600 else f"{whole // 86400} days"
