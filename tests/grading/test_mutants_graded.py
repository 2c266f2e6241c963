"""Wrong answers through the real grader, with a seed that is not stored: none earns all its points; worked ones do.

The slow tests take one wrong answer to each exercise of one lab, and two labs as they are worked; `make test-all` takes
all of all labs.
"""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.mutants import Mutant, find_mutants, load_mutants
from helpers.grading.batch import Options, grade
from helpers.grading.judging.results import from_json

ROOT = Path(__file__).resolve().parents[2]
LABS = nb.find_all(ROOT, ["solutions"])
BY_DAY = ("01", "06", "09")  # kernels that PyTorch traces, what a step keeps, and ranks


def classes(path: Path) -> list[dict[str, Mutant]]:
    """Submissions that hold all mutants: in each at most one for an exercise, by the exercise's first answer."""
    first = {
        lab_cells.grade_id(answer): lab_cells.grade_id(exercise.answers[0])
        for exercise in lab_cells.exercises(nb.read(path))
        for answer in exercise.answers
    }
    by_exercise = defaultdict(list)
    for mutant in load_mutants(find_mutants(path)):
        by_exercise[first[mutant.grade_id]].append(mutant)
    rows = zip_longest(*by_exercise.values())
    return [{key: one for key, one in zip(by_exercise, row, strict=True) if one is not None} for row in rows]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow if path.stem[:2] in BY_DAY else pytest.mark.all]) for path in LABS],
    ids=lambda path: path.stem[:2],
)
def test_a_worked_lab_earns_all_its_points_and_nobody_is_named(path, tmp_path):
    nb.write(folder(tmp_path) / path.name, nb.read(path))
    assert grade(path.stem, folder(tmp_path), tmp_path / "out", ROOT, Options(seed="7")) == 0
    result = from_json(json.loads((tmp_path / f"out/results/{path.stem}.json").read_text()))
    assert [(question.title, question.message) for question in result.questions if not question.passed] == []
    assert (result.status, result.reasons, result.warnings) == ("graded", (), ())


@pytest.mark.slow
def test_the_first_mutant_of_each_exercise_earns_less_and_what_is_right_earns_all(tmp_path):
    path = next(path for path in LABS if path.stem.startswith("13"))
    check_graded(path, classes(path)[:1], tmp_path)


@pytest.mark.all
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem[:2])
def test_no_mutant_earns_all_its_points_and_what_is_right_earns_them(path, tmp_path):
    check_graded(path, classes(path), tmp_path)


def check_graded(path: Path, submissions: list[dict[str, Mutant]], tmp_path: Path) -> None:
    solution = nb.read(path)
    for number, wrong in enumerate(submissions):
        lab, sources = copy.deepcopy(solution), {one.grade_id: one.source for one in wrong.values()}
        for cell in lab.cells:
            if lab_cells.grade_id(cell) in sources:  # after the worked one, which a mutant may derive from
                cell.source += f"\n\n\n{sources[lab_cells.grade_id(cell)]}"
        nb.write(folder(tmp_path) / f"mutants-{number}.ipynb", lab)
    grade(path.stem, folder(tmp_path), tmp_path / "out", ROOT, Options(seed="7"))
    for number, wrong in enumerate(submissions):
        result = from_json(json.loads((tmp_path / f"out/results/mutants-{number}.json").read_text()))
        for question in result.questions:
            if question.key not in wrong:
                assert question.passed, (result.learner, question)
                continue
            mutant = wrong[question.key]
            assert question.earned < question.points, (mutant.where, question.title)
            assert mutant.feedback in question.message, (mutant.where, question.message)


def folder(tmp_path: Path) -> Path:
    (tmp_path / "class").mkdir(exist_ok=True)
    return tmp_path / "class"
