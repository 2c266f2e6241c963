"""The calculator of ranges: a whole tensor in every format, as it is and times a scale: what is lost at either end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...catalog.errors import require_name, require_whole
from ...catalog.floats import FLOAT_FORMATS
from ...questions.parameter import Parameter, whole
from ...questions.question import UNKNOWN, Question
from ..drawing.pictures import Card
from ..drawing.ranges import RangeRow, ranges
from ..units import share_of_all
from .answers import CalculatorAnswer
from .calculator import Calculator
from .histograms import Fates, Histogram, Reach, histogram_of, stored_histograms
from .stored import PLAIN

MOST_SCALE = 200  # its power of two


@dataclass(frozen=True)
class TensorNumbersAnswer(CalculatorAnswer):
    """What each format loses of a tensor's values other than 0, before and after they are multiplied by 2**`scale`."""

    tensor: Histogram
    chosen: str
    scale: int

    @cached_property
    def reaches(self) -> dict[str, Reach]:
        return {name: Reach.of(FLOAT_FORMATS[name]) for name in PLAIN}

    def fates(self, name: str, scale: int) -> Fates:
        return Fates.of(self.tensor, self.reaches[name], scale)

    @property
    def largest_scale(self) -> int:
        """The power of two at which the largest value comes into the highest one of the format."""
        return self.reaches[self.chosen].most - self.tensor.span[1]

    @property
    def title(self) -> str:
        now, before = (self.fates(self.chosen, scale).zero for scale in (self.scale, 0))
        times = f" × 2**{self.scale}" if self.scale else ""
        without = f", {share_of_all(before)} without the scale" if self.scale else ""
        return f"{self.tensor.name}{times} in {self.chosen}: {share_of_all(now)} become 0{without}"

    @property
    def question(self) -> Question:
        return TENSOR

    @property
    def asked(self) -> dict[str, Any]:
        stored = stored_histograms().get(self.tensor.name) == self.tensor
        return {"tensor": self.tensor.name if stored else UNKNOWN, "format": self.chosen, "scale": self.scale}

    def lines(self) -> Iterator[str]:
        """One line per format: what it holds, and what is lost as the tensor is, and times the scale."""
        yield f"{'':<10}{'powers of two':<16}{'as it is':^31}{f'times 2**{self.scale}':^35}".rstrip()
        heads = "".join(f"{head:>11}" for head in ("to 0", "subnormal", "too large"))
        yield f"{'':<24}{heads}{heads}"
        for name, reach in self.reaches.items():
            shares = (self.fates(name, scale) for scale in (0, self.scale))
            told = "".join(
                f"{share_of_all(x):>11}" for fate in shares for x in (fate.zero, fate.subnormal, fate.too_large)
            )
            yield f"{name:<10}{f'{reach.least} to {reach.most}':<14}{told}"
        if self.tensor.source:
            yield ""
            yield from (f"{self.tensor.nonzero:,} values other than 0:", *self.tensor.source.split("; "))

    def sentences(self) -> Iterator[str]:
        """How wide the tensor is beside the format, the best scale, and what the edge hides."""
        (low, high), reach, now = self.tensor.span, self.reaches[self.chosen], self.fates(self.chosen, self.scale)
        wide, holds = high - low + 1, reach.most - reach.least + 1
        yield f"The values lie in {wide} powers of two, from 2**{low} to 2**{high}; {self.chosen} tells {holds} apart."
        best = self.fates(self.chosen, self.largest_scale)
        lost = f"{share_of_all(best.zero)} become 0 then" if best.zero else "none becomes 0 then"
        reached = f"Times 2**{self.largest_scale} the largest comes into the highest of these"
        yield f"{reached}: {lost}, and with a larger scale values are too large."
        if now.at_the_edge:
            largest = f"{FLOAT_FORMATS[self.chosen].largest:.6g}"
            share = share_of_all(now.at_the_edge)
            yield f"{share} lie in that power of two now, where what is past {largest} is too large as well."
        if self.tensor.zeros:
            yield f"{self.tensor.zeros:,} values that were 0 before are not counted."

    @property
    def cards(self) -> tuple[Card, ...]:
        now, before = (self._shares(scale) for scale in (self.scale, 0))
        reach = self.reaches[self.chosen]
        fates = {power: reach.fate(power) for power in now}
        rows = [self._row(name) for name in self.reaches]
        return (ranges(self.title, now, before, fates, rows, self.chosen),)

    def _shares(self, scale: int) -> dict[int, float]:
        return {power + scale: count / self.tensor.nonzero for power, count in self.tensor.counts.items()}

    def _row(self, name: str) -> RangeRow:
        reach, now = self.reaches[name], self.fates(name, self.scale)
        shares = {"becomes 0": now.zero, "subnormal": now.subnormal, "too large": now.too_large}
        return RangeRow(name, reach.least, reach.normal, reach.most, shares)

    @property
    def figures(self) -> dict[str, Any]:
        def told(name: str, scale: int) -> dict[str, float]:
            now = self.fates(name, scale)
            return {"becomes_0": now.zero, "subnormal": now.subnormal, "too_large": now.too_large} | {
                "at_the_edge": now.at_the_edge
            }

        return {
            "values": self.tensor.nonzero,
            "zeros": self.tensor.zeros,
            "span": list(self.tensor.span),
            "scale": self.scale,
            "formats": {name: {"as_it_is": told(name, 0), "scaled": told(name, self.scale)} for name in self.reaches},
        }


def tensor_answer(tensor: str | Histogram, format: str = "fp16", scale: int = 0) -> TensorNumbersAnswer:
    """What each format loses of `tensor`, a stored one's name or a `Histogram`, as it is and times 2**`scale`.

    A value becomes 0 below half of the format's smallest number, and is too large in powers of two above that of its
    largest. One scale for all: for blocks with scales of their own see `numbers`. WorkbookError for an unknown name.

    >>> answer = tensor_answer("activation gradients", "fp16", scale=16)
    >>> [round(answer.fates("fp16", scale).zero, 2) for scale in (0, 16)]
    [0.54, 0.09]
    """
    found = histogram_of(tensor)
    require_name("float format", format, PLAIN)
    require_whole("scale", scale, -MOST_SCALE, MOST_SCALE, unit="powers of two")
    return TensorNumbersAnswer(found, format, scale)


def tensor_numbers(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls, and brings a tensor of your own:
    `tensor_numbers(tensor=Histogram.of("my gradients", values), format="bf16")`."""
    return Calculator(TENSOR, start)


TENSOR = Question(
    "tensor",
    "a tensor in every format: what becomes 0, what is too large",
    tensor_answer,
    (
        Parameter(
            "tensor",
            f"of the small model: {', '.join(stored_histograms())}",
            metavar="TENSOR",
            by_position=True,
            label="tensor",
            steps=tuple(stored_histograms()),
            start="activation gradients",
        ),
        Parameter("format", f"the one that is explained: {', '.join(PLAIN)}", "fp16").with_control("format", PLAIN),
        Parameter("scale", "power of two that it is multiplied by", 0, whole).with_control(
            "scale 2 to the", tuple(range(-16, 41))
        ),
    ),
    family=(),
    units="",
    title="A tensor in fewer bits",
    asks="How much of a tensor is lost in each format?",
    invites="Move the scale until values are too large: how many still become 0? Then the same for weight gradients.",
    controls=("tensor", "format", "scale"),
)
