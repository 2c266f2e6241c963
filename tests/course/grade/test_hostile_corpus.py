"""The whole corpus graded in one batch: every learner a row, nobody more than is theirs, nothing left behind."""

from __future__ import annotations

import copy
import csv
import json
import os
import re
from pathlib import Path

import nbformat
import pytest

from helpers.course import notebook as nb
from helpers.course.build import build
from helpers.course.grade.batch import Options, grade
from helpers.course.grade.model import GRADED, UNREADABLE, Result, from_json
from helpers.course.release import release
from tests.course.grade import corpus
from tests.course.grade.broken_files import BROKEN
from tests.course.grade.corpus import evidence
from tests.course.grade.corpus.lab import POINTS

pytestmark = [pytest.mark.slow, pytest.mark.alone]
SEED, SECRET_CHECK = "20261121", "only-in-the-private-checks"
BROKEN_HERE = [one for one in BROKEN if not (one.for_ordinary_users and os.geteuid() == 0)]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """A course whose one lab is the corpus's, built and released."""
    root = tmp_path_factory.mktemp("corpus")
    for name in ("solutions", "notebooks"):
        (root / name).mkdir()
    nbformat.write(corpus.lab(), root / "solutions" / f"{corpus.LAB}.ipynb")
    assert build([corpus.LAB], root) == 0
    assert release(root) == 0
    return root


@pytest.fixture(scope="module")
def checks(course) -> Path:
    """An instructor's private check of the first answer."""
    own = nb.read(course / "solutions" / f"{corpus.LAB}.ipynb")
    first = next(cell for cell in own.cells if cell.metadata.get("nbgrader", {}).get("grade"))
    first.metadata.nbgrader.update(grade_id="private-pages", points=2)
    first.source = f"# {SECRET_CHECK}\n{first.source}"
    own.cells = [cell for cell in own.cells if cell is first]
    folder = course / "private"
    folder.mkdir()
    nbformat.write(own, folder / f"{corpus.LAB}.ipynb")
    return folder


@pytest.fixture(scope="module")
def class_folder(course) -> Path:
    """Every case of the corpus and every broken file, a folder each; the cases' names are numbers."""
    released = nb.read(course / "labs" / f"{corpus.LAB}.ipynb")
    perfect = next(case for case in corpus.CASES if case.name == "perfect")
    right = json.loads(json.dumps(perfect.build(copy.deepcopy(released))))
    folder = course / "handed-in"
    for number, case in enumerate(corpus.CASES):
        (folder / name_of(number)).mkdir(parents=True)
        corpus.hand_in(case, released, folder / name_of(number) / f"{corpus.LAB}.ipynb")
    for broken in BROKEN_HERE:
        broken.build(folder / broken.folder, right)
    return folder


@pytest.fixture(scope="module")
def graded(course, class_folder, checks):
    """(exit code, folder, results by learner, what attacks left) of the one batch."""
    out, places = course / "out", [course]
    before = evidence.files(places)
    os.environ["CORPUS_SECRET"] = evidence.SECRET
    options = Options(seed=SEED, jobs=3, spare_s=corpus.CELL_LIMIT_S, checks=checks)
    with evidence.listener() as connections:
        code = grade(corpus.LAB, class_folder, out, course, options)
    del os.environ["CORPUS_SECRET"]
    left = {
        "files": sorted(set(evidence.files(places)) - set(before)),
        "processes": evidence.processes(),
        "connections": connections,
        "shown": evidence.shown_in(out),
    }
    return code, out, stored(out), left


def name_of(number: int) -> str:
    return f"case-{number:03d}"


def stored(out: Path) -> dict[str, Result]:
    found = [from_json(json.loads(path.read_text())) for path in (out / "results").glob("*.json")]
    return {result.learner: result for result in found}


def test_every_learner_has_a_row_and_some_need_attention(graded, class_folder):
    code, out, results, _ = graded
    assert code == 3
    with (out / "gradebook.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results) == len(corpus.CASES) + len(BROKEN_HERE)
    for result in results.values():
        assert (out / "feedback" / f"{result.slug}.html").is_file()


def test_each_case_produces_its_row(graded):
    _, _, results, _ = graded
    wrong = []
    for number, case in enumerate(corpus.CASES):
        wrong += corpus.problems(case, without_private(results[name_of(number)]))
    assert not wrong, "\n".join(wrong)


def without_private(result: Result) -> Result:
    from dataclasses import replace

    return replace(result, questions=tuple(one for one in result.questions if one.key in POINTS))


def test_each_broken_file_is_read_or_says_why(graded):
    _, _, results, _ = graded
    for broken in BROKEN_HERE:
        result = results[broken.row]
        if broken.reason:
            assert result.status == UNREADABLE, broken
            assert broken.reason in result.reasons[0], broken
        else:
            assert without_private(result).score == sum(POINTS.values()), (broken, result.reasons)


def test_an_attack_leaves_nothing_behind(graded):
    _, _, _, left = graded
    assert left == {"files": [], "processes": [], "connections": [], "shown": []}


def test_private_checks_count_and_are_nowhere_to_be_seen(graded):
    _, out, results, _ = graded
    perfect = results[name_of([case.name for case in corpus.CASES].index("perfect"))]
    assert perfect.status == GRADED
    assert [one.earned for one in perfect.questions if one.key not in POINTS] == [2]
    for path in out.rglob("*"):
        if path.is_file():
            assert SECRET_CHECK.encode() not in path.read_bytes(), path


def test_a_second_run_executes_nothing(graded, course, class_folder, checks, capsys):
    _, out, results, _ = graded
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    options = Options(jobs=3, spare_s=corpus.CELL_LIMIT_S, checks=checks)
    assert grade(corpus.LAB, class_folder, out, course, options) == 3
    assert before == {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    assert re.search(rf"{len(results)} learners, {len(results)} of them graded before", capsys.readouterr().out)


def test_the_same_seed_gives_the_same_gradebook(graded, course, class_folder, checks):
    """Two learners of each group again, elsewhere: their lines are the same, byte for byte."""
    _, out, _, _ = graded
    groups: dict[str, list[str]] = {}
    for number, case in enumerate(corpus.CASES):
        groups.setdefault(case.group, []).append(name_of(number))
    some = tuple(name for names in groups.values() for name in names[:2])
    options = Options(seed=SEED, jobs=3, spare_s=corpus.CELL_LIMIT_S, checks=checks, only=some)
    again = course / "again"
    grade(corpus.LAB, class_folder, again, course, options)
    for name in ("gradebook.csv", "gradebook_long.csv"):
        first = (out / name).read_text(encoding="utf-8-sig").splitlines()
        second = (again / name).read_text(encoding="utf-8-sig").splitlines()
        assert second[0] == first[0]
        assert len(second) > len(some)
        assert set(second) <= set(first)
