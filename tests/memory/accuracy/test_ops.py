"""Peaks of 74 operator benchmarks on A100, H100, RTX 3090 and 4090: what is left is rounding of what was published."""

from __future__ import annotations

import pytest

from helpers.catalog.hardware import Cuda
from helpers.memory.accuracy import cases, rows
from helpers.memory.accuracy.table import rows_of

MEAN, WORST = 0.000_02, 0.000_05
FORWARD = next(case for case in cases("op") if case.name == "geglu forward t1024 a100")


def error_of(case) -> float:
    (row,) = rows_of(case)
    return abs(row.error)


@pytest.mark.slow
def test_all_74_peaks() -> None:
    errors = {row.case.name: abs(row.error) for row in rows("op")}
    assert len(errors) == 74
    assert sum(errors.values()) / 74 <= MEAN
    assert max(errors.values()) <= WORST, max(errors, key=errors.get)


def test_without_the_workspaces_it_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_of(FORWARD) <= WORST
    monkeypatch.setattr(Cuda, "cublas_workspace_bytes", 0)
    assert error_of(FORWARD) > WORST
