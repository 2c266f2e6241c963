"""The number calculator: one number in every format: its bits, what is stored, how far off, and what happened to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from ...catalog.errors import require_name, require_whole
from ...catalog.floats import OVERFLOWS
from ...questions.parameter import Parameter, whole
from ...questions.parameters import POWERS
from ...questions.question import Question
from ...questions.setups import Values
from ..drawing.bits import BitRow, DrawnGrid, bit_rows, number_line
from ..drawing.pictures import Card
from ..units import plain, relative
from .answers import CalculatorAnswer
from .blocks import BLOCKS
from .calculator import VALUE, Calculator
from .stored import FORMATS, PLAIN, StoredOutcome, StoredValue, json_number, stored_as
from .typed import typed_number

LARGEST_RATIO = 2**40  # what a block's largest is of the value, at most
LOST = (
    StoredOutcome.TO_ZERO,
    StoredOutcome.TO_INF,
    StoredOutcome.TO_NAN,
    StoredOutcome.SATURATES,
    StoredOutcome.TO_LARGEST,
)


@dataclass(frozen=True)
class NumberAnswer(CalculatorAnswer):
    """One number in every format, and one of them looked at closely."""

    given: Fraction | float
    typed: str
    chosen: str
    overflow: str
    ratio: int

    @cached_property
    def rows(self) -> tuple[StoredValue, ...]:
        """Blocks are left out of infinities and NaN: what those do to a block, every implementation decides itself."""
        names = FORMATS if math.isfinite(self.given) else PLAIN
        largest = self.ratio * (abs(Fraction(self.given)) if math.isfinite(self.given) else Fraction(0))
        return tuple(stored_as(name, self.given, self.overflow, largest) for name in names)

    @property
    def row(self) -> StoredValue | None:
        """Of the chosen format."""
        return next((row for row in self.rows if row.name == self.chosen), None)

    @property
    def title(self) -> str:
        if self.row is None:
            return f"{self.typed} in {self.chosen}: no standard says what becomes of the block"
        lost = self.row.error is None or self.row.outcome is StoredOutcome.TO_ZERO
        error = "" if lost or not self.row.error else f", {relative(self.row.error)}"
        return f"{self.typed} in {self.chosen}: {plain(self.row.value)} ({self.row.happened}{error})"

    @property
    def question(self) -> Question:
        return NUMBER

    @property
    def asked(self) -> dict[str, Any]:
        return {"format": self.chosen, "overflow": self.overflow, "block_largest": self.ratio, VALUE: self.typed}

    def lines(self) -> Iterator[str]:
        """One line per format, then the chosen one's numbers."""
        for stored in self.rows:
            bits = " ".join(bits if what != "scale" else f"{bits} ×" for what, bits in stored.bits)
            error = "" if stored.error is None else relative(stored.error)
            yield f"{stored.name:<9}{bits:<35}{plain(stored.value):>15}{error:>10}   {stored.happened}".rstrip()
        if self.row is not None:
            yield ""
            yield from _limits(self.row)

    def sentences(self) -> Iterator[str]:
        """What the chosen format did, then where else the number is lost."""
        if self.row is None:
            yield "An infinity or a NaN spoils the scale of its block; what becomes of it, each implementation decides."
            return
        yield from _explained(self.row)
        lost: dict[str, list[str]] = {}
        for stored in self.rows:
            if stored.outcome in LOST and stored.name != self.chosen:
                lost.setdefault(stored.outcome, []).append(stored.name)
        for outcome, names in lost.items():
            yield f"It {outcome} in {_and(names)}."

    @property
    def cards(self) -> tuple[Card, ...]:
        rows = [
            BitRow(stored.name, stored.bits, plain(stored.value), relative(stored.error), stored.happened)
            for stored in self.rows
        ]
        first = bit_rows(self.title, rows, self.chosen)
        line = _line(self.row) if self.row else None
        return (first, line) if line else (first,)

    @property
    def figures(self) -> dict[str, Any]:
        value = self.given if not isinstance(self.given, Fraction) else float(self.given)
        return {"value": json_number(value), "formats": {stored.name: stored.figures for stored in self.rows}}


def number_answer(
    value: str | float | Fraction, format: str = "fp16", overflow: str = "ieee", block_largest: int = 1
) -> NumberAnswer:
    """`value` in every format, with `format` explained.

    `value` is a number, or text as a reader types it, taken exactly: "0.1" is a tenth, not the Python float beside it.
    `overflow` is "ieee" (what is too large becomes infinity, or NaN where there is none) or "saturate" (the largest).
    `block_largest` says how many times as large the largest value of its block is. WorkbookError for an unknown format
    and for what is no number.

    >>> answer = number_answer("0.1", "fp16")
    >>> answer.row.value, answer.row.happened, answer.row.neighbours
    (0.0999755859375, 'rounds', (0.0999755859375, 0.10003662109375))
    """
    require_name("number format", format, FORMATS)
    require_name("overflow", overflow, OVERFLOWS)
    require_whole("block_largest", block_largest, 1, LARGEST_RATIO)
    given: Fraction | float = typed_number(value)
    typed = value.strip().replace("−", "-") if isinstance(value, str) else str(value)
    return NumberAnswer(given, typed, format, overflow, block_largest)


def _limits(stored: StoredValue) -> Iterator[str]:
    """The numbers beside it, and the ends of the format; a block's are those that its scale makes."""
    (below, above), fmt, factor = stored.neighbours, stored.fmt, stored.factor
    times = f" × {plain(float(factor))}" if factor != 1 else ""
    yield _row("next below", plain(below), f"in {stored.name}")
    yield _row("next above", plain(above), "nothing is larger" if math.isinf(above) else f"in {stored.name}")
    yield _row("largest", plain(float(Fraction(fmt.largest) * factor)), f"{plain(fmt.largest)}{times}")
    yield _row(
        "smallest normal", plain(float(Fraction(fmt.smallest_normal) * factor)), _power(fmt.smallest_normal, times)
    )
    least = fmt.smallest_subnormal
    yield _row("smallest above 0", plain(float(Fraction(least) * factor)), _power(least, times))


def _row(name: str, value: str, text: str) -> str:
    return f"{name:<18}{value:>16}   {text}"


def _explained(stored: StoredValue) -> Iterator[str]:
    """What happened, why, and what it costs."""
    below, above = map(plain, stored.neighbours)
    largest = plain(stored.numbers_around(math.inf)[0])
    outcome, value, name = stored.outcome, plain(stored.value), stored.name
    if stored.scale_bits:
        yield from BLOCKS[name].sentences(stored.factor)
    if outcome is StoredOutcome.TO_ZERO:
        smallest = plain(float(Fraction(stored.fmt.smallest_subnormal) * stored.factor))
        yield f"The smallest number above 0 is {smallest} here; half of it or less becomes 0."
    elif outcome is StoredOutcome.TO_LARGEST:
        yield f"{name} has no code for NaN; NVIDIA's conversions store its largest number, {value}."
    elif outcome is StoredOutcome.SATURATES:
        yield f"It is past {largest}, the largest number of {name}, by half a step or more; {_why_cut(stored)}."
    elif outcome in (StoredOutcome.TO_INF, StoredOutcome.TO_NAN):
        missing = ", for there is no infinity" if outcome is StoredOutcome.TO_NAN else ""
        yield f"It is past {largest}, the largest number of {name}, by half a step or more: {value} is stored{missing}."
    elif outcome in (StoredOutcome.NAN, StoredOutcome.INFINITE):
        yield f"{name} has a code for it, whose exponent bits are all ones."
    elif outcome is StoredOutcome.EXACT:
        yield f"{name} holds it exactly; the numbers beside it are {below} and {above}."
    elif math.isinf(stored.neighbours[stored.given > 0]):
        yield f"It is past {value}, the largest size in {name}, by less than half a step, and is rounded to it."
    else:
        tie = ", just in the middle: the even one, whose last bit is 0, is stored" if _is_tie(stored) else ""
        yield f"It lies between {below} and {above}{tie or f'; the nearer one, {value}, is stored'}."
    if stored.is_subnormal:
        kept, all_bits = _bits_left(stored), 1 + stored.fmt.mantissa_bits
        left = f"{kept} of {all_bits} significant bits {'is' if kept == 1 else 'are'} left"
        yield f"It is below the smallest normal number, where bits are missing in front: {left}."


def _why_cut(stored: StoredValue) -> str:
    if stored.scale_bits:
        return "values of a block are clamped to it"
    return (
        "it has no code for more" if stored.fmt.specials == "none" else "overflow is set to saturate, so that is stored"
    )


def _bits_left(stored: StoredValue) -> int:
    """Significant bits of a subnormal number: from its first one on."""
    return len(stored.fmt.bits_of(stored.code)[2].lstrip("0"))


def _is_tie(stored: StoredValue) -> bool:
    below, above = stored.neighbours
    return (
        math.isfinite(below)
        and math.isfinite(above)
        and Fraction(below) + Fraction(above) == 2 * Fraction(stored.given)
    )


def _line(stored: StoredValue) -> Card | None:
    """The numbers of the format around the one that was given; None where it is no finite number."""
    if not math.isfinite(stored.given):
        return None
    numbers = {stored.value, *stored.neighbours}
    for side, number in enumerate(stored.neighbours):
        if math.isfinite(number):
            numbers.add(stored.numbers_around(number)[side])
    grid = DrawnGrid(
        tuple(sorted(number for number in numbers if math.isfinite(number))), float(stored.given), stored.value
    )
    return number_line(f"The numbers of {stored.name} around it", grid)


def _power(number: float, times: str) -> str:
    return f"2**{math.frexp(number)[1] - 1}{times}"


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def numbers(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `numbers(value="1e-8", format="bf16")`."""
    return Calculator(NUMBER, start)


def _used(values: Values) -> set[str]:
    return set(NUMBER.controls) - ({"overflow"} if values["format"] in BLOCKS else {"block_largest"})


NUMBER = Question(
    "number",
    "a number in every format: its bits, what is stored, how far off",
    number_answer,
    (
        Parameter("format", f"the one that is explained: {', '.join(FORMATS)}", "fp16").with_control("format", FORMATS),
        Parameter("overflow", f"what becomes of too large ones: {', '.join(OVERFLOWS)}", "ieee").with_control(
            "too large", OVERFLOWS
        ),
        Parameter(
            "block_largest",
            "the largest value of the number's block, as a multiple of the number",
            1,
            whole,
            metavar="N",
            label="block's largest ×",
            steps=(*POWERS, *(2**power for power in range(17, 21))),
        ),
        Parameter(
            VALUE,
            "0.1, 1e-8, 65504, 2**-24, 1/3, inf, nan",
            metavar="VALUE",
            by_position=True,
            label="number",
            steps=("0.1", "1/3", "1e-8", "2**-24", "65504", "70000", "-448", "0", "inf", "nan"),
            start="0.1",
        ),
    ),
    family=(),
    units="",
    title="A number in fewer bits",
    asks="What is stored of a number in each format?",
    invites="Type 1e-8, then 70000: which formats lose it? For mxfp4, let the block's largest grow.",
    controls=(VALUE, "format", "overflow", "block_largest"),
    used=_used,
)
