"""Chapters as learners leave them: what is run again, that a traceback is seen, and whole copies run from the top."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.course.build import execute
from tests.learner import LEFT, as_left, run_again

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = nb.find_all(ROOT, nb.BOOK)
GUESS, GAP = "g = predict('x', guess=None)", "def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION"


def name_of(path: Path) -> str:
    """As in 02, deeper-02, A."""
    return path.stem.partition("_")[0] if path.parent.name == nb.CHAPTERS else f"deeper-{path.stem[:2]}"


def again(*sources: str) -> list[str]:
    """Of a chapter with these cells, what is run again of each: its lines, '' where nothing is."""
    cells = [v4.new_code_cell(source, id=str(number)) for number, source in enumerate(sources)]
    found = {cell: source for cell, source, _ in run_again(cells, LEFT["nothing"])}
    return [found.get(cell.id, "") for cell in cells]


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("x = measure()\ncompare(x, you=g)\nplot(x)", "compare(x, you=g)"),
        ("if slow:\n    x = measure()\n    compare(x, you=g)", "if slow:\n    compare(x, you=g)"),
        ("if slow:\n    pass\nelse:\n    compare(x, you=g)", "if slow:\n    pass\nelse:\n    compare(x, you=g)"),
        ("for x in many:\n    compare(x, you=g)", "for x in many:\n    compare(x, you=g)"),
        ("y = filled(f, 3)\nif y:\n    print(3)\nx = 1", "y = filled(f, 3)\nif y:\n    print(3)"),
        ("def h(x):\n    return f(x)\nh(3)", "def h(x):\n    return f(x)\nh(3)"),
        ("kept = {}\nkept['f'] = f(1)\nprint(kept)", "kept['f'] = f(1)\nprint(kept)"),
        ("g = 3\nprint(g)", ""),
        ("print(*(g for g in (1, 2)))\nfor g in (1, 2):\n    print(g)\ndef h(g):\n    return g", ""),
        ("model.predict(x)\ng.x = 3", "g.x = 3"),
    ],
)  # fmt: skip
def test_what_a_learner_wrote_is_followed_and_nothing_else(cell, lines):
    given = "def f(x):\n    return 0"
    assert again(GUESS, GAP, cell) == ["g = predict('x', guess=0)", given, lines]


def test_a_verdict_is_the_learners_too():
    assert again("v = claims.read('a', guess=None)") == ["v = claims.read('a', guess='holds with conditions')"]


@pytest.mark.parametrize("path", CHAPTERS, ids=name_of)
def test_every_guess_and_every_gap_of_a_chapter_is_left_otherwise(path):
    cells = [cell for _, cell in nb.code_cells(nb.read(path))]
    gaps = {cell.id for cell in cells if "### BEGIN SOLUTION" in cell.source}
    asked = {cell.id for cell in cells if re.search(r"(?<![.\w])predict\(|claims\.read\(|\byou=", cell.source)}
    for name, left in LEFT.items():
        found = {cell: source for cell, source, _ in run_again(cells, left)}
        assert asked | gaps <= found.keys(), name
        open_gaps = {cell for cell, source in found.items() if "raise NotImplementedError('write " in source}
        assert open_gaps == (set() if left.gap else gaps), name


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


@pytest.mark.parametrize("folder", [nb.CHAPTERS, nb.COMPANIONS])
def test_a_traceback_of_a_learners_run_is_red(tmp_path, folder):
    """In the chapter itself nothing fails; `print` shows that a failure does not end the run of the others."""
    path = tmp_path / folder / "99_tiny.ipynb"
    path.parent.mkdir(parents=True)
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
    pytest.param(path, name, id=f"{name_of(path)}-{name}", marks=pytest.mark.slow if at == 0 else pytest.mark.all)
    for at, path in enumerate(CHAPTERS)
    for name in ("plausible", "nothing", "a hundred times too much")
]


@pytest.mark.parametrize(("path", "name"), WHOLE)
def test_a_learners_copy_runs_from_the_top(path, name):
    given = ROOT / nb.home(path.relative_to(ROOT).as_posix())
    copy = nb.read(given)
    for _, cell in nb.code_cells(copy):
        cell.source = as_left(cell.source, LEFT[name])
    execute(copy, given.parent)
