"""How long a step takes: rooflines with named efficiencies, so every time is an interval, and none is a measurement.

A time is (low, middle, high): with the best efficiencies that were published for large runs, usual ones, and poor ones.
`Efficiency` holds them, each with its source; a reader who has measured their own passes those instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ...catalog.errors import WorkbookError


class Seconds(NamedTuple):
    """A time as an interval. The middle decides between plans; low and high say how far it may be off."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> Seconds:
        return Seconds(self.low * factor, self.middle * factor, self.high * factor)


class Shares(NamedTuple):
    """Shares of a peak rate that a run reaches: poor, usual, best."""

    poor: float
    usual: float
    best: float


@dataclass(frozen=True)
class Efficiency:
    """What share of a peak rate a run reaches. Raises WorkbookError for a share outside of 0 to 1, or out of order.

    `training_flops`: 38 to 43 % of the BF16 peak for Llama 3 405B on 8,192 and 16,384 H100 (arXiv 2407.21783, table 4);
    41.5 to 57 % for 22B to 1T on A100 (Korthikanti et al. 2022, arXiv 2205.05198, table 5). Links are counted apart,
    so what is left for the products is a little more.
    `serving_flops`, `bandwidth` and `overhead_s` (a step's fixed time): fitted to NVIDIA's table of Llama-3.3-70B in
    FP8 on two H100 with NIM, 0.468, 0.9 and 6.74 ms (NOTES.md, "One scheduler, two drivers"). That fit has no term for
    links, so its 0.468, and 0.30 and 0.65 around it, contain the all-reduces of two ranks. Counted apart, at the shares
    of `link`, they leave 0.35, 0.53 and 0.74 for the products: 85 users wait as long for a token as before.
    `link`: NCCL's ring reaches four fifths of NVLink on large messages; small ones and shared networks less. A
    convention.
    """

    training_flops: Shares = field(default=Shares(0.32, 0.45, 0.58))
    serving_flops: Shares = field(default=Shares(0.35, 0.53, 0.74))
    bandwidth: Shares = field(default=Shares(0.60, 0.80, 0.92))
    link: Shares = field(default=Shares(0.35, 0.65, 0.85))
    overhead_s: Seconds = field(default=Seconds(0.001, 0.004, 0.00674))
    collective_s: Seconds = field(default=Seconds(5e-6, 10e-6, 25e-6))  # the latency of a small all-reduce in a node

    def __post_init__(self) -> None:
        for name in ("training_flops", "serving_flops", "bandwidth", "link"):
            shares = getattr(self, name)
            if not (len(shares) == 3 and 0 < shares[0] <= shares[1] <= shares[2] <= 1):
                expected = "three shares of a peak above 0 and up to 1, the poorest first"
                raise WorkbookError(f"{name} is {tuple(shares)!r}", expected, f"pass {name}=Shares(0.3, 0.45, 0.6)")


def at(amount: float, per_s: float, shares: Shares) -> Seconds:
    """`amount` (bytes or FLOPs) at a peak rate of which a share is reached.

    >>> at(100, 100, Shares(0.25, 0.5, 1.0))
    Seconds(low=1.0, middle=2.0, high=4.0)
    """
    return Seconds(amount / per_s / shares.best, amount / per_s / shares.usual, amount / per_s / shares.poor)


def added(*times: Seconds) -> Seconds:
    return Seconds(*(sum(one) for one in zip(*times, strict=True)))


NOTHING = Seconds(0.0, 0.0, 0.0)
