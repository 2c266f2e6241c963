"""Predicted beside measured, row by row and in sum: as text, as JSON, and as `workbook accuracy` prints it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec

from . import engine_runs, megatron, own_runs, recorded, serving
from .cases import HISTORY, OWN_KINDS, RECORDED, AccuracyRow, Case, cases
from .other_estimators import EstimatorAnswer, answers, listed
from .user_cases import read

ADAPTERS = ("lora", "qlora")  # kinds whose steps are rebuilt with peft


def rows(kind: str | None = None, of: Iterable[Case] | None = None) -> Iterator[AccuracyRow]:
    """Rebuild each case and predict it, one after the other: 74 operators take half a minute, 20 LoRA steps
    two, 16 generations two, 18 of torchtitan's up to ten, for its pipelines; 24 of Megatron's none; the history ten
    seconds.

    `of` are cases of your own (`user_cases.read`), in place of the published ones.

    Those of recordings/ come last.
    """
    published = (case for case in cases(kind) if case.kind not in left_out(kind))
    for case in published if of is None else of:
        yield from own_runs.rows(case) if case.kind in OWN_KINDS else rows_of(case)
    if of is None and kind in (None, HISTORY):
        from . import published_step  # here, for it brings torch

        yield from published_step.rows()
    if of is None and kind in (None, RECORDED):
        yield from recorded.rows()


def left_out(kind: str | None = None) -> tuple[str, ...]:
    """What `rows` leaves out where no kind is named: steps with adapters, where peft is not installed."""
    return ADAPTERS if kind is None and find_spec("peft") is None else ()


def rows_of(case: Case) -> Iterator[AccuracyRow]:
    """The figures of one case beside their predictions. Raises WorkbookError when its packages are missing."""
    if case.kind in ("generation", *ADAPTERS):
        yield from _generation(case) if case.kind == "generation" else _adapters(case)
        return
    if case.kind == "serving":
        predicted, why = serving.predict(case), serving.why(case)
    elif case.kind == "engine":
        predicted, why = engine_runs.predict(case), engine_runs.why(case)
    elif case.kind == "megatron":
        predicted, why = megatron.predict(case), ""
    elif case.kind == "torchtitan":
        from . import torchtitan  # here, for it brings torch.distributed

        predicted, why = torchtitan.predict(case), torchtitan.why(case)
    else:
        from . import ops  # here, for it brings torch and transformers

        predicted, why = ops.predict(case), ""
    for quantity, figure in case.figures.items():
        yield AccuracyRow(case, quantity, round(figure * case.unit_bytes), predicted.get(quantity), why)


def _adapters(case: Case) -> Iterator[AccuracyRow]:
    """A LoRA step; what it reserves is a range where the case names a release of Transformers that loads by threads."""
    from . import lora  # here, for it brings torch and transformers

    found, loaded = lora.traced(case)
    predicted, reserved = lora.peaks(found, loaded), lora.reserved(case, found)
    for quantity, figure in case.figures.items():
        row = AccuracyRow(case, quantity, round(figure * case.unit_bytes), predicted.get(quantity))
        if reserved and quantity == "peak reserved":
            row = replace(row, why=reserved.why, span=(reserved.low, reserved.high))
        yield row


def _generation(case: Case) -> Iterator[AccuracyRow]:
    """One figure, and two instruments that answer it."""
    from . import generation

    (figure,) = case.figures.values()
    for instrument, predicted in generation.predict(case).items():
        yield AccuracyRow(case, instrument, round(figure * case.unit_bytes), predicted)


@dataclass(frozen=True)
class Summary:
    """Rows of one group: how many have an answer, and how wrong it is on average and at worst; None without any."""

    group: str
    rows: int
    answered: int
    mean_error: float | None
    worst_error: float | None

    def __str__(self) -> str:
        mean, worst = ("–" if error is None else f"{error:.3%}" for error in (self.mean_error, self.worst_error))
        return f"{self.group:44} {self.answered:3} of {self.rows:3}   {mean:>8} {worst:>8}"


def summaries(found: Sequence[AccuracyRow]) -> list[Summary]:
    """One for each kind and quantity; reserved memory apart for each kind of attention."""
    names = dict.fromkeys(map(_group, found))
    return [_summary(name, [row for row in found if _group(row) == name]) for name in names]


def _group(row: AccuracyRow) -> str:
    if row.case.kind in ("serving", "engine", "generation", "megatron", "torchtitan", HISTORY):
        return f"{row.case.kind}, {row.quantity}"
    attention = f" ({row.case.setup['attention']})" if row.case.kind in ADAPTERS else ""
    return f"{row.case.kind}, {row.quantity}{attention}"


def _summary(name: str, found: Sequence[AccuracyRow]) -> Summary:
    errors = [abs(row.error) for row in found if row.error is not None]
    mean = sum(errors) / len(errors) if errors else None
    return Summary(name, len(found), len(errors), mean, max(errors, default=None))


HEAD = f"{'':44} {'':22} {'predicted':>11} {'measured':>11} {'':6} {'error':>8}"
SUM_HEAD = f"{'':44} {'answered':>10}   {'mean':>8} {'worst':>8}"


def table(found: Iterable[AccuracyRow]) -> str:
    """The summary of `found`, a line for each group; answers only count in the errors."""
    return "\n".join([SUM_HEAD, *map(str, summaries(list(found)))])


def as_json(found: Sequence[AccuracyRow], others: Sequence[EstimatorAnswer] = ()) -> dict[str, object]:
    """All of it as plain data; bytes but for blocks, errors as fractions, null where there is no answer."""
    return {
        "rows": [
            {
                "name": row.case.name,
                "kind": row.case.kind,
                "device": row.case.device,
                "quantity": row.quantity,
                "setup": dict(row.case.setup),
                "measured": row.measured,
                "predicted": row.predicted,
                "span": row.span,
                "unit": row.case.unit if row.case.unit_bytes == 1 else "bytes",
                "error": row.error,
                "why": row.why,
                "source": row.case.source,
            }
            for row in found
        ],
        "summary": [asdict(one) for one in summaries(found)],
        "others": [other.as_json() for other in others],
    }


NO_PEFT = f"left out: {' and '.join(ADAPTERS)}, which need peft (pip install --no-deps peft==0.21.2)"
NO_RECORDING = "no GPU has been recorded yet: `workbook record` on one adds its rows"


def report(kind: str | None = None, json_wanted: bool = False, measured: str | None = None) -> int:
    """Print all cases, those of one kind, or those of the file `measured`; return 0.

    Raises WorkbookError for an unknown kind, a file that is not of the form of `user_cases.read`, or for a kind that
    needs peft where there is none.
    """
    found: list[AccuracyRow] = []
    cases(kind)  # an unknown kind is told before anything is printed
    yours = None if measured is None else read(measured)
    if not json_wanted:
        print(HEAD)
    for row in rows(kind, yours):
        found.append(row)
        if not json_wanted:
            print(row, flush=True)
    if yours is None and left_out(kind):
        print(NO_PEFT, file=sys.stderr)
    shown = {(row.case.name, row.quantity): (row.predicted, row.measured) for row in found}
    others = [answer for answer in answers() if (answer.case, answer.quantity) in shown]
    if json_wanted:
        json.dump(as_json(found, others), sys.stdout)
        print()
        return 0
    if yours is None and kind in (None, RECORDED) and not any(row.case.kind == RECORDED for row in found):
        print(NO_RECORDING)
    print(f"\n{table(found)}")
    if others:
        own = {which: (predicted, measured) for which, (predicted, measured) in shown.items() if predicted is not None}
        print(f"\nWhat others answer (answered, measured, times)\n\n{listed(others, own)}")
    return 0
