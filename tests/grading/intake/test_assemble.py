"""What comes from the learner and what from the reference, without running anything."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path

import pytest
from nbformat import NotebookNode

from helpers.course import notebook as nb
from helpers.grading.intake import assemble as assembling
from helpers.grading.intake import reading
from helpers.grading.intake.assemble import Assembly, without_marks
from tests.course.example_lab import RIGHT, cell_of, check, code, markdown, with_sources

NAME = "05_numbers.ipynb"


@pytest.fixture
def reference(built_root):
    return nb.read(built_root / "solutions" / NAME)


@pytest.fixture
def lab(built_root):
    return nb.read(built_root / "labs" / NAME)


def assemble(reference: NotebookNode, learner: NotebookNode) -> Assembly:
    """The assembly of a notebook that was handed in as a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lab.ipynb"
        path.write_text(json.dumps(learner))
        return assembling.assemble(reference, reading.read(path))


def ids(notebook) -> list[str]:
    return [cell.id for cell in notebook.cells]


def test_answers_come_from_the_learner_and_everything_else_from_the_reference(reference, lab):
    learner = with_sources(lab, RIGHT | {"check-twice": "print('mine')", "title": "# Mine"})
    cell_of(learner, "check-twice").metadata.nbgrader.points = 99
    cell_of(learner, "check-pages").metadata["tags"] = ["nbval-skip"]
    found = assemble(reference, learner)
    expected = with_sources(reference, RIGHT)
    for key in RIGHT:
        cell = cell_of(expected, key)
        cell.outputs, cell.execution_count = [], None
    assert found.notebook == expected
    assert found.answers == dict.fromkeys(RIGHT, "written")
    assert found.warnings == ()


def test_the_state_of_each_answer_is_known(reference, lab):
    learner = with_sources(lab, {"pages": "  \n"})
    learner.cells.remove(cell_of(learner, "half"))
    found = assemble(reference, learner)
    assert found.answers == {"twice": "untouched", "pages": "empty", "half": "missing"}
    assert "NotImplementedError" in cell_of(found.notebook, "half").source


def test_an_answer_is_found_by_cell_id_when_its_metadata_is_gone(reference, lab):
    learner = with_sources(lab, RIGHT)
    for cell in learner.cells:
        cell.metadata.clear()
    assert assemble(reference, learner).answers == dict.fromkeys(RIGHT, "written")


@pytest.mark.parametrize("colab", [True, False])
def test_an_answer_is_found_when_colab_or_an_editor_has_taken_its_ids(reference, lab, colab):
    learner = with_sources(lab, {key: f"# answer: {key}\n{source}" for key, source in RIGHT.items()})
    for cell in learner.cells:
        cell.metadata = {"id": cell.id} if colab else {}
        cell.source = cell.source.removeprefix(f"# answer: {cell.id}\n") if colab else cell.source
        del cell["id"]
    assert assemble(reference, learner).answers == dict.fromkeys(RIGHT, "written")


def test_a_stub_is_untouched_with_or_without_its_anchor(reference, lab):
    assert all(cell_of(lab, key).source.startswith(f"# answer: {key}\n") for key in RIGHT)
    bare = with_sources(lab, {key: cell_of(lab, key).source.partition("\n")[2] for key in RIGHT})
    for learner in (lab, bare):
        assert assemble(reference, learner).answers == dict.fromkeys(RIGHT, "untouched")
    lost = with_sources(lab, {key: f"# answer: {key}" for key in RIGHT})
    assert assemble(reference, lost).answers == dict.fromkeys(RIGHT, "empty")


def test_another_lab_is_not_this_one(reference, lab):
    assert assemble(reference, lab).is_this_lab
    lab.cells = [cell for cell in lab.cells if cell.id not in RIGHT]
    assert not assemble(reference, lab).is_this_lab


def test_a_retyped_answer_cell_is_missing(reference, lab):
    learner = with_sources(lab, RIGHT)
    learner.cells = [markdown(cell.source, cell.id) if cell.id == "half" else cell for cell in learner.cells]
    assert assemble(reference, learner).answers["half"] == "missing"


def test_a_split_answer_is_joined_with_a_warning(reference, lab):
    learner = with_sources(lab, RIGHT | {"twice": "factor = 2"})
    second = copy.deepcopy(cell_of(learner, "twice"))
    second.id, second.source = "copy", "def twice(x):\n    return factor * x"
    learner.cells.insert(ids(learner).index("check-twice"), second)
    found = assemble(reference, learner)
    assert cell_of(found.notebook, "twice").source == f"factor = 2\n\n{second.source}"
    assert found.warnings == ("answer 'twice' was found 2 times: joined in order",)


FIRST = "def twice(x):\n    return x.two\nprint(twice(3))"
LAST = "def twice(x):\n    return 2 * x"


@pytest.mark.parametrize("place", ["above", "above, not closed", "below its check", "below, at the end"])
def test_a_first_try_that_was_kept_costs_nothing(reference, lab, place):
    """A copy of an answer's cell has its metadata: what counts is the last above the check, as in the notebook."""
    learner = with_sources(lab, RIGHT | {"twice": LAST})
    other = copy.deepcopy(cell_of(learner, "twice"))
    other.id, other.source = "copy", "def twice(x:" if "not closed" in place else FIRST
    at = {"above": ids(learner).index("twice"), "below its check": ids(learner).index("check-twice") + 1}
    learner.cells.insert(at.get(place.partition(",")[0], len(learner.cells)), other)
    found = assemble(reference, learner)
    assert cell_of(found.notebook, "twice").source == LAST
    assert found.warnings == ("answer 'twice' was found 2 times: the last one above its checks counts",)
    tries = [cell.source for cell in found.notebook.cells if cell.id.startswith("learner-")]
    assert tries == ([other.source] if "above" in place else []), "it runs apart, and its error is its own"


def test_an_answer_below_its_check_counts_where_nothing_stands_above(reference, lab):
    learner = with_sources(lab, {key: source for key, source in RIGHT.items() if key != "twice"})
    other = copy.deepcopy(cell_of(learner, "twice"))
    other.id, other.source = "copy", LAST
    learner.cells.append(other)
    assert cell_of(assemble(reference, learner).notebook, "twice").source == LAST


def test_a_check_cell_that_is_not_ours_does_not_run(reference, lab):
    lab.cells.append(check("check-mine", "print('99 points')", 99))
    assert ids(assemble(reference, lab).notebook) == ids(reference)


def test_the_learners_own_cells_stay_where_they_were(reference, lab):
    learner = with_sources(lab, {"setup": "import math, statistics"})
    learner.cells.insert(0, code("a = 0", "very-first"))
    learner.cells.insert(ids(learner).index("pages"), code("# NBVAL_SKIP\nb = 1", "before-pages", "nbval-skip"))
    found = ids(assemble(reference, learner).notebook)
    own = [key for key in found if key.startswith("learner-")]
    assert len(own) == 3
    assert found[0] == own[0]
    assert found.index(own[1]) == found.index("setup") + 1, "a changed given cell runs after the given one"
    assert found.index(own[2]) == found.index("pages-text") + 1
    assert cell_of(assemble(reference, learner).notebook, own[2]).source == "\nb = 1"
    assert not cell_of(assemble(reference, learner).notebook, own[2]).metadata


@pytest.mark.parametrize(
    "mark", ["# NBVAL_SKIP", "  ## NBVAL_IGNORE_OUTPUT ", "#NBVAL_RAISES_EXCEPTION", "\x0c# NBVAL_SKIP"]
)
def test_nbvals_marks_are_blanked(mark):
    from nbval.plugin import find_comment_markers

    source = f's = """\n{mark}\n"""\nx = 1'
    assert list(find_comment_markers(source)), "the mark must be one that nbval obeys"
    assert not list(find_comment_markers(without_marks(source)))
    assert without_marks("x = 1  # NBVAL_SKIP is only a word here") == "x = 1  # NBVAL_SKIP is only a word here"
