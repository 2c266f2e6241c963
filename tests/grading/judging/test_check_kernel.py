"""What the court is made of, what it takes from a kernel, and whose word a check goes by; no kernel runs here."""

from __future__ import annotations

import json

import pytest
from nbformat import NotebookNode

from helpers.course import lab_cells
from helpers.grading.judging.check_kernel import MOST_ROWS, notebook_of, replaced_in, rows_of, spoken_for, weigh
from helpers.grading.sandbox.nbval_run import CellResult, CellResults
from helpers.lesson import asking
from tests.course.example_lab import ask, cell_of, check, code, example_lab

ANSWERED = [{"answer": "2"}, {"answer": "10"}]


def told(*what: object, outcome: str = "passed", message: str = "", fatal: str = "") -> CellResult:
    """An asking cell that told this, as JSON, each in a message of its own."""
    data = [{"data": {asking.MIME: one if isinstance(one, str) else json.dumps(one)}} for one in what]
    return CellResult(outcome, message, 1.0, tuple(data), fatal)


def rows(*found: object) -> dict:
    return {"rows": list(found), "replaced": []}


def lab() -> NotebookNode:
    """The example lab; `twice` has a second asking cell and a check of what that brought, and there are roles."""
    notebook = example_lab()
    at = [cell.id for cell in notebook.cells].index("check-twice")
    many, much = ask("ask-many", "many = [asked(twice, x) for x in range(9)]"), check("check-many", "print(many)", 1)
    notebook.cells[at : at + 1] = [many, notebook.cells[at], much]
    for role in ("", *lab_cells.ROLES[1:]):
        notebook.cells.append(code(f"{role or 'given'} = 1", f"a-{role or 'given'}"))
        notebook.cells[-1].metadata["workbook"] = {"role": role}
    return notebook


class Runs:
    """In the place of nbval: the checks whose ids are in `failing` fail with these words. Keeps what ran."""

    def __init__(self, **failing: str) -> None:
        self.failing, self.notebooks = failing, []

    def __call__(self, notebook: NotebookNode, *, wall_s: float) -> CellResults:
        self.notebooks.append(notebook)
        words = {cell.id: self.failing.get(cell.id.replace("-", "_"), "") for cell in notebook.cells}
        return {key: CellResult("failed" if said else "passed", said, 0.0) for key, said in words.items()}


def weighed(found: CellResults, **failing: str) -> tuple[CellResults, Runs]:
    runs = Runs(**failing)
    return weigh(runs, lab(), found, seed="7", wall_s=100), runs


def test_the_court_has_what_is_given_and_what_checks_need_and_nothing_of_an_answer():
    made = notebook_of(lab(), {"ask-half": ANSWERED}, {"check-half": [{"answer": "1"}]}, "7")
    ids = ["setup", "a-given", "a-apparatus", "a-reference"]
    assert [cell.id for cell in made.cells] == [*ids, "before-ask-half", "ask-half", "before-check-half", "check-half"]
    assert not any("def half" in cell.source for cell in made.cells)
    assert f"give_back({ANSWERED!r})" in cell_of(made, "before-ask-half").source
    assert "half = asking.absent('half')" in cell_of(made, "before-ask-half").source
    assert "refer([{'answer': '1'}])" in cell_of(made, "before-check-half").source


def test_its_own_cells_run_and_an_asking_cell_gets_what_was_answered():
    names: dict = {}
    for cell in notebook_of(example_lab(), {"ask-half": [{"answer": "2.0"}, {"answer": "7.5"}]}, {}, "7").cells:
        if not lab_cells.is_check(cell):
            exec(cell.source, names)
    assert names["halves"] == (2.0, 7.5)
    with pytest.raises(AssertionError, match="half was called outside of `asked`"):
        names["half"](3)
    assert asking.left() == 0
    asking._desk.answers = None


@pytest.mark.parametrize("brought", ["ask-twice", "ask-many"])
def test_where_one_of_two_asking_cells_brought_nothing_the_other_is_weighed(brought):
    made = notebook_of(lab(), {brought: ANSWERED}, {}, "7")
    assert {"ask-twice", "ask-many", "check-twice", "check-many"} < {cell.id for cell in made.cells}
    other = ({"ask-twice", "ask-many"} - {brought}).pop()
    assert "give_back([])" in cell_of(made, f"before-{other}").source


def test_who_hangs_in_one_of_two_asking_cells_keeps_what_the_other_brought():
    hung = CellResult("failed", "ran longer than 10 seconds and was stopped", 10.0, fatal="hung")
    nothing = "the list of nine: there is no answer"
    found, _ = weighed({"ask-twice": told(rows(*ANSWERED)), "ask-many": hung}, check_many=nothing)
    assert found["check-twice"].passed
    assert (found["check-many"].outcome, found["check-many"].message) == ("failed", hung.message)


def test_a_check_that_failed_on_what_was_answered_says_so_though_another_asking_cell_hung():
    hung = CellResult("failed", "ran longer than 10 seconds and was stopped", 10.0, fatal="hung")
    found, _ = weighed({"ask-twice": told(rows(*ANSWERED)), "ask-many": hung}, check_twice="did you add two?")
    assert found["check-twice"].message == "did you add two?"


@pytest.mark.parametrize("words", ["NameError: name 'halves' is not defined", "half(4): there is no answer"])
def test_where_asking_failed_the_check_says_why(words):
    """What the asking cell had not yet assigned, or asked, is missing in court: that is no news to a learner."""
    broken = told(rows({"answer": "2"}), outcome="failed", message="TypeError: half of nothing")
    found, _ = weighed({"ask-half": broken}, check_half=words)
    assert (found["check-half"].outcome, found["check-half"].message) == ("failed", "TypeError: half of nothing")


def test_of_what_was_never_asked_no_court_is_held():
    died = CellResult("failed", "ended the kernel", 1.0, ({"text": "shown"},), "died")
    found, runs = weighed({"ask-half": died, "ask-twice": CellResult("not reached", "not reached: the kernel", 0.0)})
    assert runs.notebooks == []
    assert (found["check-half"].fatal, found["check-half"].message) == ("died", "ended the kernel")
    assert found["check-half"].outputs == (), "what the kernel showed is not the check's"
    assert {found[key].outcome for key in ("check-twice", "check-many", "check-pages")} == {"not reached"}


def test_the_results_of_the_kernel_stay_and_a_check_that_ran_there_has_no_say():
    forged = {"check-half": CellResult("passed", "", 0.0), "half": CellResult("passed", "mine", 0.0)}
    found, _ = weighed(forged | {"ask-half": told(rows())}, check_half="half of 4 is 2")
    assert found["half"].message == "mine"
    assert not found["check-half"].passed


# What is taken from a kernel


@pytest.mark.parametrize(
    "forged",
    [
        "{no json", "null", "[]", "3", '"rows"', "{}", '{"rows": null}', '{"rows": {"answer": "1"}}', '{"rows": "ab"}',
        '{"rows": [1, null, [], "x", {"answer": 7}, {"answer": null}, {"answer": ["1"]}, {"answer": {}}]}',
        "[" * 100_000 + "]" * 100_000,
    ],
    ids=lambda text: text[:40],
)  # fmt: skip
def test_what_has_not_the_shape_of_rows_is_none(forged):
    assert rows_of(told(forged)) == []
    assert replaced_in(told(forged)) == []


def test_good_rows_beside_bad_ones_stay_in_order():
    good = [{"answer": "1"}, {"raised": "no"}]
    assert rows_of(told(rows(good[0], None, {"answer": 2}, good[1]))) == good


def test_rows_are_told_once_by_the_kernel_whoever_else_speaks_is_not_heard():
    assert rows_of(told(rows({"answer": "1"}))) == [{"answer": "1"}]
    assert rows_of(told(rows({"answer": "forged"}), rows({"answer": "1"}))) == []
    assert rows_of(CellResult("passed", "", 0.0)) == []


def test_too_many_rows_and_names_are_cut():
    many = told({"rows": [{"answer": "1"}] * (MOST_ROWS + 5), "replaced": ["x" * 200] * 30})
    assert len(rows_of(many)) == MOST_ROWS
    assert replaced_in(many) == ["x" * 80] * 20


@pytest.mark.parametrize(
    ("found", "spoken"),
    [
        ({"ask-half": told(rows())}, False),
        ({"ask-half": told(rows()), "half": CellResult("passed", "", 0.0)}, False),
        ({"ask-half": told(rows(), rows())}, True),
        ({"half": told(rows())}, True),
        ({"half": told("{")}, True),
    ],
    ids=["the kernel", "a quiet answer", "twice", "an answer", "no JSON"],
)
def test_it_is_seen_that_an_answer_spoke_for_the_kernel(found, spoken):
    assert spoken_for(lab(), found) is spoken


def test_each_check_may_end_the_court_once_and_the_others_are_weighed():
    runs = Runs()

    def run(notebook: NotebookNode, *, wall_s: float) -> CellResults:
        found = runs(notebook, wall_s=wall_s)
        last = next((key for key in found if key.startswith("check-") and not key.endswith("out")), None)
        kept = {key: found[key] for key in list(found)[: list(found).index(last)]} if last else found
        return kept | ({last: CellResult("failed", "it hung", 9.0, fatal="hung")} if last else {})

    found = {f"ask-{key}": told(rows()) for key in ("twice", "pages", "half", "many")}
    found = weigh(run, lab(), found, seed="7", wall_s=100)
    assert {found[key].fatal for key in ("check-twice", "check-many", "check-pages", "check-half")} == {"hung"}
    assert len(runs.notebooks) == 5
