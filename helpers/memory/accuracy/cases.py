"""Published measurements as cited facts: on which device, of what, how much, and who says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError, require_name
from ...catalog.models import model

RECORDED = "recorded"  # by `workbook record`; those lie in recordings/ and not here
HISTORY = "history"  # a run rebuilt from its shapes, beside every event of the card: `published_step`
KINDS = ("op", "lora", "qlora", "serving", "engine", "generation", "megatron", "torchtitan", HISTORY, RECORDED)
OWN_KINDS = ("train", "serve")  # of `user_cases` alone
UNITS = {"MiB": 2**20, "GiB": 2**30, "GB": 10**9, "blocks": 1, "runs": 1}  # bytes, but for blocks of a cache, and runs
_DATA = Path(__file__).parent / "data" / "measured.json"


@dataclass(frozen=True)
class Case:
    """One thing that was run and measured. `figures` are in `unit`, by quantity; `device` is "any" where none counts.

    `setup` is what the module that rebuilds its kind needs (`ops`, `lora`, `serving`, `generation`). None is
    built without a source.
    """

    name: str
    kind: str
    device: str
    setup: Mapping[str, Any]
    figures: Mapping[str, float]
    unit: str
    source: str

    def __post_init__(self) -> None:
        for part, fine in (
            ("kind", self.kind in (*KINDS, *OWN_KINDS)),
            ("unit", self.unit in UNITS),
            ("source", isinstance(self.source, str) and len(self.source) > 3),
            ("figures", bool(self.figures) and all(f > 0 for f in self.figures.values())),
        ):
            if not fine:
                what = f"{self.name} has {part}={getattr(self, part)!r}"
                raise WorkbookError(what, f"a {part} as in measured.json", "look the figure up, and write down where")

    @property
    def unit_bytes(self) -> int:
        return UNITS[self.unit]


@dataclass(frozen=True)
class AccuracyRow:
    """One figure of one case. `predicted` is None where there is no answer, and `why` then says the reason.

    Both figures are in bytes, but for counts of blocks. `span` is the least and the most where equal runs differ, as
    reserved memory does after some releases' loading: a measurement within it is met.
    """

    case: Case
    quantity: str
    measured: int
    predicted: int | None
    why: str = ""
    span: tuple[int, int] | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less 1; of a span, its end that is nearer. None without a prediction."""
        if self.predicted is None:
            return None
        least, most = self.span or (self.predicted, self.predicted)
        return min(max(self.measured, least), most) / self.measured - 1

    def __str__(self) -> str:
        of, unit = self.case.unit_bytes, self.case.unit
        digits = 0 if of == 1 else 2
        answer = "no answer" if self.predicted is None else f"{self.predicted / of:,.{digits}f}"
        if self.span:
            answer = "–".join(f"{end / of:,.0f}" for end in self.span)
        error = "" if self.error is None else f"{self.error:+.3%}"
        figures = f"{answer:>11} {self.measured / of:>11,.{digits}f} {unit:6} {error:>8}"
        return f"{self.case.name:44} {self.quantity:22} {figures}  {self.why}".rstrip()


@cache
def _data() -> dict:
    return json.loads(_DATA.read_text(encoding="utf-8"))


@cache
def cases(kind: str | None = None) -> tuple[Case, ...]:
    """All published cases, or those of one of KINDS; of the kinds "history" and "recorded" there are none here.

    >>> len(cases("op")), len(cases("lora"))
    (63, 20)
    """
    if kind is not None:
        require_name("kind of case", kind, KINDS)
    sources = _data()["sources"]
    found = (Case(**{**one, "source": sources.get(one["source"], one["source"])}) for one in _data()["cases"])
    return tuple(case for case in found if kind in (None, case.kind))


def model_config(spec: str | Mapping[str, object]) -> Mapping[str, object]:
    """What a Transformers config needs: of a model that was measured, else of one that the catalogue or a file has."""
    measured = _data()["models"]
    return measured[spec] if isinstance(spec, str) and spec in measured else model(spec).config
