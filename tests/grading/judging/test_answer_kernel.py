"""Who is taken out, who is run again and who alone, with a kernel that only counts the cells it is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from nbformat import NotebookNode

from helpers.catalog.errors import WorkbookError
from helpers.course import notebook as nb
from helpers.course.lab_cells import APPARATUS, DEMONSTRATION, REFERENCE
from helpers.grading.judging import answer_kernel as module
from helpers.grading.judging.answer_kernel import BACK, answering, run_answers, secrets_of, set_limits, untouched
from helpers.grading.sandbox.nbval_run import CellResult
from helpers.lesson.asking import MIME
from helpers.lesson.drawn_inputs import secret_of
from tests.course.example_lab import RIGHT, cell_of, code, example_lab, with_sources

ANSWERS_AND_ASKS = {key for name in RIGHT for key in (name, f"ask-{name}")}
Ends = Callable[[NotebookNode, list[str]], bool]  # does this cell end the kernel, after cells with these ids?


def lab() -> NotebookNode:
    """The example lab, with a cell of the learner's own after the setup."""
    learner = with_sources(example_lab(), RIGHT)
    learner.cells.insert(2, code("mine = 1", "learner-0"))
    return learner


class Runs:
    """In the place of nbval: cells pass in order until one ends the kernel; an asking cell needs its answer before it.

    Keeps what it was asked to run.
    """

    def __init__(self, ends: Ends) -> None:
        self.ends, self.notebooks, self.asked = ends, [], []

    def __call__(self, notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        self.notebooks.append(notebook)
        self.asked.append(wall_s)
        found: dict[str, CellResult] = {}
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            if cell.source != "pass" and self.ends(cell, [key for key in found if not key.startswith(BACK)]):
                return found | {cell.id: CellResult("failed", f"{cell.id} hung", 1.0, fatal="hung")}
            answered = cell.id.removeprefix("ask-") in [*found, cell.id]
            words = f"run {len(self.notebooks)}"
            found[cell.id] = CellResult("passed" if answered else "failed", words if answered else "NameError", 0.0)
        return found

    def ids(self, number: int) -> list[str]:
        """The code cells of the run with that number, from 0, but for those that put back."""
        return [cell.id for cell in self.notebooks[number].cells if _code(cell)]


def _code(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and not cell.id.startswith(BACK)


def by_name(*keys: str) -> Ends:
    """These cells end the kernel, whatever ran before them."""
    return lambda cell, _: cell.id in keys


def tried(ends: Ends) -> tuple[dict[str, CellResult], Runs]:
    runs = Runs(ends)
    return run_answers(runs, example_lab(), lab(), seed="7", wall_s=100), runs


def passed(found: dict[str, CellResult]) -> set[str]:
    return {key for key, result in found.items() if result.passed} & ANSWERS_AND_ASKS


@pytest.mark.parametrize(
    ("culprits", "runs", "alone"),
    [
        ((), 1, []),
        (("twice",), 2, ["twice"]),
        (("ask-half",), 2, ["half"]),
        (("learner-0",), 2, []),
        (("setup",), 2, []),
        (("twice", "ask-pages"), 3, ["twice", "pages"]),
    ],
    ids=str,
)
def test_a_culprit_is_taken_out_and_keeps_its_result(culprits, runs, alone):
    found, asked = tried(by_name(*culprits))
    assert [asked.ids(number)[2] for number in range(runs, len(asked.notebooks))] == alone
    assert passed(found) == ANSWERS_AND_ASKS - {*culprits, *(f"ask-{key}" for key in culprits)}
    for key in culprits:
        assert (found[key].fatal, found[key].message) == ("hung", f"{key} hung")
        assert key not in asked.ids(runs - 1)
        assert cell_of(asked.notebooks[runs - 1], f"{key}-taken-out").source == "pass"


def test_slow_cells_of_ones_own_do_not_use_up_the_runs():
    """Four installations that wait for a network, and then a helper that an answer needs."""
    learner = lab()
    slow = [f"learner-{number}" for number in range(1, 5)]
    learner.cells[2:2] = [code(f"!pip install {key}", key) for key in slow] + [code("helper = 2", "learner-9")]
    runs = Runs(by_name(*slow))
    found = run_answers(runs, example_lab(), learner, seed="7", wall_s=100)
    assert len(runs.notebooks) == 5
    assert passed(found) == ANSWERS_AND_ASKS
    assert "learner-9" in runs.ids(4)


def with_roles() -> NotebookNode:
    """`lab`, with a cell of each role at its end."""
    learner = lab()
    for role in ("", APPARATUS, REFERENCE, DEMONSTRATION):
        learner.cells.append(code(f"{role or 'given'} = 1", f"a-{role or 'given'}"))
        learner.cells[-1].metadata["workbook"] = {"role": role}
    return learner


def test_what_is_given_comes_first_then_what_asks_alone_uses_then_the_learners():
    found = answering(example_lab(), with_roles(), "7")
    ids = ["setup", "a-given", "a-apparatus", "answers-begin", "learner-0"]
    ids += [f"{before}{name}" for name in RIGHT for before in ("", "back-ask-", "ask-")]
    assert [cell.id for cell in found.cells] == ids
    firsts = {cell.id: cell.source.splitlines()[0] for cell in found.cells}
    marks = {key: first.partition(', "secrets"')[0] for key, first in firsts.items() if first.startswith("#:")}
    assert marks == {
        "a-apparatus": "#: apparatus",
        "answers-begin": "#: answers begin",
        "back-ask-twice": "#: put back",
        "ask-twice": '#: ask {"names": ["twice"]',
        "back-ask-pages": "#: put back",
        "ask-pages": '#: ask {"names": ["Pages"]',
        "back-ask-half": "#: put back",
        "ask-half": '#: ask {"names": ["half"]',
    }
    assert cell_of(found, "ask-half").source.endswith(cell_of(lab(), "ask-half").source)


def test_an_asking_cell_gets_the_names_of_the_worked_answers_whatever_a_learner_calls_theirs():
    learner = with_sources(lab(), {"half": "def halve(x): ...\ndef draw(): ..."})
    assert '{"names": ["half"]' in cell_of(answering(example_lab(), learner, "7"), "ask-half").source


def test_an_asking_cell_brings_what_it_draws_with_and_nothing_in_the_notebook_holds_the_seed():
    made = answering(example_lab(), lab(), "a seed")
    for name in RIGHT:
        found = json.loads(cell_of(made, f"ask-{name}").source.splitlines()[0].removeprefix("#: ask "))
        assert found["secrets"] == {f"lab-05/{name}": secret_of(f"lab-05/{name}", "a seed")}
    assert "a seed" not in nb.text(made)


@pytest.mark.parametrize("line", ['draw("lab-05/" + name)', 'draw("lab-05/a"), draw("lab-05/a")', "draw(*names)"])
def test_what_an_asking_cell_draws_is_known_before_it_runs(line):
    with pytest.raises(WorkbookError, match="each name once in a cell"):
        secrets_of(code(line, "ask"), "7")


def test_alone_there_is_no_cell_of_the_learners_own():
    runs = Runs(by_name("half"))
    run_answers(runs, example_lab(), with_roles(), seed="7", wall_s=100)
    assert runs.ids(2) == ["setup", "a-given", "a-apparatus", "answers-begin", "half", "ask-half"]


def test_what_is_asked_is_compared_with_nothing():
    learner = lab()
    cell_of(learner, "ask-twice").outputs = [{"output_type": "stream", "name": "stdout", "text": "twice(1) -> 2"}]
    cell_of(learner, "ask-twice").execution_count = 3
    asking = cell_of(answering(example_lab(), learner, "7"), "ask-twice")
    assert (asking.outputs, asking.execution_count) == ([], None)


def test_the_notebook_that_was_handed_in_is_not_changed():
    learner = lab()
    before = learner.copy()
    run_answers(Runs(by_name("ask-twice")), example_lab(), learner, seed="7", wall_s=100)
    assert learner == before


def test_the_last_word_about_a_cell_counts():
    found, _ = tried(by_name("pages"))
    assert found["twice"].message == "run 2"


def test_after_three_runs_each_exercise_is_run_alone():
    found, runs = tried(by_name("twice", "pages", "half"))
    assert passed(found) == set()
    assert [runs.ids(number) for number in range(3, len(runs.notebooks))] == [
        ["setup", "answers-begin", "twice", "ask-twice"],
        ["setup", "answers-begin", "pages", "ask-pages"],
        ["setup", "answers-begin", "half", "ask-half"],
    ]
    assert {key for key in RIGHT if found[key].fatal} == set(RIGHT)


def test_an_exercise_that_failed_by_itself_is_not_run_again():
    runs = Runs(by_name("pages", "half", "ask-half"))

    def run(notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        found = runs(notebook, wall_s=wall_s)
        return found | {"ask-twice": CellResult("failed", "no", 0.0)} if "twice" in found else found

    found = run_answers(run, example_lab(), lab(), seed="7", wall_s=100)
    assert found["ask-twice"].message == "no"
    assert [runs.ids(number)[2] for number in range(3, len(runs.notebooks))] == ["pages", "half"]


@pytest.mark.parametrize(
    ("output", "alone"),
    [
        ({"traceback": ["Traceback", "MemoryError: "]}, True),
        ({"traceback": ["RuntimeError: can't start new thread"]}, True),
        ({"name": "stdout", "text": "Unexpected exception formatting exception. Falling back"}, True),
        ({"traceback": ["RuntimeError: DefaultCPUAllocator: can't allocate memory"]}, True),
        ({"data": {MIME: json.dumps({"rows": [{"raised": "half raised MemoryError"}]})}}, True),
        ({"data": {MIME: json.dumps({"rows": [{"raised": "half raised ValueError: no"}]})}}, False),
        ({"data": {MIME: json.dumps({"rows": [{"answer": '"OutOfMemoryError"'}]})}}, False),  # a right answer may be
        ({"name": "stdout", "text": "MemoryError, as expected"}, False),
        ({"traceback": ["ValueError: no"]}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("outcome", ["failed", "passed"])  # what an answer raises is written down, and its cell passes
def test_who_failed_for_want_of_what_another_took_is_run_alone(output, alone, outcome):
    runs = Runs(lambda cell, before: False)

    def run(notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        found = runs(notebook, wall_s=wall_s)
        starved = CellResult(outcome, "no", 0.0, (output,))
        return found | ({"ask-half": starved} if "twice" in found else {})

    found = run_answers(run, example_lab(), lab(), seed="7", wall_s=100)
    again = [runs.ids(number) for number in range(1, len(runs.notebooks))]
    assert again == [["setup", "answers-begin", "half", "ask-half"]] * alone
    assert (found["ask-half"].message == "no") is not alone


def test_an_answer_may_print_an_error_that_it_has_dealt_with():
    told = {"data": {MIME: json.dumps({"rows": [{"answer": "8"}]})}}
    printed = {"name": "stderr", "text": "Traceback (most recent call last):\ntorch.OutOfMemoryError: over budget"}
    runs = Runs(lambda cell, before: False)

    def run(notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        return runs(notebook, wall_s=wall_s) | {"ask-half": CellResult("passed", "", 0.0, (printed, told))}

    run_answers(run, example_lab(), lab(), seed="7", wall_s=100)
    assert len(runs.notebooks) == 1, "what else the learner wrote would be missing, alone"


@pytest.mark.parametrize("how", ["died", "hung", "flooded"])
@pytest.mark.parametrize("guilty", ["twice", "half"])
def test_where_the_kernel_ended_is_tried_alone_before_it_is_to_blame(guilty, how):
    """What `twice` leaves behind, a crowd of threads say, may end the kernel in `half`."""
    runs = Runs(lambda cell, before: False)

    def run(notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        found = runs(notebook, wall_s=wall_s)
        if guilty in found and "half" in found and cell_of(notebook, "half").source != "pass":
            kept = {key: one for key, one in found.items() if key not in ("half", "ask-half")}
            return kept | {"half": CellResult("failed", "ended", 0.0, fatal=how)}
        return found

    found = run_answers(run, example_lab(), lab(), seed="7", wall_s=100)
    assert runs.ids(len(runs.notebooks) - 1) == ["setup", "answers-begin", "half", "ask-half"]
    assert (found["half"].fatal == how) is (guilty == "half")
    assert ("ask-half" in passed(found)) is (guilty == "twice")


@pytest.mark.parametrize(("starts", "steps"), [("learner-0", 2), ("learner-0", 3), ("twice", 3), ("pages", 3)], ids=str)
def test_who_was_only_near_when_a_timer_went_off_gets_the_points_back(starts, steps):
    def timer(cell: NotebookNode, before: list[str]) -> bool:
        return starts in before and len(before) - before.index(starts) == steps

    runs = Runs(lambda cell, before: False)

    def run(notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        found = runs(notebook, wall_s=wall_s)
        for number, key in enumerate(found):
            if timer(cell_of(notebook, key), list(found)[:number]):
                kept = dict(list(found.items())[:number])
                return kept | {key: CellResult("failed", "killed", 0.0, fatal="died")}
        return found

    found = run_answers(run, example_lab(), lab(), seed="7", wall_s=100)
    assert len(runs.notebooks) > 3
    assert passed(found) == ANSWERS_AND_ASKS


@pytest.mark.parametrize(
    ("each_s", "asked_s"),
    [
        (10, [25, 15, 5]),  # the third ends after the time: nobody is run alone
        (8, [25, 17, 9, 1]),  # the first alone gets what is left, the others nothing
        (8.2, [25, 16.8, 8.6, 1]),  # and never less than a second
        (30, [25]),
    ],
    ids=str,
)
def test_the_time_for_everything_ends_it(monkeypatch, each_s, asked_s):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    runs = Runs(by_name("twice", "pages", "half"))

    def run(notebook: NotebookNode, *, wall_s: float) -> dict[str, CellResult]:
        clock.now += each_s
        return runs(notebook, wall_s=wall_s)

    found = run_answers(run, example_lab(), lab(), seed="7", wall_s=25)
    assert runs.asked == pytest.approx(asked_s)
    assert found["twice"].fatal == "hung"


def test_cells_that_were_not_reached_are_not_in_it():
    assert run_answers(lambda notebook, **_: {}, example_lab(), lab(), seed="7", wall_s=100) == {}


def test_the_untouched_lab_has_stubs_for_answers_and_the_references_checks():
    reference = example_lab()
    cell_of(reference, "check-twice").execution_count = 2
    cell_of(reference, "twice").execution_count = 1
    found = untouched(reference)
    assert "return 2 * x" in cell_of(reference, "twice").source
    for key in RIGHT:
        assert "SOLUTION" not in cell_of(found, key).source
        assert "NotImplementedError" in cell_of(found, key).source
        assert cell_of(found, key).execution_count is None
        assert cell_of(found, f"check-{key}") == cell_of(reference, f"check-{key}")


def test_each_cell_gets_ten_times_what_the_reference_took_and_some_more():
    reference = example_lab()
    set_limits(reference, {"twice": 1.234}, 10.0)
    limits = {cell.id: cell.metadata.workbook for cell in reference.cells if cell.cell_type == "code"}
    assert limits["twice"] == {"limit_s": 22.3}
    assert limits["setup"] == {"limit_s": 10.0}
    assert set(limits["check-twice"]) == {"limit_s", "rubric"}, "what was there stays"
