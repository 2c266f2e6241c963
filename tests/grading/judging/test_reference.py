"""What a class is held against: its time limits, and when a grade has to be given again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.grading.judging import reference as module
from helpers.grading.judging.reference import (
    Reference,
    ReferenceFailedError,
    cells_of,
    modules,
    prepare,
    private_questions,
)
from helpers.grading.sandbox import levels
from helpers.grading.sandbox.worker import Worker
from tests.course.example_lab import ask, cell_of, check, code, save, with_sources

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
    assert plain.spare_s == 5
    assert 5 <= min(limits(plain)) < 25  # and ten times what a cell took, here
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
    tells = v4.new_notebook(cells=[code("import sys\nprint('colorsys' in sys.modules)", "tells")])
    for more, there in (((), "False"), (made.more, "True")):
        with Worker(worker.level, made.modules, more) as other:
            assert other.run(tells, wall_s=60)["tells"].stdout.strip() == there


def own_checks() -> NotebookNode:
    """An instructor's: a cell that prepares, one that asks, one that weighs what was answered with a reference."""
    asks = ask("my-ask", "found = asked(twice, few)")
    weighs = check(
        "my-twice", "right = reference(lambda: 2 * few)\nassert found == right, 'twice 3 is 6'\nprint(found)", 2
    )
    cells = [code("from helpers.lesson import reference\nfew = 3", "few"), asks, weighs]
    return v4.new_notebook(cells=cells)


def test_private_checks_are_asked_and_weighed_and_their_references_kept(worker, lab, tmp_path):
    made = prepare(worker, lab, "3", save(own_checks(), tmp_path / lab.name))
    assert [cell.id for cell in made.private.cells] == ["private-0", "private-1", "private-2"]
    assert made.references == {"private-2": [{"answer": "6"}]}
    for source, passed in (("def twice(x):\n    return x + x", True), ("def twice(x):\n    return 7", False)):
        learner = with_sources(made.notebook, {"twice": source})
        found = cells_of(worker, made, learner, private=True)
        (question,) = private_questions(made.private, found)
        assert question.passed is passed
    assert "check-twice" not in found, "the public checks are not weighed again"


def test_what_checks_measure_is_measured_once_for_a_class(worker, lab, tmp_path):
    """What a check refers to counts how often it was asked, in a file that every kernel of this level can write."""
    counting = nb.read(lab)
    setup = cell_of(counting, "setup")
    setup.source += f"\nfrom helpers.lesson import reference\nLOG = {str(tmp_path / 'log')!r}"
    weighs = cell_of(counting, "check-half")
    measured = "def measured():\n    with open(LOG, 'a') as file:\n        file.write('x')\n    return 2\n\n\n"
    weighs.source = weighs.source.replace("assert halves[0] == 2", "assert halves[0] == reference(measured)")
    weighs.source = measured + weighs.source
    nb.write(tmp_path / lab.name, counting)
    with Worker(levels.SandboxLevel("limits"), modules(counting)) as trusted:
        made = prepare(trusted, tmp_path / lab.name, "3")
        cells_of(trusted, made, made.notebook)
    assert made.references == {"check-half": [{"answer": "2"}]}
    assert (tmp_path / "log").read_text() == "x"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"half": "def half(x):\n    return 1 / 0"}, "fails at '.*': half raised ZeroDivisionError"),
        ({"half": "def half(x):\n    return x"}, "fails at 'assert halves.*half of 4 is 2"),
        ({"check-half": "halves"}, "check 'check-half' prints nothing: every answer would pass"),
        ({"check-half": "print('fine')"}, "the untouched lab earns 1 of 1 at '3 Half'"),
    ],
    ids=["an answer that raises", "a wrong answer", "a silent check", "a check of nothing"],
)
def test_a_lab_that_does_not_grade_itself_right_grades_nobody(worker, lab, tmp_path, changed, words):
    nb.write(tmp_path / lab.name, with_sources(nb.read(lab), changed))
    with pytest.raises(ReferenceFailedError, match=words):
        prepare(worker, tmp_path / lab.name, "3")


def limits(made: Reference) -> list[float]:
    return limits_of(made.notebook)


def limits_of(notebook: NotebookNode) -> list[float]:
    return [cell.metadata["workbook"]["limit_s"] for _, cell in nb.code_cells(notebook)]


@pytest.fixture
def not_graded(monkeypatch):
    """A lab that was seen to grade itself need not do it again."""
    monkeypatch.setattr(module, "_grade_itself", lambda *_: None)


def test_the_digest_is_another_where_a_grade_could_be(worker, lab, not_graded, monkeypatch):
    first = prepare(worker, lab, "3").digest
    assert prepare(worker, lab, "3").digest == first
    assert prepare(worker, lab, "4").digest != first
    assert prepare(worker, lab, "3", wall_s=60).digest != first
    with monkeypatch.context() as changed:
        changed.setattr(worker, "limits", replace(worker.limits, file_bytes=2**20))
        assert prepare(worker, lab, "3").digest != first
    monkeypatch.setattr(module, "versions", lambda: {"torch": "3.0"})
    assert prepare(worker, lab, "3").digest != first


def test_how_long_private_checks_took_is_no_part_of_the_digest(worker, lab, not_graded, tmp_path, monkeypatch):
    """The class would be graded again whenever the machine was busier."""
    checks = save(own_checks(), tmp_path / lab.name)
    run_through, made = module._run_through, []
    for slower in (1, 100):

        def timed(*arguments, slower=slower):
            ran = run_through(*arguments)
            for cell in ran.notebook.cells:
                cell.metadata.setdefault("workbook", {})["limit_s"] = 7 * slower
            return ran

        monkeypatch.setattr(module, "_run_through", timed)
        made.append(prepare(worker, lab, "3", checks))
    assert made[0].digest == made[1].digest
    assert limits_of(made[0].private) != limits_of(made[1].private)
