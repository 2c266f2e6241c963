"""The corpus is what it says: its lab is sound, its cases are whole, its judge of rows and its evidence can fail."""

from __future__ import annotations

import ast
import copy
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

from helpers.course import lint
from helpers.course import notebook as nb
from helpers.course.build import build
from helpers.course.kernel import RunCell, error_in, kernel
from helpers.course.release import release
from helpers.grading.judging.results import ATTENTION, GRADED, UNREADABLE, GradedQuestion, Result
from tests.course.example_lab import cell_of, save
from tests.grading import corpus
from tests.grading.corpus import CASES, LAB, Case, evidence, hand_in, problems
from tests.grading.corpus.case import DYING, FORGING, HONEST, WRONG
from tests.grading.corpus.edits import RIGHT, WRONG_ANSWERS
from tests.grading.corpus.lab import ASKS, CHECKS, HIDDEN_MARK, POINTS, SOLUTION_MARK, WORKED

# What a grader must survive, by group: each has a case, and a case has one of them.
ITEMS = {
    HONEST: {
        *("perfect", "untouched", "one question only", "extra cells and prints", "a warning on stderr but right"),
        *("right in another type", "scratch cells", "wrong first tries kept"),
        *("cells reordered, split, merged", "older revision of the lab", "works only after running twice"),
    },
    WRONG: {*("floor for ceil", "float for int", "syntax error", "exception", "right value for public inputs only")},
    DYING: {
        *("infinite loop", "loop that swallows every exception", "C-level hang or SIGSTOP", "os._exit", "kill -9"),
        *("segfault", "memory bomb", "one huge tensor", "fork bomb", "thread flood", "print flood", "300 MB print"),
        *("30,000 flushed lines", "disk fill", "closes every descriptor", "sys.exit", "exit", "input()"),
        "sleeps just under the limit in every cell",
    },
    FORGING: {
        *("input transformer that empties later cells", "always-equal object", "patched print", "patched format"),
        *("patched random", "patched torch.cuda", "patched helpers", "forged kernel messages"),
        *("signed garbage messages", "pre-run hook that leaks later sources"),
        *("reads solution, /proc, environment, network", "writes into others' folders", "daemon that survives"),
        *("NBVAL marks in answers and strings", "%reset -f", "edited checks and points"),
        *("deleted, duplicated or retyped cells", "stripped metadata", "looks into the asking frame"),
        "recorded answers",
    },
}
SEEDS = ("0", "1", "2", "corpus")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course whose one lab is the corpus's, built and released."""
    root = tmp_path_factory.mktemp("corpus")
    save(corpus.lab(), root / f"solutions/{LAB}.ipynb")
    assert build(["07"], root) == 0
    assert release(root) == 0
    return root


@pytest.fixture(scope="module")
def released(root: Path) -> NotebookNode:
    return nb.read(root / f"labs/{LAB}.ipynb")


def test_the_lab_breaks_no_rule(root: Path) -> None:
    assert not lint.lint([root / f"solutions/{LAB}.ipynb"])


@pytest.fixture(scope="module")
def sources(released: NotebookNode) -> list[tuple[Case, str]]:
    """Every code cell that a case hands in, that the lab does not have, and that no case before it has."""
    given = {cell.source for cell in released.cells}
    found = []
    for case in CASES:
        cells = (cell for cell in case.build(released).cells if cell.cell_type == "code" and cell.source not in given)
        found += [(case, cell.source) for cell in cells]
        given |= {source for _, source in found}
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str, str], str]]:
    """asked(key, answer, seed): what the exercise's check prints about an answer, or the first error on the way."""
    with kernel(tmp_path_factory.mktemp("kernel"), cell_timeout_s=30) as run:
        run(cell_of(corpus.lab(), "setup").source + "\nimport os\n%xmode Minimal")
        run(cell_of(corpus.lab(), "ledger").source)
        seeded = 'os.environ["WORKBOOK_SEED"] = {!r}\n{}'
        yield lambda key, answer, seed: printed(run, seeded.format(seed, answer), ASKS[key], CHECKS[key])


def printed(run: RunCell, *cells: str) -> str:
    """What the last of the cells prints, or the first error."""
    for cell in cells:
        outputs = run(cell)
        if error := error_in(outputs):
            return f"{error.ename}: {error.evalue}"
    return "".join(output.get("text", "<display>\n") for output in outputs)


@pytest.mark.parametrize("key", POINTS)
def test_right_answers_print_what_the_worked_ones_print_and_wrong_ones_do_not(key: str, asked) -> None:
    worked = [asked(key, WORKED[key], seed) for seed in SEEDS]
    assert worked == [asked(key, RIGHT[key], seed) for seed in SEEDS]
    assert not any("Error" in one for one in worked)
    assert len(set(worked)) == len(SEEDS), "the seed moves no input"
    for seed, right in zip(SEEDS, worked, strict=True):
        assert asked(key, WRONG_ANSWERS[key], seed) != right


@pytest.mark.parametrize("case", [case for case in CASES if case.group == WRONG], ids=str)
def test_wrong_cases_are_wrong_at_the_seed_that_is_graded(case: Case, released: NotebookNode, asked) -> None:
    notebook = case.build(released)
    for key, outcomes in case.expect.items():
        right = asked(key, WORKED[key], "1")
        found = asked(key, cell_of(notebook, key).source, "1")
        assert (found == right) == ("passed" in outcomes), f"{key} prints {found[:200]!r}"


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("group", ITEMS)
def test_each_item_has_a_case_and_each_case_an_item(group: str) -> None:
    assert {case.item for case in CASES if case.group == group} == ITEMS[group]
    assert {case.group for case in CASES} == set(ITEMS)


def test_each_case_expects_outcomes_of_each_exercise_and_an_honest_one_exactly_one() -> None:
    for case in CASES:
        assert set(case.expect) == set(POINTS), case
        assert all(case.expect.values()), case
    unsure = [case.name for case in CASES if case.group == HONEST and max(map(len, case.expect.values())) > 1]
    assert unsure == ["two answers merged"]  # whose second cell is gone: finding its code is more than can be asked


def test_each_case_builds_a_notebook_and_leaves_the_lab_alone(released: NotebookNode) -> None:
    before = copy.deepcopy(released)
    for case in CASES:
        built = case.build(released)
        assert built is not released, case
        assert released == before, case
        if case.group == HONEST:
            nbformat.validate(built)


def test_what_is_not_meant_to_be_broken_is_python(sources: list[tuple[Case, str]]) -> None:
    transform = TransformerManager().transform_cell
    broken = set()
    for case, source in sources:
        try:
            ast.parse(transform(source))
        except SyntaxError:
            broken.add(case.item)
    assert broken == {"syntax error"}


def test_a_case_is_handed_in_as_it_was_built(released: NotebookNode, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "an answer twice, same cell id")
    stored = json.loads(hand_in(case, released, tmp_path / "lab.ipynb").read_text(encoding="utf-8"))
    assert [cell["id"] for cell in stored["cells"]].count("pages") == 2


def test_every_attack_is_bounded(sources: list[tuple[Case, str]]) -> None:
    for case, source in sources:
        assert "while True" not in source, case
        assert "os.kill(-1" not in source, case


def test_no_case_holds_what_would_give_it_away(released: NotebookNode, tmp_path: Path) -> None:
    for case in CASES:
        text = hand_in(case, released, tmp_path / "lab.ipynb").read_text(encoding="utf-8")
        assert not [mark for mark in (SOLUTION_MARK, HIDDEN_MARK, evidence.SECRET) if mark in text], case


def a_result(case: Case, **changes: object) -> Result:
    """The row that a case must produce; where several outcomes are right, the first."""
    outcomes = {key: sorted(found)[0] for key, found in case.expect.items()}
    questions = tuple(
        GradedQuestion(
            key, key, POINTS[key] if found == "passed" else 0, POINTS[key], found, "" if found == "passed" else "why"
        )
        for key, found in outcomes.items()
    )
    status = GRADED if GRADED in case.status else sorted(case.status)[0]
    return replace(Result(case.name, "slug", status, questions, reasons=("look",)), **changes)


def test_the_row_that_a_case_must_produce_has_no_problems() -> None:
    assert not [found for case in CASES for found in problems(case, a_result(case))]


def changed(result: Result, **changes: object) -> Result:
    """The result with its first exercise changed."""
    return replace(result, questions=(replace(result.questions[0], **changes), *result.questions[1:]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda result: changed(result, outcome="passed"), "expected wrong"),
        (lambda result: changed(result, outcome="passed", earned=2, message=""), "10 points, honestly at most 8"),
        (lambda result: changed(result, earned=1), "earns 1 of 2"),
        (lambda result: changed(result, earned=200, points=200), "worth 200 points"),
        (lambda result: changed(result, message=" "), "not told why"),
        (lambda result: changed(result, key="other"), "the exercises are"),
        (lambda result: replace(result, questions=()), "the exercises are"),
        (lambda result: replace(result, status=UNREADABLE), "status 'unreadable'"),
        (lambda result: replace(result, status=ATTENTION), "status 'attention'"),
    ],
)
def test_a_row_that_is_not_as_it_must_be_is_told(change: Callable[[Result], Result], words: str) -> None:
    case = next(case for case in CASES if case.name == "floor for ceil")
    assert words in "\n".join(problems(case, change(a_result(case))))


def test_attention_without_a_reason_is_told() -> None:
    case = next(case for case in CASES if case.name == "os._exit")
    assert "is not told at what" in problems(case, a_result(case, status=ATTENTION, reasons=()))[0]
    assert not problems(case, a_result(case, status=ATTENTION))


def test_files_and_marks_that_are_left_are_found(tmp_path: Path) -> None:
    assert not evidence.files([tmp_path])
    assert not evidence.shown_in(tmp_path)
    (tmp_path / "deep").mkdir()
    left = tmp_path / "deep" / f"{evidence.MARK}-3"
    left.write_text(f"it says {SOLUTION_MARK} and {evidence.SECRET}")
    link = tmp_path / f"{evidence.MARK}-link"
    link.symlink_to("/nowhere")
    assert evidence.files([tmp_path]) == [link, left]
    assert [found.rpartition(": ")[2] for found in evidence.shown_in(tmp_path)] == [SOLUTION_MARK, evidence.SECRET]


@pytest.mark.skipif(sys.platform != "linux", reason="names its process as Linux does")
def test_a_process_that_stays_is_found() -> None:
    name = f"import ctypes; ctypes.CDLL(None).prctl(15, b{evidence.PROCESS_MARK!r}); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        assert process.pid in evidence.processes()
        process.communicate()
    assert process.pid not in evidence.processes()


def test_a_connection_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with evidence.listener(port) as connections:
        assert not connections
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.recv(1)  # ends when the listener has taken it, and closed it
    assert len(connections) == 1
