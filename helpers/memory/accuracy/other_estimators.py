"""What well-known estimators answer about the same cases: computed once with their released code, kept as facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ...catalog.errors import WorkbookError
from .cases import cases

_DATA = Path(__file__).parent / "data" / "others.json"


@dataclass(frozen=True)
class EstimatorAnswer:
    """What `estimator` (package, version) says when `command` is run: `answered_bytes`, as its output rounds it.

    `case` and `quantity` name the measurement that it is set beside; `about` says what the estimator could be asked,
    where that is another question.
    """

    estimator: str
    version: str
    command: str
    case: str
    quantity: str
    answered_bytes: int
    about: str

    def __post_init__(self) -> None:
        if not any(self.case == case.name and self.quantity in case.figures for case in cases()):
            what = f"{self.estimator} answers about {self.case!r}, {self.quantity!r}"
            raise WorkbookError(what, "a case and a quantity that measured.json has", "name one of those")

    @property
    def measured_bytes(self) -> int:
        case = next(case for case in cases() if case.name == self.case)
        return round(case.figures[self.quantity] * case.unit_bytes)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "measured_bytes": self.measured_bytes}

    def __str__(self) -> str:
        return _line(self.estimator, self.answered_bytes, self.measured_bytes, self.about)


@cache
def answers() -> tuple[EstimatorAnswer, ...]:
    """All of them, in the order of the cases they are about."""
    return tuple(EstimatorAnswer(**one) for one in json.loads(_DATA.read_text(encoding="utf-8")))


def listed(
    found: Sequence[EstimatorAnswer], own: Mapping[tuple[str, str], tuple[int, int]] = MappingProxyType({})
) -> str:
    """A block of lines for each case and quantity, first the workbook's `own` answer, if any: (predicted, measured)."""
    lines: list[str] = []
    for case in dict.fromkeys((answer.case, answer.quantity) for answer in found):
        lines += ["", ", ".join(case)]
        if case in own:
            lines.append(f"  {_line('this workbook', *own[case], '')}")
        lines += [f"  {answer}" for answer in found if (answer.case, answer.quantity) == case]
    return "\n".join(lines[1:])


def _line(who: str, answered: int, measured: int, about: str) -> str:
    times = f"{answered / measured:.3g}"
    return f"{who:20} {answered / 2**30:>7.2f} {measured / 2**30:>7.2f} GiB {times:>6}x  {about}".rstrip()
