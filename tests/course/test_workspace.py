"""A learner's copies: made once, followed while nobody touched them, and never overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import v4

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course import notebook as nb
from helpers.course.address import FOLDED, SETUP, Address
from helpers.course.publish import publish
from helpers.course.release import release
from helpers.course.workspace import own_lab, workspace
from tests.course.example_lab import RIGHT, code, markdown, save, with_sources

NAME = "05_numbers.ipynb"
CHAPTER, LAB = f"workspace/chapters/{NAME}", f"workspace/labs/{NAME}"
TIME = "60 minutes, quick · two sections marked *deeper*: 20 more"
NEEDS = f"| time | before this | needs |\n|---|---|---|\n| {TIME} | 03 | CPU |"
HEADER = f"# 05 · Numbers\n\n**The promise:** x\n\n{NEEDS}"


def chapter(text: str = "See [the lab](../labs/05_numbers.ipynb).") -> nb.NotebookNode:
    setup, guess = code(SETUP, "setup"), code("g = predict('x', guess=None)", "guess")
    setup.metadata.update(FOLDED)
    guess.execution_count, guess.outputs = 2, [v4.new_output("stream", text="no guess\n")]
    return v4.new_notebook(cells=[markdown(HEADER, "title"), setup, guess, markdown(text, "text")])


@pytest.fixture
def clone(course: Path) -> Path:
    """A clone with one chapter and its lab, released."""
    save(chapter(), course / f"notebooks/{NAME}")
    assert release(course) == 0
    return course


def edit(path: Path, **sources: str) -> None:
    save(with_sources(nb.read(path), sources), path)


def run_all(path: Path) -> None:
    """As JupyterLab leaves a notebook that was run from top to bottom and saved."""
    notebook = nb.read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = 7, [v4.new_output("stream", text="out\n")]
            cell.metadata["trusted"] = True
    notebook.cells.append(v4.new_code_cell(""))
    notebook.metadata["language_info"] = {"name": "python", "version": "3.13"}
    save(notebook, path)


def update(clone: Path) -> None:
    """What `git pull` brings: another text in the chapter and in the lab."""
    save(chapter("A better text."), clone / f"notebooks/{NAME}")
    edit(clone / f"solutions/{NAME}", **{"pages-text": "## 2 Pages, better told"})
    assert release(clone) == 0


def told(clone: Path, capsys, *fresh: str) -> str:
    capsys.readouterr()
    assert workspace(clone, fresh) == 0
    return capsys.readouterr().out


def test_copies_are_made_cleared_and_their_links_lead_on(clone, capsys):
    assert "2 notebooks (2 new, 0 brought up to date, 0 as they were)" in told(clone, capsys)
    mine = nb.read(clone / CHAPTER)
    assert (mine.cells[2].outputs, mine.cells[2].execution_count) == ([], None)
    assert mine.cells[3].source == "See [the lab](../labs/05_numbers.ipynb)."
    assert (clone / CHAPTER).parent.joinpath("../labs/05_numbers.ipynb").resolve() == clone / LAB
    lab = nb.read(clone / LAB)
    assert [cell.source for cell in lab.cells] == [cell.source for cell in nb.read(clone / f"labs/{NAME}").cells]
    assert "0 new, 0 brought up to date, 2 as they were" in told(clone, capsys)


def test_of_a_published_workbook_too_copies_lead_to_copies(clone, capsys):
    """The badge and Colab's links would open a notebook in which nothing of the learner's is."""
    lab = nb.read(clone / f"solutions/{NAME}")
    lab.cells[0].source += "\n\nAfter [the chapter](../notebooks/05_numbers.ipynb#one)."
    setup = code(SETUP, "find-helpers")
    setup.metadata.update(FOLDED)
    setup.execution_count, lab.cells[1:1] = 1, [setup]
    save(lab, clone / f"solutions/{NAME}")
    for name, text in (("pyproject.toml", '[tool.workbook]\nrepository = ""\nref = ""\n'), ("README.md", "# T\n")):
        (clone / name).write_text(text)
    assert publish(clone, Address("https://github.com/ada/gpu-workbook", "v1")) == 0
    published = nb.read(clone / f"labs/{NAME}").cells[0].source
    assert "blob/v1/labs/05_numbers.ipynb)" in published
    assert "blob/v1/labs/chapters/05_numbers.ipynb#one)" in published
    workspace(clone)
    for path in (CHAPTER, LAB):
        assert "colab" not in "".join(
            cell.source for cell in nb.read(clone / path).cells if cell.cell_type == "markdown"
        )
    assert nb.read(clone / CHAPTER).cells[3].source == "See [the lab](../labs/05_numbers.ipynb)."
    assert nb.read(clone / LAB).cells[0].source.endswith("After [the chapter](../chapters/05_numbers.ipynb#one).")


def test_who_only_ran_it_gets_the_new_text(clone, capsys):
    workspace(clone)
    for path in (CHAPTER, LAB):
        run_all(clone / path)
    before = (clone / CHAPTER).read_bytes()
    told(clone, capsys)
    assert (clone / CHAPTER).read_bytes() == before, "nothing new, so the outputs stay"
    update(clone)
    assert "2 brought up to date" in told(clone, capsys)
    assert nb.read(clone / CHAPTER).cells[3].source == "A better text."
    assert nb.read(clone / LAB).cells[6].source == "## 2 Pages, better told"


@pytest.mark.parametrize(
    ("path", "key", "source", "fresh"),
    [
        (CHAPTER, "guess", "g = predict('x', guess=3)", "chapters/05"),
        (CHAPTER, "text", "My note.", "chapters/05"),
        (LAB, "twice", RIGHT["twice"], "labs/05"),
    ],
)
def test_what_somebody_wrote_in_is_kept_and_named(clone, capsys, path, key, source, fresh):
    workspace(clone)
    edit(clone / path, **{key: source})
    before = (clone / path).read_bytes()
    assert "!" not in told(clone, capsys), "the repository has nothing newer, so there is nothing to tell"
    update(clone)
    said = told(clone, capsys)
    assert "1 brought up to date" in said
    assert f"! {path} holds your changes, and the repository has a newer text. Yours was kept." in said
    assert f"workbook workspace --fresh {fresh}" in said
    assert (clone / path).read_bytes() == before


def test_fresh_moves_aside_and_deletes_nothing(clone, capsys):
    workspace(clone)
    for number in (1, 2):
        edit(clone / LAB, twice=f"def twice(x):\n    return {number}")
        before = (clone / LAB).read_bytes()
        said = told(clone, capsys, "05")
        assert f"{LAB}: yours is now 05_numbers-mine-{number}.ipynb" in said
        assert "chapters" not in said.partition("workspace/:")[0], "the chapter was not touched, so it stays"
        assert (clone / LAB).with_name(f"05_numbers-mine-{number}.ipynb").read_bytes() == before
        assert nb.read(clone / LAB).metadata.workbook.stubs


@pytest.mark.parametrize("name", ["6", "labs/06", "numbers", "../labs/05_numbers.ipynb"])
def test_fresh_of_something_else_is_told_with_what_there_is(clone, name):
    workspace(clone)
    with pytest.raises(WorkbookError, match=r"unknown copy|a path"):
        workspace(clone, [name])


def test_a_file_that_nobody_can_read_is_somebodys(clone, capsys):
    workspace(clone)
    for broken in ("{", "", '{"cells": 3}'):
        (clone / LAB).write_text(broken)
        said = told(clone, capsys)
        assert f"! {LAB} holds your changes" in said
        assert (clone / LAB).read_text() == broken
    assert "yours is now" in told(clone, capsys, "labs/05")
    assert nb.read(clone / LAB)


def test_a_copy_that_an_editor_stripped_of_its_metadata_is_somebodys(clone, capsys):
    workspace(clone)
    notebook = nb.read(clone / CHAPTER)
    notebook.metadata = {}
    save(notebook, clone / CHAPTER)
    assert f"! {CHAPTER} holds your changes" in told(clone, capsys)


def test_a_lab_that_was_begun_before_there_was_a_workspace_goes_on_in_it(clone, capsys):
    edit(clone / f"labs/{NAME}", twice=RIGHT["twice"])
    workspace(clone)
    assert nb.read(clone / LAB).cells[3].source == RIGHT["twice"]
    (clone / f"labs/{NAME}").unlink()
    update(clone)
    assert f"! {LAB} holds your changes" in told(clone, capsys)
    assert nb.read(clone / LAB).cells[3].source == RIGHT["twice"]


def test_the_lab_that_is_checked_is_the_copy_or_where_the_answers_are(clone):
    theirs, mine = clone / f"labs/{NAME}", clone / LAB
    assert own_lab(clone, NAME) == theirs
    workspace(clone)
    assert own_lab(clone, NAME) == mine
    edit(theirs, twice=RIGHT["twice"])
    assert own_lab(clone, NAME) == theirs, "the copy has no answers yet"
    edit(mine, half=RIGHT["half"])
    assert own_lab(clone, NAME) == mine


def test_a_file_in_the_place_of_the_folder_is_told(clone):
    (clone / "workspace").write_text("mine")
    with pytest.raises(WorkbookError, match="cannot be written"):
        workspace(clone)
    assert (clone / "workspace").read_text() == "mine"


def test_from_the_terminal(clone, monkeypatch, capsys):
    monkeypatch.chdir(clone)
    assert main(["workspace"]) == 0
    assert main(["workspace", "--fresh", "05"]) == 0
    assert main(["workspace", "--fresh", "77"]) == 2
    assert "unknown copy '77'" in capsys.readouterr().err
    page = (clone / "workspace/START.md").read_text("utf-8")
    times = "60 minutes (+ 20 deeper) | CPU | – "
    assert f"| 05 | [Numbers](chapters/{NAME}) | {times}| [lab 05](labs/{NAME}), , 5 points |" in page
