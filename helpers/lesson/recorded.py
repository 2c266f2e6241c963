"""What `workbook record` measured on real GPUs, beside what the instruments predict of the same run.

    from helpers.lesson import recorded, recorded_table
    recorded_table("02/train-1b")           # one block for each GPU that somebody recorded
    recorded("01/bandwidth")                # the entries themselves, to be drawn

Nothing is shown that nobody measured: the prose around is true with recordings and without.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..memory.breakdown import format_bytes
from .units import percent, si, signed_percent

if TYPE_CHECKING:
    from ..memory.accuracy.recorded import Answers
    from ..memory.accuracy.recordings import Entry, RecordedDevice, Recording

HEAD = f"  {'':<40}{'predicted by':<13}{'predicted':>12}{'recorded':>12}"


@dataclass(frozen=True)
class Recorded:
    """One experiment on one device: its entries, and in one line what they were measured with."""

    experiment: str
    entries: tuple[Entry, ...]
    recording: Recording

    @property
    def machine(self) -> RecordedDevice:
        return self.recording.machine

    @property
    def source(self) -> str:
        """As in "NVIDIA H200, torch 2.11.0, driver 580.65, 2026-11-30"."""
        return self.recording.source(self.entries[-1])


def recorded(experiment: str) -> tuple[Recorded, ...]:
    """The experiment on every device that has it, by device name; () where nobody has recorded it.

    Raises WorkbookError for a recording that was damaged.
    """
    from ..memory.accuracy.recordings import read_all

    every = ((recording, recording.of(experiment)) for recording in read_all())
    return tuple(Recorded(experiment, entries, recording) for recording, entries in every if entries)


def recorded_table(*experiments: str, quantity: str | None = None) -> None:
    """Print each recorded figure beside its predictions: who predicts, how much, what was recorded, and the distance.

    Where nobody has recorded any of the experiments it prints nothing.

    `quantity` leaves only the figures of one, such as "held". A datasheet's figure is a limit, so its line tells the
    share that was reached. Where a history was recorded too, the last line says how its replay went.
    """
    found = [one for experiment in experiments for one in recorded(experiment)]
    before = ""
    for one in sorted(found, key=lambda one: one.source):
        if one.source != before:
            print(f"{one.source}\n{HEAD}")
        before = one.source
        for entry in one.entries:
            if quantity in (None, entry.quantity):
                print("\n".join(_lines(one.recording, entry)))


def _lines(recording: Recording, entry: Entry) -> Iterator[str]:
    from ..memory.accuracy.recorded import predictions, replayed

    answers = predictions(entry, recording.machine)
    for at, value in enumerate(entry.values):
        place = f", {entry.x[at]:,.0f} {entry.x_unit}" if entry.x else ""
        yield from _rows(f"{entry.label}{place}, {entry.quantity}", entry.unit, value, answers, at)
    if entry.snapshot:
        yield f"    its history replayed: {replayed(recording, entry)}"


def _rows(name: str, unit: str, value: float, answers: Answers, at: int) -> Iterator[str]:
    """One line for each instrument that answers, the name on the first; a figure that nobody predicts has one too."""
    measured = _size(value, unit)
    if not answers:
        yield f"  {name:<40}{'–':<13}{'':>12}{measured:>12}"
    for number, (instrument, numbers) in enumerate(answers.items()):
        answer = numbers[at]
        shown = f"  {'' if number else name:<40}{instrument:<13}{_size(answer, unit):>12}{measured:>12}"
        yield f"{shown}   {_distance(instrument, answer, value, unit)}"


def _distance(instrument: str, answer: float, value: float, unit: str) -> str:
    if instrument != "datasheet":
        return signed_percent(answer / value - 1)
    return f"{percent(answer / value if unit == 's' else value / answer)} reached"


def _size(value: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value)
    return si(value, {"bytes/s": "B/s"}.get(unit, unit))
