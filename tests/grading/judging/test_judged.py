"""What a judge hears of a learner's kernel, and what becomes of the check; the court's cells run right here."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
from unittest import mock

import pytest
from helpers.lesson.judged import REPLAY
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.grading.judging.trial import MOST_ANSWERS, judge, unmarked
from helpers.grading.sandbox.nbval_run import CellResult
from tests.course.example_lab import answer, cell_of, check, code

CHECK_SPLIT = """for whole in (4, 7):
    parts = judged(split, whole)
    assert sum(parts) == whole, f"{parts} is not {whole}"
    print(f"{whole}: {'many' if len(parts) > 3 else 'few'}")"""
CHECK_ORDER = """found = judged(order, "ba")
assert sorted(found) == ["a", "b"], "each letter once"
print("ordered")"""
SPLIT = "judged: [1, 3]\n4: few\njudged: [7]\n7: few\n"


def run(notebook: NotebookNode, *, seed: str, wall_s: float) -> dict[str, CellResult]:
    """In the place of nbval: the cells run here until one raises; a cell after it runs too, as in a kernel."""
    names: dict = {}
    found = {}
    with mock.patch.dict(os.environ):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                found[cell.id] = executed(cell.source, names)
    return found


def executed(source: str, names: dict) -> CellResult:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(source, names)
            outcome, message = "passed", ""
        except Exception as error:
            outcome, message = "failed", str(error)
    return printed(out.getvalue(), outcome, message)


def printed(text: str, outcome: str = "passed", message: str = "", fatal: str = "") -> CellResult:
    return CellResult(outcome, message, 0.0, ({"output_type": "stream", "name": "stdout", "text": text},), fatal)


@pytest.fixture(scope="module")
def reference() -> NotebookNode:
    """Two judged checks and a plain one between them, with their outputs."""
    lab = v4.new_notebook(
        cells=[
            code("from helpers.lesson.judged import judged", "setup"),
            answer("split", "def split(whole):\n    return [whole - 1, 1]"),
            check("check-split", CHECK_SPLIT),
            answer("twice", "def twice(x):\n    return 2 * x"),
            check("check-twice", "print(twice(2))"),
            answer("order", "def order(text):\n    return sorted(text)"),
            check("check-order", CHECK_ORDER),
        ]
    )
    results = run(lab, seed="7", wall_s=1)
    for cell in lab.cells:
        if cell.id.startswith("check-"):
            cell.outputs = [v4.new_output("stream", name="stdout", text=results[cell.id].stdout)]
            cell.execution_count = 1
    return lab


def learners(**outputs: str | CellResult) -> dict[str, CellResult]:
    """What came out of a learner's kernel: all is right but for the checks named here (check_split="...")."""
    found = {"check-split": SPLIT, "check-twice": "4\n", "check-order": 'judged: ["b", "a"]\nordered\n'}
    found |= {name.replace("_", "-"): value for name, value in outputs.items()}
    return {key: printed(value) if isinstance(value, str) else value for key, value in found.items()}


def judged_cells(reference: NotebookNode, cells: dict[str, CellResult], run=run) -> dict[str, CellResult]:
    return judge(run, reference, cells, seed="7", wall_s=60)


def test_other_answers_pass_and_keep_what_the_learner_saw(reference):
    cells = learners()
    assert judged_cells(reference, cells) == cells


def test_what_else_the_learner_printed_does_not_matter(reference):
    noise = "hello\nI judged: it\nno newline, then " + SPLIT.replace("few", "as few as can be") + "bye\n"
    cells = learners(check_split=noise)
    assert judged_cells(reference, cells) == cells


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("judged: [1, 1]\n4: few\njudged: [7]\n7: few\n", "[1, 1] is not 4"),
        (SPLIT + "judged: [7]\n", "more answers were printed than the check asked for"),
        ("judged: [4]\n", "the check printed fewer answers than it asked for"),
        ("4: few\n7: few\n", "the check printed fewer answers than it asked for"),
        ("so judged: [4\nso judged: 7]\n", "the check printed fewer answers than it asked for"),
        ("judged: [4]\njudged: 7;\n", "no plain data"),
        ("judged: [4]\njudged: [NaN]\n", "NaN, which is no number"),
        ("judged: [4]\njudged: 7\n", "not iterable"),
        (
            "judged: [1, 1, 1, 1]\n4: few\njudged: [7]\n7: few\n",
            "the judge found other values than the worked answer has\n  expected: 4: few\n  yours:    4: many",
        ),
        ("judged: [4]\njudged: [7]\n" + "x" * 500_000, "the check printed fewer answers than it asked for"),
        ("judged: [4]\n" * (MOST_ANSWERS + 1), "[4] is not 7"),
    ],
    ids=lambda value: value[:40],
)
def test_the_judge_finds_what_is_wrong_and_the_other_checks_keep_their_word(reference, text, message):
    cells = learners(check_split=text)
    found = judged_cells(reference, cells)
    assert (found["check-split"].outcome, found["check-split"].stdout) == ("failed", text)
    assert message in found["check-split"].message
    assert {key: found[key] for key in found if key != "check-split"} == {
        key: cells[key] for key in cells if key != "check-split"
    }


@pytest.mark.parametrize(
    "cell",
    [
        printed(SPLIT, "failed", "your plan is wrong"),
        printed(SPLIT, "not reached"),
        printed(SPLIT, "failed", "hung", "hung"),
        None,
    ],
    ids=["failed", "not reached", "fatal", "missing"],
)
def test_a_check_that_did_not_pass_in_the_learners_kernel_is_not_weighed(reference, cell):
    cells = learners(check_split=cell)
    cells = {key: result for key, result in cells.items() if result is not None}
    courts = []
    assert judged_cells(reference, cells, lambda court, **_: courts.append(court) or run(court, **_)) == cells
    assert "check-split" not in [one.id for one in courts[0].cells]


def test_the_recorded_lines_reach_the_court_and_nothing_else_of_the_learners(reference):
    secret = "only the learner printed this"
    text = f"{secret}\njudged: [4]\n{secret} judged: it\njudged: [7]\r\n7: few\n"
    cells = learners(check_split=text, setup=secret, split=secret)
    cells["split"] = CellResult("passed", secret, 0.0, ({"output_type": "display_data", "data": {}, "metadata": {}},))
    courts = []
    judged_cells(reference, cells, lambda court, **_: courts.append(copy.deepcopy(court)) or run(court, **_))
    (court,) = courts
    assert secret not in nb.text(court)
    given = [cell for cell in court.cells if not cell.id.startswith(("before-", "after-"))]
    assert [(cell.id, cell.source) for cell in given] == [
        (cell.id, cell.source) for cell in reference.cells if cell.id != "check-twice"
    ]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in court.cells)
    before = cell_of(court, "before-check-split")
    assert court.cells.index(before) + 1 == court.cells.index(cell_of(court, "check-split"))
    with mock.patch.dict(os.environ):
        exec(before.source, {})
        assert json.loads(os.environ[REPLAY]) == ["[4]", "[7]"]


@pytest.mark.parametrize("line", ['"\\u0000 \\ud800 é"', '\'""" + 1/0 + """', "\\", "{0!r} %s", "\x1b[0m"])
def test_a_recorded_line_is_text_in_the_court_whatever_it_says(reference, line):
    text = f"judged: {line}\n"
    courts = []
    judged_cells(reference, learners(check_split=text), lambda court, **_: courts.append(court) or run(court, **_))
    with mock.patch.dict(os.environ):
        exec(cell_of(courts[0], "before-check-split").source, {})
        assert json.loads(os.environ[REPLAY]) == [line]


@pytest.mark.parametrize(
    ("weighed", "outcome", "message"),
    [
        ({}, "not reached", "not reached"),
        ({"check-split": printed("", "failed", "ran too long", "hung")}, "failed", "ran too long"),
        ({"check-split": printed(SPLIT)}, "failed", "more answers"),
        ({"check-split": printed(SPLIT), "after-check-split": printed("1\n")}, "failed", "more answers"),
        ({"check-split": printed(""), "after-check-split": printed("0\n")}, "failed", "no answer"),
        ({"check-split": printed("judged: [4]\n"), "after-check-split": printed("0\n")}, "failed", "other values"),
        ({"check-split": printed("judged: []\n9: few\n"), "after-check-split": printed("0\n")}, "failed", "   9: few"),
        ({"check-split": printed(SPLIT), "after-check-split": printed("0\n")}, "passed", ""),
    ],
    ids=["silent", "hung", "died", "left over", "nothing", "less", "other", "right"],
)
def test_only_a_judge_who_says_yes_leaves_the_points(reference, weighed, outcome, message):
    def court(notebook: NotebookNode, **_) -> dict[str, CellResult]:
        return {key: one for key, one in weighed.items() if any(cell.id == key for cell in notebook.cells)}

    found = judged_cells(reference, learners(), court)["check-split"]
    assert found.outcome == outcome
    assert message in found.message


def test_a_plan_that_the_judge_does_not_survive_costs_no_other_question(reference):
    def deadly(notebook: NotebookNode, **limits) -> dict[str, CellResult]:
        found = run(notebook, **limits)
        keys = list(found)
        if "check-split" not in found:
            return found
        found["check-split"] = printed("", "failed", "ran into the time limit", "hung")
        rest = CellResult("not reached", "not reached", 0.0)
        return {key: found[key] if keys.index(key) <= keys.index("check-split") else rest for key in keys}

    found = judged_cells(reference, learners(), deadly)
    assert (found["check-split"].outcome, found["check-split"].message) == ("failed", "ran into the time limit")
    assert found["check-order"].passed


def test_a_judged_check_that_records_nothing_never_passes(reference):
    """A lab's own function called `judged` would otherwise leave the check compared with nothing at all."""
    lab = copy.deepcopy(reference)
    cell_of(lab, "setup").source = "def judged(answer, whole):\n    return [4] if whole == 4 else [whole]"
    found = judged_cells(lab, learners(check_split="4: few\n7: few\n"))["check-split"]
    assert (found.outcome, found.message) == ("failed", "the check printed no answer to be weighed")


def test_without_a_judged_check_nobody_is_asked(reference):
    lab = copy.deepcopy(reference)
    lab.cells = [cell for cell in lab.cells if cell.id not in ("check-split", "check-order")]
    assert judged_cells(lab, learners(), lambda *_, **__: pytest.fail("asked")) == learners()


def test_only_judged_checks_are_not_compared(reference):
    lab = copy.deepcopy(reference)
    cell_of(lab, "check-order").metadata["tags"] = ["z"]
    found = unmarked(lab)
    tags = {cell.id: sorted(nb.tags(cell)) for cell in found.cells if nb.tags(cell)}
    assert tags == {"check-split": [nb.IGNORE_TAG], "check-order": [nb.IGNORE_TAG, "z"]}
    assert not nb.tags(cell_of(lab, "check-split")), "the notebook that was handed in is not changed"


def test_plans_that_end_the_judges_kernel_cost_their_own_questions_alone(reference):
    heavy = [f"check-heavy-{number}" for number in range(4)]
    lab = copy.deepcopy(reference)
    for key in heavy:
        lab.cells.insert(1, check(key, CHECK_ORDER))
        cell_of(lab, key).outputs = cell_of(lab, "check-order").outputs

    def court(notebook: NotebookNode, **_) -> dict[str, CellResult]:
        for cell in notebook.cells:
            if cell.id in heavy:
                return {cell.id: CellResult("failed", "ended the kernel", 0.0, fatal="died")}
        return run(notebook, **_)

    found = judged_cells(lab, learners(**dict.fromkeys(heavy, learners()["check-order"])), court)
    assert {key for key, one in found.items() if not one.passed} == {*heavy}
