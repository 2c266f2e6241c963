"""The table as `workbook accuracy` prints it: each row as it is found, the sums, and what other estimators answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from .cases import RECORDED, cases
from .other_estimators import Answer, answers, listed
from .table import HEAD, Row, as_json, rows, table
from .user_cases import read

NO_RECORDING = "no GPU has been recorded yet: `workbook record` on one adds its rows"


def report(
    kind: str | None = None, json_wanted: bool = False, apply: Callable | None = None, measured: str | None = None
) -> int:
    """Print all cases, those of one kind, or those of the file `measured`; return 0. `apply` is as in `rows`.

    Raises WorkbookError for an unknown kind, a file that is not of the form of `yours.read`, or without peft.
    """
    found: list[Row] = []
    cases(kind)  # an unknown kind is told before anything is printed
    yours = None if measured is None else read(measured)
    if not json_wanted:
        print(HEAD)
    for row in rows(kind, apply, yours):
        found.append(row)
        if not json_wanted:
            print(row, flush=True)
    others = _about(found)
    if json_wanted:
        json.dump(as_json(found, others), sys.stdout)
        print()
        return 0
    if yours is None and kind in (None, RECORDED) and not any(row.case.kind == RECORDED for row in found):
        print(NO_RECORDING)
    print(f"\n{table(found)}")
    if others:
        print(f"\nWhat others answer (answered, measured, times)\n\n{listed(others, found)}")
    return 0


def _about(found: list[Row]) -> list[Answer]:
    shown = {(row.case.name, row.quantity) for row in found}
    return [answer for answer in answers() if (answer.case, answer.quantity) in shown]
