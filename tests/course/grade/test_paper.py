"""What a class is held against: its time limits, and when a grade has to be given again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.course.grade import paper as made_by
from helpers.course.grade.bench import Bench
from helpers.course.grade.paper import modules, paper
from helpers.course.sandbox import levels
from tests.course.example_lab import code

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(built_root) -> Path:
    return built_root / "solutions/05_numbers.ipynb"


@pytest.fixture(scope="module")
def bench(lab):
    with Bench(levels.best(), modules(nb.read(lab))) as one:
        yield one


def test_a_cell_gets_the_spare_time_and_a_lab_may_ask_for_more(bench, lab, tmp_path):
    plain = paper(bench, lab, "3", spare_s=5)
    assert {plain.spare_s, *(round(limit_s) for limit_s in limits(plain))} <= {5, 6}
    patient = nb.read(lab)
    patient.metadata["workbook"] = {"spare_s": 25}
    nb.write(tmp_path / lab.name, patient)
    assert min(limits(paper(bench, tmp_path / lab.name, "3", spare_s=5))) >= 25
    assert min(limits(paper(bench, tmp_path / lab.name, "3", spare_s=40))) >= 40


def test_what_the_worked_lab_imported_is_there_in_every_kernel(bench, lab, tmp_path):
    lazy = nb.read(lab)
    lazy.cells.insert(0, code("__import__('colorsys')", "as-a-library-does-it"))
    nb.write(tmp_path / lab.name, lazy)
    made = paper(bench, tmp_path / lab.name, "3")
    assert "colorsys" in made.more
    asks = v4.new_notebook(cells=[code("import sys\nprint('colorsys' in sys.modules)", "asks")])
    for more, there in (((), "False"), (made.more, "True")):
        with Bench(bench.level, made.modules, more) as other:
            assert other.run(asks, seed="3", wall_s=60)["asks"].stdout.strip() == there


def limits(made: made_by.Paper) -> list[float]:
    return [cell.metadata["workbook"]["limit_s"] for _, cell in nb.code_cells(made.reference)]


def test_the_digest_is_another_where_a_grade_could_be(bench, lab, monkeypatch):
    first = paper(bench, lab, "3").digest
    assert paper(bench, lab, "3").digest == first
    assert paper(bench, lab, "4").digest != first
    assert paper(bench, lab, "3", wall_s=60).digest != first
    monkeypatch.setattr(bench, "limits", replace(bench.limits, file_bytes=2**20))
    assert paper(bench, lab, "3").digest != first
    monkeypatch.undo()
    monkeypatch.setattr(made_by, "versions", lambda: {"torch": "3.0"})
    assert paper(bench, lab, "3").digest != first
