"""The made-up class: twenty submissions, the same every time, whose scores are known before anything grades them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.grading.sample_class import _nothing, sample_class
from tests.course.example_lab import cell_of
from tests.labs.attacker import Attack, paid

LAB = "05_numbers"
LABS = nb.find_all(Path(__file__).resolve().parents[2], ["solutions"])
# twice 2 points, pages 2, half 1
SCORES = {
    "amara.okafor": 5,
    "anders.lindqvist": 0,
    "beatriz.costa": 2,
    "chen.wei": 4,
    "dana.horvath": 4,
    "dmitri.volkov": 0,
    "elif.yilmaz": 0,
    "farid.rahimi": 2,
    "grace.njoroge": 0,
    "hana.sato": 4,
    "ines.moreau": 2,
    "jonas.becker": 5,
    "kavya.iyer": 5,
    "liam.obrien": 5,
    "maría.fernández": 5,
    "noah.cohen": 5,
    "olga.petrova": 5,
    "pedro.alves": 0,
    "qiang.zhou": 4,
    "rosa.klein": 0,
}


@pytest.fixture
def folder(course: Path, tmp_path: Path) -> Path:
    """Where the class was written."""
    assert sample_class("05", course, tmp_path / "class") == 0
    return tmp_path / "class"


def handed_in(folder: Path, learner: str) -> nb.NotebookNode:
    """The learner's notebook."""
    (path,) = (folder / "submissions" / learner).iterdir()
    return nb.read(path)


def answers(lab: nb.NotebookNode) -> dict[str, str]:
    return {lab_cells.grade_id(cell): cell.source for cell in lab.cells if lab_cells.is_answer(cell)}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_scores_are_known(folder):
    rows = list(csv.DictReader((folder / "expected.csv").read_text("utf-8").splitlines()))
    assert {row["learner"]: float(row["score"]) for row in rows} == SCORES
    assert {row["points"] for row in rows} == {"5"}
    assert sorted(path.name for path in (folder / "submissions").iterdir()) == [row["learner"] for row in rows]


def test_the_same_lab_gives_the_same_bytes(folder, course, tmp_path):
    sample_class(LAB, course, tmp_path / "again")
    assert contents(tmp_path / "again") == contents(folder)


def test_answers_are_right_wrong_or_missing_as_told(folder, built_root):
    twin = answers(nb.read(built_root / f"labs/{LAB}.ipynb"))
    right = answers(handed_in(folder, "amara.okafor"))
    assert right["twice"] == "# answer: twice\ndef twice(x):\n    return 2 * x"
    assert "SOLUTION" not in nb.text(handed_in(folder, "amara.okafor"))
    assert answers(handed_in(folder, "anders.lindqvist")) == twin
    assert answers(handed_in(folder, "beatriz.costa")) == twin | {"twice": right["twice"]}
    assert answers(handed_in(folder, "chen.wei")) == right | {"half": twin["half"]}
    nothing = "# answer: half\ndef half(x):\n    return None"
    assert answers(handed_in(folder, "dana.horvath")) == right | {"half": nothing}
    assert answers(handed_in(folder, "elif.yilmaz"))["pages"].endswith("return None")
    stuck = answers(handed_in(folder, "ines.moreau"))
    assert stuck["twice"] == right["twice"]
    assert stuck["pages"].startswith('# answer: pages\ncount = int(input("How many? "))\n\nclass Pages')
    assert stuck["half"] == twin["half"]


class Impatient(dict):
    """Names that can be read a hundred times."""

    reads = 0

    def __getitem__(self, name: str) -> object:
        self.reads += 1
        if self.reads > 100:
            raise TimeoutError
        return super().__getitem__(name)


@pytest.mark.parametrize("learner", ["farid.rahimi", "grace.njoroge", "hana.sato", "ines.moreau"])
def test_the_stuck_are_stuck_before_the_answer(learner, folder):
    """What comes after must not run: else its check passes, and the expected score is wrong."""
    (source,) = [source for source in answers(handed_in(folder, learner)).values() if "\n\n" in source]
    # OSError: pytest gives nothing to type, as the grader does.
    with pytest.raises((SyntaxError, ImportError, OSError)):
        exec(source.partition("\n\n")[0], {}, Impatient())


@pytest.mark.all
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem[:2])
def test_no_check_of_a_lab_pays_the_answer_that_is_called_wrong(path):
    exercises = lab_cells.exercises(nb.read(path))
    wrong = [_nothing((one,)) for one in exercises]
    assert all("return None" in source for answers in wrong for source in answers.values())
    answered = [Attack(at, one.title, "\n\n".join(wrong[at].values())) for at, one in enumerate(exercises)]
    assert paid(path, answered, seed="7") == []


def test_files_are_broken_as_told(folder):
    mine = {path: path.read_bytes() for path in sorted((folder / "submissions").rglob("*")) if path.is_file()}
    named = {path.parent.name: path for path in mine}
    whole = mine[named["amara.okafor"]]
    assert mine[named["olga.petrova"]] == b"\xef\xbb\xbf" + whole
    assert mine[named["maría.fernández"]] == whole
    assert named["maría.fernández"].name == "Lab 05 final.ipynb"
    assert mine[named["rosa.klein"]].startswith(b"%PDF")
    with pytest.raises(WorkbookError, match="cannot read"):
        nb.read(named["pedro.alves"])
    names = [path.name for path in mine if path.parent.name == "noah.cohen"]
    assert names == [f"{LAB} (1).ipynb", f"{LAB}.ipynb"]
    assert mine[folder / "submissions/noah.cohen" / names[0]] == whole


def test_cells_are_changed_as_told(folder):
    bare = handed_in(folder, "liam.obrien")
    assert not any(cell.metadata for cell in bare.cells)
    assert "# answer: half" in nb.text(bare)
    halves = [cell for cell in handed_in(folder, "kavya.iyer").cells if lab_cells.grade_id(cell) == "twice"]
    assert [cell.source.splitlines()[-1] for cell in halves] == ["first_half = True", "    return 2 * x"]
    check = cell_of(handed_in(folder, "qiang.zhou"), "check-half")
    assert (check.source, lab_cells.points(check)) == ('print("ok")', 100)
    extra = [cell.id for cell in handed_in(folder, "jonas.becker").cells if "here" in cell.source]
    assert len(extra) == len(set(extra)) > 1


def test_a_folder_with_something_in_it_is_refused(folder, course):
    before = contents(folder)
    with pytest.raises(WorkbookError, match="holds something"):
        sample_class("05", course, folder)
    with pytest.raises(WorkbookError, match="holds something"):
        sample_class("05", course, folder / "expected.csv")
    assert contents(folder) == before
