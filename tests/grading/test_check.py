"""One learner's lab under nbval: points for explicit passes, a sentence for the rest."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path

import psutil
import pytest
from nbformat import v4

from helpers.catalog.errors import WorkbookError
from helpers.course import notebook as nb
from helpers.grading.check import _counted, check, one_lab, results_of
from helpers.grading.judging.results import GradedQuestion
from helpers.grading.sandbox.nbval_run import pytest_environment, run
from tests.course.example_lab import RIGHT, code, save, with_sources

NAME = "05_numbers.ipynb"


def graded(root: Path, sources: dict[str, str], seed: str = "0"):
    """The exercises' results for the released lab with these answers, by title."""
    learner = save(with_sources(nb.read(root / "labs" / NAME), sources), root / "mine.ipynb")
    results, _ = results_of(root / "solutions" / NAME, learner, seed=seed)
    return {result.title: result for result in results}


def test_an_untouched_lab_earns_nothing_and_reads_not_started(built_root, capsys):
    assert check("05", built_root) == 1
    told = capsys.readouterr().out
    assert told.count("not started") == 3
    assert told.endswith("0 of 5 points\n")
    assert check("05", built_root, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["lab"], told["earned"], told["points"], told["warnings"]) == ("05_numbers", 0, 5, [])
    assert [(one["title"], one["outcome"]) for one in told["questions"]][:1] == [("1 Twice", "not started")]


@pytest.mark.slow
def test_right_answers_earn_every_point(course, capsys, monkeypatch):
    (course / "conftest.py").write_text("raise SystemExit('a conftest ran')")
    monkeypatch.setattr("tempfile.tempdir", str(course))
    path = save(with_sources(nb.read(course / "labs" / NAME), RIGHT), course / "elsewhere/05_numbers (1).ipynb")
    assert check(str(path), course) == 0
    assert capsys.readouterr().out.endswith("5 of 5 points\n")


def test_one_failed_exercise_is_exit_code_1(built_root, monkeypatch):
    results = (GradedQuestion("one", "1 One", 1, 1, "passed"), GradedQuestion("two", "2 Two", 0, 1, "wrong", "no"))
    monkeypatch.setattr("helpers.grading.check.results_of", lambda *_, **__: (results, ()))
    assert check("05", built_root) == 1
    monkeypatch.setattr("helpers.grading.check.results_of", lambda *_, **__: (results[:1], ()))
    assert check("05", built_root) == 0


@pytest.mark.parametrize("in_a_terminal", [False, True])
def test_each_question_is_told_once_when_all_of_its_cells_were_run(in_a_terminal, monkeypatch, capsys):
    told = []

    def run(notebook, look):
        for number in (1, 2, 3, 3):
            look(dict.fromkeys(["a", "b", "c"][:number]))
            told.append(capsys.readouterr())

    monkeypatch.setattr("helpers.grading.check.run", run)
    monkeypatch.setattr("sys.stderr.isatty", lambda: in_a_terminal)
    _counted("asked", {"1 One": [code("", "a"), code("", "b")], "2 Two": [code("", "c")]})(None)
    begin, end = ("\r\x1b[K", "") if in_a_terminal else ("", "\n")
    assert [one.err for one in told] == ["", f"{begin}1 of 2 asked: 1 One{end}", f"{begin}2 of 2 asked: 2 Two{end}", ""]
    assert not any(one.out for one in told)


def test_each_wrong_answer_gets_its_sentence(course):
    wrong = {
        "twice": "def twice(x):\n    return x + 2",
        "pages": "class Pages:\n    def count(self, tokens):\n        return tokens // 4",
        "half": "def half(x) return x",
    }
    results = graded(course, wrong)
    assert results["1 Twice"].message == "twice(1) is 2: did you add two?"
    assert "expected: 5 -> 2" in results["2 Pages"].message
    assert "yours:    5 -> 1" in results["2 Pages"].message
    assert results["3 Half"].message.startswith("your answer cell did not run: SyntaxError")
    assert not any(result.earned for result in results.values())


@pytest.mark.slow
def test_neither_marks_nor_an_edited_check_pass_and_a_warning_costs_nothing(course):
    cheat = {
        "twice": "# NBVAL_SKIP\ndef twice(x):\n    return 0",
        "check-twice": "print('1 -> 2')\nprint('5 -> 10')",
        "pages": RIGHT["pages"].replace("return", "print('?', file=__import__('sys').stderr); return"),
        "half": RIGHT["half"],
    }
    results = graded(course, cheat)
    assert results["1 Twice"].earned == 0
    assert results["2 Pages"].passed
    assert results["3 Half"].passed


@pytest.mark.slow
def test_a_dead_kernel_is_a_row_not_a_wait(course):
    results = graded(course, RIGHT | {"pages": "import os\nos.kill(os.getpid(), 9)"})
    assert results["1 Twice"].earned == 2
    assert results["2 Pages"].outcome == "died"
    assert "ended the kernel" in results["2 Pages"].message
    assert results["3 Half"].passed, "a question that can be run keeps its points"


@pytest.mark.slow
def test_a_cell_of_the_learners_own_that_ends_the_kernel_is_told(course, tmp_path):
    lab = with_sources(nb.read(course / "labs/05_numbers.ipynb"), RIGHT)
    lab.cells.insert(2, v4.new_code_cell("# an experiment\nimport os\nos._exit(1)"))
    save(lab, tmp_path / "mine.ipynb")
    questions, warnings = results_of(course / "solutions/05_numbers.ipynb", tmp_path / "mine.ipynb")
    assert all(question.passed for question in questions)
    (warning,) = warnings
    assert "the cell 'import os' ended the kernel" in warning
    assert "the rest was run without it" in warning


@pytest.mark.slow
def test_another_seed_draws_other_inputs_for_solution_and_learner_alike(course):
    stored = random.Random("0/lab-05/half").randrange(10**6)
    copied = f"def half(x):\n    return {{4: 2}}.get(x, {stored / 2})"  # right for the public outputs alone
    assert "line 1" in graded(course, RIGHT | {"half": copied}, seed="7")["3 Half"].message
    assert graded(course, RIGHT, seed="7")["3 Half"].passed


def test_only_explicit_passes_count():
    cells = [
        code("print(1)", "fine"),
        code("print(1)", "skipped", "nbval-skip"),
        code("while True: pass", "hangs"),
        code("print(1)", "after"),
    ]
    cells[2].metadata["workbook"] = {"limit_s": 1}
    cells[0].execution_count, cells[0].outputs = 1, [v4.new_output("stream", name="stdout", text="1\n")]
    results = run(v4.new_notebook(cells=cells))
    outcomes = {key: result.outcome for key, result in results.items()}
    assert outcomes == {"fine": "passed", "skipped": "not reached", "hangs": "failed"}
    assert results["hangs"].fatal == "hung"
    assert "ran far longer than" in results["hangs"].message
    assert [key for key, result in results.items() if result.passed] == ["fine"]


@pytest.mark.slow
def test_the_whole_run_has_one_clock_and_leaves_no_kernel(tmp_path):
    pid_file = tmp_path / "pid"
    cells = [
        code(f"import os, pathlib\npathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))", "first"),
        code("import time\ntime.sleep(600)", "sleeps"),
    ]
    results = run(v4.new_notebook(cells=cells), wall_s=15)
    assert results["first"].passed
    assert "sleeps" not in results or not results["sleeps"].passed
    assert gone(int(pid_file.read_text()))


def test_ctrl_c_ends_the_kernel_too(tmp_path):
    pid_file, looked = tmp_path / "pid", []

    def press(found):
        looked.append(sorted(found))
        if "first" in found:
            raise KeyboardInterrupt

    write = code(f"import os, pathlib\npathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))", "first")
    with pytest.raises(KeyboardInterrupt):
        run(v4.new_notebook(cells=[write, code("import time\ntime.sleep(600)", "sleeps")]), look=press)
    assert looked[-1] == ["first"]
    assert gone(int(pid_file.read_text()))


def gone(pid: int, within_s: float = 20) -> bool:
    """Whether the process ends soon: a killed one is a zombie until init, its last parent, has looked at it."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def test_a_process_that_runs_on_is_not_gone():
    assert not gone(os.getpid(), within_s=0.3)


@pytest.mark.parametrize(
    ("lab", "words"), [("6", "05_numbers"), ("labs/none.ipynb", "unknown lab"), ("05_broken.ipynb", "cannot read")]
)
def test_input_that_cannot_be_graded_is_told_with_exit_code_2(lab, words, course, capsys, monkeypatch):
    monkeypatch.chdir(course)
    Path("05_broken.ipynb").write_text("{")
    assert check(lab, course) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "lab",
    [
        *("05", "5", "lab 05", "Lab-5", "lab05", " 05 ", "05_numbers", "05_numbers.ipynb", "labs/05_numbers.ipynb"),
        *("solutions/05_numbers.ipynb", "labs/mine (1).ipynb"),
    ],
)
def test_a_lab_is_known_by_its_number_its_name_and_its_files(lab, course, monkeypatch):
    monkeypatch.chdir(course)
    shutil.copy(course / "labs" / NAME, course / "labs/mine (1).ipynb")
    assert one_lab(lab, course) == course / "solutions" / NAME


@pytest.mark.parametrize(
    "lab", ["", "lab", "50", "005", "numbers", "05_number", "5.0", "٥", "labs/06.ipynb", "lab 05 06"]
)
def test_what_is_no_lab_is_told_with_the_labs_that_there_are(lab, course):
    with pytest.raises(WorkbookError) as told:
        one_lab(lab, course)
    assert told.value.what == f"unknown lab {lab!r}"
    assert told.value.expected == "05_numbers"


def test_a_number_of_two_labs_is_told(course):
    shutil.copy(course / "solutions" / NAME, course / "solutions/05_other.ipynb")
    with pytest.raises(WorkbookError, match="names 2 labs"):
        one_lab("5", course)


def test_a_reference_without_stored_outputs_cannot_grade(course, capsys):
    path = course / "solutions" / NAME
    reference = nb.read(path)
    reference.cells[-1].outputs = []
    save(reference, path)
    assert check("05", course) == 2
    assert "workbook build 05_numbers" in capsys.readouterr().err


def test_a_process_of_ours_finds_the_package_and_none_of_its_rooms_by_a_short_name():
    root = Path(pytest_environment()["PYTHONPATH"].split(os.pathsep)[0])
    assert (root / "helpers/grading/sandbox/nbval_run.py").is_file()
    assert not (root / "grading").exists()
