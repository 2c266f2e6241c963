"""The corpus graded in one batch: every learner a row, nobody more than is theirs, nothing left behind.

The slow tests grade one submission of each kind, `make test-all` every one.
"""

from __future__ import annotations

import copy
import csv
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
import pytest

from helpers.course import notebook as nb
from helpers.course.build import build
from helpers.course.release import release
from helpers.grading.batch import Options, grade
from helpers.grading.judging.results import GRADED, UNREADABLE, Result, from_json
from tests.course.example_lab import cell_of
from tests.grading import corpus
from tests.grading.broken_files import BROKEN
from tests.grading.corpus import evidence
from tests.grading.corpus.lab import POINTS

pytestmark = pytest.mark.alone
SEED, SECRET_CHECK = "20261121", "only-in-the-private-checks"
BROKEN_HERE = [one for one in BROKEN if not (one.for_ordinary_users and os.geteuid() == 0)]
# One of each kind that a mechanism of its own answers: who stops it, what hides it, how it is read.
KINDS = {
    *("perfect", "untouched", "split, the metadata twice", "needs a cell further down", "floor for ceil"),
    *("raises the unencodable", "a plan of megabytes"),
    *("infinite loop", "swallows every exception", "stops itself", "os._exit", "memory bomb", "print flood", "input"),
    *("2,000 children", "2,000 threads", "fills the disk", "closes every descriptor", "one dies, one hangs"),
    *("a cell of their own hangs", "empties the checks", "agrees with everything", "print that knows the lab"),
    *("draw", "a constant peak", "marks on wrong answers", "edited checks, wrong answers", "swapped ids"),
    *("every answer deleted", "anchors only", "speaks for the kernel", "garbage: wrong types", "leaks what comes next"),
    *("reads the solution", "reads processes' environments", "connects", "writes wherever it can", "a daemon"),
    *(
        "rows: rewrites its session",
        "rows: before the kernel speaks",
        "rows: after it, from a thread",
        "rows: gives back its own",
    ),
    *("rows: nested deeply", "a ledger that counts otherwise", "a ledger that holds nothing", "moves the questions"),
}
BROKEN_KINDS = {
    "cut-off",
    "not-json",
    "empty-file",
    "utf-16",
    "format-3",
    "deep",
    "large",
    "link",
    "fifo",
    "two",
    "beside-it",
}


@dataclass(frozen=True)
class HandedIn:
    """A class: its cases of the corpus by learner, the broken files, the folder."""

    cases: dict[str, corpus.Case]
    broken: list
    folder: Path


@dataclass(frozen=True)
class Graded:
    """What came of a class: exit code, output folder, results by learner, and what attacks left."""

    handed_in: HandedIn
    code: int
    out: Path
    results: dict[str, Result]
    left: dict[str, list]


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
    ask, check = cell_of(own, "pages-ask"), cell_of(own, "pages-check")
    ask.metadata.nbgrader.update(grade_id="private-pages-ask")
    check.metadata.nbgrader.update(grade_id="private-pages", points=2)
    check.source = f"# {SECRET_CHECK}\n{check.source}"
    own.cells = [ask, check]
    folder = course / "private"
    folder.mkdir()
    nbformat.write(own, folder / f"{corpus.LAB}.ipynb")
    return folder


@pytest.fixture(
    scope="module", params=[pytest.param("kinds", marks=pytest.mark.slow), pytest.param("whole", marks=pytest.mark.all)]
)
def handed_in(request, course) -> HandedIn:
    """Cases of the corpus and broken files, a folder each; the cases' names are numbers."""
    whole = request.param == "whole"
    released = nb.read(course / "labs" / f"{corpus.LAB}.ipynb")
    perfect = next(case for case in corpus.CASES if case.name == "perfect")
    right = json.loads(json.dumps(perfect.build(copy.deepcopy(released))))
    folder = course / request.param
    cases = {f"case-{n:03d}": case for n, case in enumerate(corpus.CASES) if whole or case.name in KINDS}
    for learner, case in cases.items():
        (folder / learner).mkdir(parents=True)
        corpus.hand_in(case, released, folder / learner / f"{corpus.LAB}.ipynb")
    broken = [one for one in BROKEN_HERE if whole or one.folder in BROKEN_KINDS]
    for one in broken:
        one.build(folder / one.folder, right)
    return HandedIn(cases, broken, folder)


@pytest.fixture(scope="module")
def graded(course, handed_in, checks) -> Graded:
    out, places = course / f"out-{handed_in.folder.name}", [course]
    before = evidence.files(places)
    os.environ["CORPUS_SECRET"] = evidence.SECRET
    options = Options(seed=SEED, jobs=3, spare_s=corpus.CELL_LIMIT_S, checks=checks)
    with evidence.listener() as connections:
        code = grade(corpus.LAB, handed_in.folder, out, course, options)
    del os.environ["CORPUS_SECRET"]
    left = {
        "files": sorted(set(evidence.files(places)) - set(before)),
        "processes": evidence.processes(),
        "connections": connections,
        "shown": evidence.shown_in(out),
    }
    return Graded(handed_in, code, out, stored(out), left)


def stored(out: Path) -> dict[str, Result]:
    found = [from_json(json.loads(path.read_text())) for path in (out / "results").glob("*.json")]
    return {result.learner: result for result in found}


def without_private(result: Result) -> Result:
    return replace(result, questions=tuple(one for one in result.questions if one.key in POINTS))


def test_the_kinds_are_in_the_corpus():
    assert {case.name for case in corpus.CASES} >= KINDS
    assert {one.folder for one in BROKEN} >= BROKEN_KINDS


def test_every_learner_has_a_row_and_some_need_attention(graded):
    assert graded.code == 3
    with (graded.out / "gradebook.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(graded.results) == len(graded.handed_in.cases) + len(graded.handed_in.broken)
    for result in graded.results.values():
        assert (graded.out / "feedback" / f"{result.slug}.html").is_file()


def test_each_case_produces_its_row(graded):
    wrong = []
    for learner, case in graded.handed_in.cases.items():
        wrong += corpus.problems(case, without_private(graded.results[learner]))
    assert not wrong, "\n".join(wrong)


def test_each_broken_file_is_read_or_says_why(graded):
    for broken in graded.handed_in.broken:
        result = graded.results[broken.row]
        if broken.reason:
            assert result.status == UNREADABLE, broken
            assert broken.reason in result.reasons[0], broken
        else:
            assert without_private(result).score == sum(POINTS.values()), (broken, result.reasons)


def test_an_attack_leaves_nothing_behind(graded):
    assert graded.left == {"files": [], "processes": [], "connections": [], "shown": []}


def test_private_checks_count_and_are_nowhere_to_be_seen(graded):
    learner = next(learner for learner, case in graded.handed_in.cases.items() if case.name == "perfect")
    perfect = graded.results[learner]
    assert perfect.status == GRADED
    assert [one.earned for one in perfect.questions if one.key not in POINTS] == [2]
    for path in graded.out.rglob("*"):
        if path.is_file():
            assert SECRET_CHECK.encode() not in path.read_bytes(), path


def test_a_second_run_executes_nothing(graded, course, checks, capsys):
    before = {path: path.stat().st_mtime_ns for path in (graded.out / "results").iterdir()}
    options = Options(jobs=3, spare_s=corpus.CELL_LIMIT_S, checks=checks)
    assert grade(corpus.LAB, graded.handed_in.folder, graded.out, course, options) == 3
    assert before == {path: path.stat().st_mtime_ns for path in (graded.out / "results").iterdir()}
    count = len(graded.results)
    assert re.search(rf"{count} learners, {count} of them graded before", capsys.readouterr().out)


@pytest.mark.all
def test_the_same_seed_gives_the_same_gradebook(graded, course, checks, tmp_path):
    """Two learners of each group again, elsewhere: their lines are the same, byte for byte."""
    groups: dict[str, list[str]] = {}
    for learner, case in graded.handed_in.cases.items():
        groups.setdefault(case.group, []).append(learner)
    some = tuple(learner for learners in groups.values() for learner in learners[:2])
    options = Options(seed=SEED, jobs=3, spare_s=corpus.CELL_LIMIT_S, checks=checks, only=some)
    grade(corpus.LAB, graded.handed_in.folder, tmp_path / "again", course, options)
    for name in ("gradebook.csv", "gradebook_long.csv"):
        first = (graded.out / name).read_text(encoding="utf-8-sig").splitlines()
        second = (tmp_path / "again" / name).read_text(encoding="utf-8-sig").splitlines()
        assert second[0] == first[0]
        assert len(second) > len(some)
        assert set(second) <= set(first)
