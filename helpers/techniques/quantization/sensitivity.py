"""Mixed precision: measure what each layer loses at each width, then spend a byte budget where it buys most.

    options = measure(model, score=lambda m: log(perplexity(m)))     # one unit rounded at a time
    plan = choose_bits(options, byte_budget=600_000)
    mixed = apply(model, plan)

Losses of single units are added up as if they did not meet: a forecast that the last line lets you check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ...catalog.errors import WorkbookError, require_name
from ..pareto import Path, unbeaten_paths
from .calibration import decoder_layers
from .grids import Grid
from .linears import QuantizedLinear, dense_linears, swapped

WIDTHS = (2, 4, 8)  # 3 bits are stored in 4, so they would cost what 4 bits cost


@dataclass(frozen=True)
class Option:
    """One unit at one width: what it occupies, and how much the score rises when only this unit is rounded."""

    bits: int
    nbytes: int
    loss: float


Options = Mapping[str, Sequence[Option]]


@dataclass(frozen=True)
class BitPlan:
    """A width for every unit, its bytes, and the sum of the losses, which is a forecast: measure the model itself."""

    bits: dict[str, int]
    nbytes: int
    loss: float

    def __str__(self) -> str:
        counts = {width: list(self.bits.values()).count(width) for width in sorted(set(self.bits.values()))}
        widths = ", ".join(f"{count} x {width} bits" for width, count in counts.items())
        return f"{widths}: {self.nbytes:,} B, forecast {self.loss:+.4f}"


def choose_bits(options: Options, byte_budget: int) -> BitPlan:
    """The plan with the least summed loss among those of at most `byte_budget` bytes: exact, not greedy.

    A multiple-choice knapsack. Units are added one by one; of all partial plans only those are kept that no other
    beats in both bytes and loss, and equal bytes collapse. With layers of a few shapes the front stays in the hundreds.

    >>> two = [Option(2, 50, 0.9), Option(4, 100, 0.1)]
    >>> choose_bits({"a": two, "b": [Option(2, 50, 0.2), Option(4, 100, 0.1)]}, byte_budget=150).bits
    {'a': 4, 'b': 2}
    """
    smallest = _smallest(options)
    if byte_budget < smallest:
        what, expected = f"a budget of {byte_budget:,} bytes", f"at least {smallest:,}, every unit at its smallest"
        raise WorkbookError(what, expected, f"pass byte_budget={smallest}, or measure a smaller width")
    front = [Path[int](0, 0.0)]
    for choices in options.values():
        longer = (path.then(choice.bits, choice.nbytes, choice.loss) for path in front for choice in choices)
        front = unbeaten_paths(path for path in longer if path.nbytes <= byte_budget)
    best = front[-1]  # the front falls in loss as it rises in bytes
    return BitPlan(dict(zip(options, best.choices(), strict=True)), best.nbytes, best.price)


def _smallest(options: Options) -> int:
    """The fewest bytes of any plan; an error for what could not be compared."""
    for name, choices in options.items():
        if not choices or not all(choice.nbytes >= 0 and abs(choice.loss) < float("inf") for choice in choices):
            do = "leave out a width whose score is not a number"
            raise WorkbookError(f"{name} has {list(choices)}", "options of at least 0 bytes and a finite loss", do)
    if not options:
        raise WorkbookError("no units to choose for", "at least one", "pass what measure() returned")
    return sum(min(choice.nbytes for choice in choices) for choices in options.values())


def measure(
    model: nn.Module,
    score: Callable[[nn.Module], float],
    widths: Sequence[int] = WIDTHS,
    group: int = 64,
    unit: str = "linear",
) -> dict[str, list[Option]]:
    """What every unit loses at every width: it alone is rounded to nearest and `score` (lower is better) asked.

    A unit is one linear layer, or with unit="layer" all of a decoder layer's. That is units x widths + 1 calls of
    `score`. Bytes are those of the packed storage. Rounding can help by chance: a loss may be below zero.
    """
    exact = score(model)
    options: dict[str, list[Option]] = {}
    for name, linears in units_of(model, unit).items():
        options[name] = []
        for bits in widths:
            modules = _rounded(linears, bits, group)
            nbytes = sum(module.stored.nbytes for module in modules.values())
            options[name].append(Option(bits, nbytes, score(swapped(model, modules)) - exact))
    return options


def apply(model: nn.Module, plan: BitPlan, group: int = 64) -> nn.Module:
    """A second model with every unit of the plan packed at its width; the rest is shared with `model`."""
    units = units_of(model, "linear") | units_of(model, "layer")
    modules: dict[str, nn.Module] = {}
    for name, bits in plan.bits.items():
        modules |= _rounded(units[require_name("unit", name, units)], bits, group)
    return swapped(model, modules)


def units_of(model: nn.Module, unit: str) -> dict[str, dict[str, nn.Linear]]:
    """The linear layers of each unit, all by full name."""
    linears = dense_linears(model)
    if require_name("unit", unit, ("linear", "layer")) == "linear":
        return {name: {name: linear} for name, linear in linears.items()}
    return {
        layer: {name: linear for name, linear in linears.items() if name.startswith(f"{layer}.")}
        for layer in decoder_layers(model)
    }


def _rounded(linears: Mapping[str, nn.Linear], bits: int, group: int) -> dict[str, QuantizedLinear]:
    return {name: QuantizedLinear.of(linear, Grid(bits, group)) for name, linear in linears.items()}
