"""What a class is held against: its time limits, and when a grade has to be given again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.grading.judging import reference as module
from helpers.grading.judging.reference import Reference, modules, prepare
from helpers.grading.sandbox import levels
from helpers.grading.sandbox.worker import Worker
from tests.course.example_lab import check, code, save

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(built_root) -> Path:
    return built_root / "solutions/05_numbers.ipynb"


@pytest.fixture(scope="module")
def worker(lab):
    with Worker(levels.best(), modules(nb.read(lab))) as one:
        yield one


def test_a_cell_gets_the_spare_time_and_a_lab_may_ask_for_more(worker, lab, tmp_path):
    plain = prepare(worker, lab, "3", spare_s=5)
    assert {plain.spare_s, *(round(limit_s) for limit_s in limits(plain))} <= {5, 6}
    patient = nb.read(lab)
    patient.metadata["workbook"] = {"spare_s": 25}
    nb.write(tmp_path / lab.name, patient)
    assert min(limits(prepare(worker, tmp_path / lab.name, "3", spare_s=5))) >= 25
    assert min(limits(prepare(worker, tmp_path / lab.name, "3", spare_s=40))) >= 40


def test_what_the_worked_lab_imported_is_there_in_every_kernel(worker, lab, tmp_path):
    lazy = nb.read(lab)
    lazy.cells.insert(0, code("__import__('colorsys')", "as-a-library-does-it"))
    nb.write(tmp_path / lab.name, lazy)
    made = prepare(worker, tmp_path / lab.name, "3")
    assert "colorsys" in made.more
    asks = v4.new_notebook(cells=[code("import sys\nprint('colorsys' in sys.modules)", "asks")])
    for more, there in (((), "False"), (made.more, "True")):
        with Worker(worker.level, made.modules, more) as other:
            assert other.run(asks, seed="3", wall_s=60)["asks"].stdout.strip() == there


def limits(made: Reference) -> list[float]:
    return limits_of(made.notebook)


def limits_of(notebook: NotebookNode) -> list[float]:
    return [cell.metadata["workbook"]["limit_s"] for _, cell in nb.code_cells(notebook)]


def test_the_digest_is_another_where_a_grade_could_be(worker, lab, monkeypatch):
    first = prepare(worker, lab, "3").digest
    assert prepare(worker, lab, "3").digest == first
    assert prepare(worker, lab, "4").digest != first
    assert prepare(worker, lab, "3", wall_s=60).digest != first
    monkeypatch.setattr(worker, "limits", replace(worker.limits, file_bytes=2**20))
    assert prepare(worker, lab, "3").digest != first
    monkeypatch.undo()
    monkeypatch.setattr(module, "versions", lambda: {"torch": "3.0"})
    assert prepare(worker, lab, "3").digest != first


def test_how_long_private_checks_took_is_no_part_of_the_digest(worker, lab, tmp_path, monkeypatch):
    """The class would be graded again whenever the machine was busier."""
    own = check("my-twice", "print(twice(3))\nassert twice(3) == 6, 'twice 3 is 6'", 2)
    checks = save(v4.new_notebook(cells=[own]), tmp_path / lab.name)
    run_through, made = module._run_through, []
    for slower in (1, 100):

        def timed(*arguments, slower=slower):
            notebook, seconds, more = run_through(*arguments)
            return notebook, {key: slower * taken for key, taken in seconds.items()}, more

        monkeypatch.setattr(module, "_run_through", timed)
        made.append(prepare(worker, lab, "3", checks))
    assert made[0].digest == made[1].digest
    assert limits_of(made[0].private) != limits_of(made[1].private)
