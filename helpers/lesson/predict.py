"""Predict, measure, explain: a guess that is kept, a table that compares, a check that can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from ..catalog.errors import WorkbookError, require_name
from ..memory.closed_form.breakdown import format_bytes
from . import notes
from .units import signed_percent

if TYPE_CHECKING:
    from ..memory.closed_form.budget import TrainBudget
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
WHOLE = ("layers", "micro-batches", "sequences", "users", "requests", "collectives", "cards")
UNITS = {**SIZES, **TIMES_AND_RATES, **dict.fromkeys(COUNTS + WHOLE, 1), "%": 0.01}


@dataclass(frozen=True)
class Prediction:
    """What the reader said before measuring: `guess` in `unit`, or None."""

    question: str
    unit: str
    guess: float | None

    @property
    def value(self) -> float | None:
        """The guess in bytes, seconds, or whatever one of `unit` is without its prefix; None where there is none."""
        return None if self.guess is None else self.guess * UNITS[self.unit]


def predict(question: str, unit: str = "MiB", guess: float | None = None) -> Prediction:
    """Commit to a number before measuring it. Leave `guess=None` to go on without one.

    `unit` is one of bytes, KiB, MiB, GiB, GB, minutes, s, ms, µs, GB/s, TB/s, GFLOP/s, TFLOP/s, FLOPs per byte, tokens,
    tokens/s, ×, bits, %, perplexity, dollars, months, layers, micro-batches, sequences, users, requests, collectives,
    cards. Raises WorkbookError for a guess that is no number.

    >>> predict("peak of one training step", "GiB", guess=16).value
    Your guess, peak of one training step: 16 GiB
    17179869184
    """
    require_name("unit", unit, UNITS)
    if guess is None:
        print(f"{question}, in {unit}: no guess yet. Put a number in place of None and run this cell again.")
    elif isinstance(guess, bool) or not isinstance(guess, (int, float)) or not isfinite(guess) or guess < 0:
        raise WorkbookError(f"the guess is {guess!r}", f"a number of {unit}, 0 or more", "write for example guess=512")
    else:
        print(f"Your guess, {question}: {guess:g} {unit}")
    notes.predicted(question, unit, guess)
    return Prediction(question, unit, guess)


def compare(
    measured: float | Measurement,
    unit: str = "MiB",
    called: str = "measured",
    libraries: int = 0,
    **predicted: Predicted | Prediction | None,
) -> None:
    """Print what was predicted beside what was measured, each with its distance from the measurement.

    Values are bytes, or a measured step beside its budget or trace, whose peaks are meant; seconds, bytes per second
    and so on where `unit` is one of those. `unit` is only how they are printed. A skipped guess prints a dash. `called`
    names the last row where the truth is no measurement: "datasheet".

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
    size, unseen = _tensors(measured), getattr(measured, "unseen_bytes", 0)
    guesses = {name: _predicted(value) for name, value in predicted.items()}
    _table("tensors" if unseen else "", size, guesses, unit, called)
    for value in predicted.values():
        if isinstance(value, Prediction) and value.value is not None:
            notes.compared(value.question, value.value / size - 1)
    if unseen:
        found = {name: getattr(value, "library_bytes", None) for name, value in predicted.items()}
        by_card = {name: size_bytes for name, size_bytes in found.items() if size_bytes is not None}
        by_card = by_card or {"formula": libraries}
        _table("libraries", unseen, {name: size_bytes or None for name, size_bytes in by_card.items()}, unit, called)


def _table(title: str, size: float, guesses: Mapping[str, float | None], unit: str, called: str) -> None:
    digits = 1 if unit in SIZES else 2
    width = max(9, *(len(name) + 1 for name in (title, called, *guesses)))
    print(f"{title:{width}}{unit:>11}   off by")
    for name, guess in guesses.items():
        told = "–" if guess is None else f"{guess / UNITS[unit]:,.{digits}f}"
        print(f"{name:{width}}{told:>11}" + ("" if guess is None else f"  {signed_percent(guess / size - 1)}"))
    print(f"{called:{width}}{size / UNITS[unit]:>11,.{digits}f}")


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

    Both are bytes, or a measured step and its budget or trace: then the peaks of tensors are compared. `rel` is the
    allowed distance as a fraction of the measurement. With a `unit` such as "ms" both are in what that unit is without
    its prefix (seconds), and printed in it. `called` names the truth where it is no measurement: "traced", "published".

    What a GPU's libraries took has a line of its own, beside what the budget, the trace or `libraries` predicts for the
    card (as in `compare`). It never raises: it depends on the versions of CUDA and PyTorch, too.

    >>> check("weights", measured=1000, predicted=1004, rel=0.005)
    ✓ weights: predicted 1004 B, measured 1000 B, off by +0.40 % (allowed ±0.5 %)
    """
    if unit is not None:
        require_name("unit", unit, UNITS)
    size, guess = _tensors(measured), _predicted(predicted)
    if guess is None or not (isfinite(size) and isfinite(guess)) or size <= 0:
        what, expected = f"measured {size!r} against predicted {guess!r}", "two finite numbers, measured above zero"
        raise WorkbookError(what, expected, "look at the cell that made them")
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


def _tensors(value: float | Measurement | Predicted) -> float:
    """The peak of its tensors, of what tells them apart; else the peak, of what has one. A number is what it is."""
    return value if isinstance(value, int | float) else getattr(value, "tensor_bytes", value.peak_bytes)


def _predicted(value: Predicted | Prediction | None) -> float | None:
    if value is None or isinstance(value, Prediction):
        return value.value if value else None
    return _tensors(value)


def _size(size_bytes: float, unit: str | None) -> str:
    if unit is not None:
        return f"{size_bytes / UNITS[unit]:,.2f} {unit}"
    return f"{size_bytes:.0f} B" if size_bytes < 10_000 else format_bytes(size_bytes)
