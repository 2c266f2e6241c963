"""Predict, measure, explain: a guess that is kept, a table that compares, a check that can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, isnan
from typing import TYPE_CHECKING

from ..catalog.errors import WorkbookError, require_name
from ..memory.breakdown import format_bytes
from . import notes
from .plain import as_number, shown
from .units import signed_percent

if TYPE_CHECKING:
    from ..memory.budget import TrainBudget
    from ..memory.meter.timeline import Measurement
    from ..memory.trace import Trace

    Predicted = float | TrainBudget | Trace

SIZES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB": 10**9}
TIMES_AND_RATES = {
    "minutes": 60,
    "s": 1,
    "ms": 1e-3,
    "µs": 1e-6,
    "GB/s": 1e9,
    "TB/s": 1e12,
    "GFLOP/s": 1e9,
    "TFLOP/s": 1e12,
}
COUNTS = ("FLOPs per byte", "tokens", "tokens/s", "×", "bits", "perplexity", "dollars", "months")
WHOLE = ("layers", "micro-batches", "sequences", "users", "requests", "collectives", "cards", "steps")
UNITS = {**SIZES, **TIMES_AND_RATES, **dict.fromkeys(COUNTS + WHOLE, 1), "%": 0.01}


MANY_TIMES = 9  # times too much, from where on a percentage says nothing


@dataclass(frozen=True)
class Prediction:
    """What the reader said before measuring: `guess` in `unit`, or None."""

    question: str
    unit: str
    guess: float | None

    @property
    def value(self) -> float | None:
        """The guess in bytes, seconds, or whatever one of `unit` is without its prefix; None where there is none."""
        guess = as_number(self.guess)
        return None if guess is None else guess * UNITS[self.unit]


def predict(question: str, unit: str = "MiB", guess: float | None = None) -> Prediction:
    """Commit to a number before measuring it. Leave `guess=None` to go on without one.

    What is no number, or below 0, is no guess: a line says how to write one, and the chapter goes on without. NumPy's
    and PyTorch's numbers are numbers.

    `unit` is one of bytes, KiB, MiB, GiB, GB, minutes, s, ms, µs, GB/s, TB/s, GFLOP/s, TFLOP/s, FLOPs per byte, tokens,
    tokens/s, ×, bits, %, perplexity, dollars, months, layers, micro-batches, sequences, users, requests, collectives,
    cards, steps; another is a WorkbookError.

    >>> predict("peak of one training step", "GiB", guess=16).value
    Your guess, peak of one training step: 16 GiB
    17179869184
    """
    require_name("unit", unit, UNITS)
    number = as_number(guess)
    if guess is None:
        print(f"{question}, in {unit}: no guess yet. Put a number in place of None and run this cell again.")
    elif number is None or not isfinite(number) or number < 0:
        number = None
        print(f"{shown(guess, 40)} is not a number of {unit} from 0 up, so you have no guess yet.")
        print("Write it as in guess=512 or guess=0.5, and run this cell again. You can also go on without.")
    else:
        print(f"Your guess, {question}: {number:g} {unit}")
    notes.predicted(question, unit, number)
    return Prediction(question, unit, number)


def compare(
    measured: float | Measurement,
    unit: str = "MiB",
    called: str = "measured",
    libraries: int = 0,
    remarks: Mapping[float, str] | None = None,
    **predicted: Predicted | Prediction | None,
) -> None:
    """Print what was predicted beside what was measured, each with its distance from the measurement.

    `remarks` are sentences for kinds of guesses: below the table stands that of the least number, in `unit`, that the
    reader's guess does not exceed. Nothing is said where there is no guess.

    Values are bytes, or a measured step beside its budget or trace, whose peaks are meant; seconds, bytes per second
    and so on where `unit` is one of those. `unit` is only how they are printed. A skipped guess prints a dash. `called`
    names the last row where the truth is no measurement: "datasheet". Where the truth is 0 a distance is in `unit`, in
    points for %; where it is not finite there is none. WorkbookError for a truth that is no number; a prediction that
    is none has a line that says so.

    Of a step that was measured on a GPU, tensors and libraries are two tables. Every prediction, a guess or plain bytes
    too, is of tensors. What a budget or a trace for this card predicts of the libraries stands in the second table, or,
    where there is neither, `libraries` from `catalog.library_bytes(detect())`. On a CPU there is no second table.

    >>> compare(200 * 2**20, you=None, formula=199 * 2**20)
                     MiB   off by
    you                –
    formula        199.0  −0.50 %
    measured       200.0
    """
    require_name("unit", unit, UNITS)
    size, unseen = _truth(measured), getattr(measured, "unseen_bytes", 0)
    guesses = {name: _predicted(value) for name, value in predicted.items()}
    _table("tensors" if unseen else "", size, guesses, unit, called)
    for name, value in predicted.items():
        if isinstance(value, Prediction) and guesses[name] is not None:
            notes.compared(value.question, _share(guesses[name], size))
        if not isinstance(value, Prediction | None) and guesses[name] is None:
            print(f"{name} is {shown(value, 40)}, which is no number. A guess is made by predict(..., guess=512).")
    if remarks and (said := _remark(remarks, guesses, predicted, unit)):
        print(said)
    if unseen:
        found = {name: getattr(value, "library_bytes", None) for name, value in predicted.items()}
        by_card = {name: size_bytes for name, size_bytes in found.items() if size_bytes is not None}
        by_card = by_card or {"formula": libraries}
        _table("libraries", unseen, {name: size_bytes or None for name, size_bytes in by_card.items()}, unit, called)


def _remark(
    remarks: Mapping[float, str], guesses: Mapping[str, float | None], predicted: Mapping[str, object], unit: str
) -> str:
    """The sentence for the reader's guess, "" without one."""
    own = next((guesses[name] for name, value in predicted.items() if isinstance(value, Prediction)), None)
    fitting = [] if own is None else [most for most in sorted(remarks) if own <= most * UNITS[unit]]
    return remarks[fitting[0]] if fitting else ""


def _table(title: str, size: float, guesses: Mapping[str, float | None], unit: str, called: str) -> None:
    digits = 1 if unit in SIZES else 2
    width = max(9, *(len(name) + 1 for name in (title, called, *guesses)))
    print(f"{title:{width}}{unit:>11}   off by")
    for name, guess in guesses.items():
        told = "–" if guess is None else _in_unit(guess, unit, digits)
        print(f"{name:{width}}{told:>11}  {_distance(guess, size, unit, digits)}".rstrip())
    print(f"{called:{width}}{_in_unit(size, unit, digits):>11}")
    if size == 0 and any(guesses.values()):
        print(f"The truth is 0, and no percentage of it says anything: the distance is in {_points(unit)}.")


def _share(guess: float | None, truth: float) -> float | None:
    """How far the guess is above the truth, as a share of its size; None where there is no such share."""
    if guess is None or isnan(guess) or not isfinite(truth):
        return None
    if truth == 0:
        return None if guess else 0.0
    off = guess / truth - 1
    return off if truth > 0 else -off


def _distance(guess: float | None, truth: float, unit: str, digits: int) -> str:
    share = _share(guess, truth)
    if share is not None and share < MANY_TIMES:
        return signed_percent(share)
    if share is not None:
        return f"{_number(share + 1, 0)} times as much"
    if guess is None or isnan(guess) or truth != 0:
        return ""
    return f"{'−' if guess < 0 else '+'}{_number(abs(guess) / UNITS[unit], digits)} {_points(unit)}"


def _points(unit: str) -> str:
    return "points" if unit == "%" else unit


def _in_unit(value: float, unit: str, digits: int) -> str:
    """The number in `unit`; without decimals where things are counted and it is whole."""
    whole = unit in (*WHOLE, "tokens") and float(value).is_integer()
    return _number(value / UNITS[unit], 0 if whole else digits)


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if abs(value) < 1e15 else f"{value:.3g}"


def check(
    label: str,
    measured: float | Measurement,
    predicted: Predicted,
    rel: float,
    unit: str | None = None,
    libraries: int = 0,
    called: str = "measured",
) -> None:
    """Hold a measurement against a prediction: print ✓ and the distance, or raise AssertionError.

    Both are bytes, or a measured step and its budget or trace: then the peaks of tensors are compared. WorkbookError
    unless both are finite numbers and the measurement is above 0. `rel` is the allowed distance as a fraction of the
    measurement. With a `unit` such as "ms" both are in what that unit is without its prefix (seconds), and printed in
    it. `called` names the truth where it is no measurement: "traced", "published".

    What a GPU's libraries took has a line of its own, beside what the budget, the trace or `libraries` predicts for the
    card (as in `compare`). It never raises: it depends on the versions of CUDA and PyTorch, too.

    >>> check("weights", measured=1000, predicted=1004, rel=0.005)
    ✓ weights: predicted 1004 B, measured 1000 B, off by +0.40 % (allowed ±0.5 %)
    """
    if unit is not None:
        require_name("unit", unit, UNITS)
    size, guess = _peak(measured), _predicted(predicted)
    if guess is None or size is None or not (isfinite(size) and isfinite(guess)) or size <= 0:
        what = f"measured {shown(measured, 40)} against predicted {shown(predicted, 40)}"
        raise WorkbookError(what, "two finite numbers, measured above zero", "look at the cell that made them")
    off = guess / size - 1
    distance = f"off by {signed_percent(off)} (allowed ±{rel * 100:g} %)"
    verdict = f"{label}: predicted {_size(guess, unit)}, {called} {_size(size, unit)}, {distance}"
    if abs(off) > rel:
        raise AssertionError(f"✗ {verdict}")
    print(f"✓ {verdict}")
    if unseen := getattr(measured, "unseen_bytes", 0):
        print(_told_of_libraries(unseen, getattr(predicted, "library_bytes", libraries), rel))


def _told_of_libraries(unseen: int, predicted: int, rel: float) -> str:
    if not predicted:
        return f"○ libraries: measured {_size(unseen, None)}; nothing predicts them where no card is named"
    off = predicted / unseen - 1
    sizes = f"predicted {_size(predicted, None)}, measured {_size(unseen, None)}"
    told = f"libraries: {sizes}, off by {signed_percent(off)}"
    return f"✓ {told}" if abs(off) <= rel else f"○ {told}: temporaries inside kernels, or other versions"


def check_speed(
    label: str, measured: float, predicted: float, rel: float, unit: str, again: Callable[[], tuple[float, float]]
) -> None:
    """Hold a speed or a time against its forecast. Never raises for it: other work may have had the machine meanwhile.

    Where the two are further apart than `rel`, `again()` measures both once more, twice at most; then a sentence says
    that this machine is busy. Numbers and `unit` as in `check`.

    >>> check_speed("copy", 13e9, 17e9, rel=0.25, unit="GB/s", again=lambda: (16e9, 17e9))
    ✓ copy: predicted 17.00 GB/s, measured 16.00 GB/s, off by +6.25 % (allowed ±25 %)
    """
    for attempt in range(3):
        if attempt:
            measured, predicted = again()
        try:
            check(label, measured, predicted, rel, unit)
        except AssertionError as problem:
            verdict = str(problem).removeprefix("✗ ")
        else:
            return
    print(f"○ {verdict}")
    print("  Measured three times: other work keeps this machine busy. Run the cell again when it is quiet.")


def _truth(value: float | Measurement) -> float:
    size = _peak(value)
    if size is None:
        expected = "a number, or a step that was measured, counted or traced"
        raise WorkbookError(f"the truth is {shown(value, 40)}", expected, "look at the cell that made it")
    return size


def _peak(value: object) -> float | None:
    """The peak of its tensors, of what tells them apart; else the peak, of what has one. A number is what it is."""
    number = as_number(value)
    if number is not None:
        return number
    return as_number(getattr(value, "tensor_bytes", getattr(value, "peak_bytes", None)))


def _predicted(value: object) -> float | None:
    return as_number(value.value) if isinstance(value, Prediction) else _peak(value)


def _size(size_bytes: float, unit: str | None) -> str:
    if unit is not None:
        return f"{_number(size_bytes / UNITS[unit], 2)} {unit}"
    return f"{size_bytes:.0f} B" if size_bytes < 10_000 else format_bytes(size_bytes)
