"""Chapters as learners leave them: what is run again, that a traceback is seen, and whole copies run from the top."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.course.build import execute
from helpers.course.guesses import ASKED
from tests.learner import LEFT, RAISE, as_left, touched

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = nb.find_all(ROOT, [nb.CHAPTERS])
GUESS, GAP = "g = predict('x', guess=None)", "def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION"


def run_again(*sources: str) -> list[tuple[int, list[int]]]:
    """Of a chapter with these cells, each that is run again: its number, and the indexes of its statements."""
    cells = [v4.new_code_cell(source, id=str(number)) for number, source in enumerate(sources)]
    return [(int(cell.id), indexes) for cell, indexes, _ in touched(cells)]


@pytest.mark.parametrize(
    ("sources", "again"),
    [
        ([GUESS, "x = measure()\ncompare(x, you=g)\nplot(x)"], [(0, [0]), (1, [1])]),
        (["v = claims.read('a', guess=None)", "claims.trial('a', cases, you=v)"], [(0, [0]), (1, [0])]),
        ([GAP + "\nfill_in(f, cases)", "y = filled(f, 3)\nz = y and 2 * y", "print(z)\nprint(3)"],
         [(0, [0, 1]), (1, [0, 1]), (2, [0])]),
        ([GAP, "def h(x):\n    return f(x)\nh(3)"], [(0, [0]), (1, [0, 1])]),
        ([GAP, "kept = {}\nkept['f'] = f(1)", "print(kept)"], [(0, [0]), (1, [1]), (2, [0])]),
        ([GUESS, "g = 3\nprint(g)"], [(0, [0])]),
        ([GUESS, "print(*(g for g in (1, 2)))", "for g in (1, 2):\n    print(g)", "def h(g):\n    return g"],
         [(0, [0])]),
        ([GUESS, "if slow:\n    x = measure()\n    compare(x, you=g)"], [(0, [0]), (1, [0])]),
        (["x = 1", "model.predict(x)"], []),
    ],
)  # fmt: skip
def test_what_a_learner_wrote_is_followed_and_nothing_else(sources, again):
    assert run_again(*sources) == again


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem[:2])
def test_every_guess_and_every_gap_of_a_chapter_is_left_otherwise(path):
    cells = [cell for _, cell in nb.code_cells(nb.read(path))]
    theirs = {cell.id: indexes for cell, indexes, _ in touched(cells)}
    for cell in cells:
        body = ast.parse(cell.source).body
        calls = {ast.unparse(node.func) for one in body for node in ast.walk(one) if isinstance(node, ast.Call)}
        if not calls & {*ASKED} and "### BEGIN SOLUTION" not in cell.source:
            continue
        assert theirs[cell.id]
        for name, left in LEFT.items():
            source = as_left(cell.source, left)
            assert (source != cell.source) or "None" in left, (cell.id, name)
            assert len(ast.parse(source).body) == len(body)
            assert bool(RAISE.search(source)) == ("BEGIN SOLUTION" in cell.source and not left.gap)


TINY = [
    "class predict:\n    def __init__(self, question, guess):\n        self.guess = guess",
    "guess = predict('seven', guess=None)",
    "truth = [7]",
    "if guess.guess:\n    truth[0] / (guess.guess - 7)",  # nobody is seven
    "assert truth == [7] and guess.guess is None",  # which holds in the chapter, and not in its learners' runs
    "print(truth, flush=True)",
    "def twice(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION",
    "four = twice(2)",
    "total = sum(four for _ in range(3))",
    "four = 4\nassert four == 4",
]


def test_a_traceback_of_a_learners_run_is_red(tmp_path):
    """In the chapter itself nothing fails; `print` shows that a failure does not end the run of the others."""
    (tmp_path / "notebooks").mkdir()
    path = tmp_path / "notebooks/99_tiny.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell(source) for source in TINY]), path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.learner",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rf",
        "-c",
        "/dev/null",
    ]
    options = ["--nbval", "--nbval-current-env", f"--rootdir={tmp_path}", str(path)]
    done = subprocess.run(command + options, capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False)
    failed = [line.partition("::")[2] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    seen = [name for name in failed if name.startswith("Cell")]
    assert [name.split(" - ")[0] for name in seen] == [
        f"Cell {number}, as learners leave it" for number in (3, 4, 7)
    ], done.stdout
    assert "a learner who is plausible" in done.stdout
    assert "ZeroDivisionError" in done.stdout


WHOLE = [
    pytest.param(path, name, id=f"{path.stem[:2]}-{name}", marks=pytest.mark.slow if at == 0 else pytest.mark.all)
    for at, path in enumerate(CHAPTERS)
    for name in ("plausible", "nothing", "a hundred times too much")
]


@pytest.mark.parametrize(("path", "name"), WHOLE)
def test_a_learners_copy_runs_from_the_top(path, name):
    copy = nb.read(ROOT / nb.CLEARED / path.name)
    for _, cell in nb.code_cells(copy):
        cell.source = as_left(cell.source, LEFT[name])
    execute(copy, ROOT / nb.CLEARED)
