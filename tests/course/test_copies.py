"""A chapter as a learner opens it: nothing has run, gaps with their answers below, links that lead on."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.course.address import SETUP, Address, setup_source
from helpers.course.copies import as_given, cleared, is_touched, relinked
from helpers.course.release import release
from tests.course.example_lab import code, markdown, save

ROOT = Path(__file__).resolve().parents[2]
HERE = Address("https://github.com/ada/gpu-workbook", "v1")
CHAPTER, COPY = "notebooks/05_numbers.ipynb", "labs/chapters/05_numbers.ipynb"
GAP = """def twice(x):
    half = x / 2
    ### BEGIN SOLUTION
    whole = 4 * half
    return whole
    ### END SOLUTION


fill_in(twice, {(1,): 2})"""


def chapter(*cells: NotebookNode) -> NotebookNode:
    return v4.new_notebook(cells=[markdown("# 05 · Numbers\n\n**The promise:** x", "title"), *cells])


def test_chapters_and_labs_are_released_as_they_should_be(capsys):
    """The whole repository: `workbook release` would change nothing."""
    assert release(ROOT, check=True) == 0, capsys.readouterr().err


def test_nothing_has_run_in_it_and_what_was_written_stays():
    ran = code("print(1)", "c", "nbval-ignore-output")
    ran.execution_count, ran.outputs = 1, [v4.new_output("stream", text="1\n")]
    picture = markdown("![a bar](attachment:bar.png)", "p")
    picture["attachments"] = {"bar.png": {"image/png": "aGk="}}
    given = cleared(chapter(ran, picture), CHAPTER)
    assert (given.cells[1].source, given.cells[1].outputs, given.cells[1].execution_count) == ("print(1)", [], None)
    assert (given.cells[2].source, given.cells[2].attachments) == (picture.source, picture.attachments)
    assert ran.outputs, "the chapter itself is as it was"
    assert given.metadata.workbook.source == CHAPTER


def test_a_claim_is_seen_before_its_cell_is_run():
    asking = code('heavy = claims.read("attn-heavy", guess=None)', "heavy")
    asking.execution_count, asking.outputs = 7, [v4.new_output("display_data", {"text/markdown": "> A claim"})]
    given = cleared(chapter(asking), CHAPTER).cells[1]
    assert (given.execution_count, given.outputs) == (None, asking.outputs)


def test_a_gap_runs_says_what_is_missing_and_has_its_answer_folded_below():
    given = cleared(chapter(code(GAP, "gap"), code("x = 1", "next")), CHAPTER)
    gap, answer, after = given.cells[1:]
    assert gap.source == GAP.replace(
        "    ### BEGIN SOLUTION\n    whole = 4 * half\n    return whole\n    ### END SOLUTION",
        '    raise NotImplementedError("write twice here")',
    )
    assert (answer.cell_type, answer.id) == ("markdown", "gap-worked")
    assert answer.source == (
        "<details><summary>A worked answer</summary>\n\n```python\nwhole = 4 * half\nreturn whole\n```\n\n</details>"
    )
    assert after.source == "x = 1"


@pytest.mark.parametrize(
    ("text", "chapters", "colab", "workspace"),
    [
        ("06_x.ipynb", "06_x.ipynb", "labs/chapters/06_x.ipynb", "06_x.ipynb"),
        ("../labs/05_x.ipynb#two", "../05_x.ipynb#two", "labs/05_x.ipynb#two", "../labs/05_x.ipynb#two"),
        ("../docs/a.md", "../../docs/a.md", "../../docs/a.md", "../../docs/a.md"),
        (
            "one_step.png",
            "../../notebooks/one_step.png",
            "../../notebooks/one_step.png",
            "../../notebooks/one_step.png",
        ),
        *((same, same, same, same) for same in ("https://arxiv.org/abs/1", "#here", "attachment:a.png")),
    ],
)
def test_links_lead_to_the_same_from_where_the_copy_lies(text, chapters, colab, workspace):
    def led(address: Address, target: str, folder: str = "") -> str:
        return relinked(f"see [it]({text}), [x]", CHAPTER, target, address, folder).removeprefix("see [it](")[:-6]

    colab = f"https://colab.research.google.com/github/ada/gpu-workbook/blob/v1/{colab}" if "_x" in text else colab
    assert led(Address(), COPY) == chapters
    assert led(HERE, COPY) == colab
    assert led(HERE, "workspace/chapters/05_numbers.ipynb", "workspace") == workspace


def test_the_badge_leads_to_the_copy_itself():
    head = chapter(code(setup_source(HERE), "setup"))
    assert "/blob/v1/labs/chapters/05_numbers.ipynb)" in cleared(head, CHAPTER).cells[0].source
    assert "colab" not in cleared(chapter(code(SETUP, "setup")), CHAPTER).cells[0].source


def test_running_and_an_empty_cell_are_no_touch_and_any_edit_is():
    def given() -> NotebookNode:
        return as_given(chapter(code("g = predict('x', guess=None)", "g"), markdown("text", "m")))

    notebook = given()
    notebook.cells[1].outputs, notebook.cells[1].execution_count = [v4.new_output("stream", text="1\n")], 3
    notebook.cells.append(v4.new_code_cell("  \n"))
    assert not is_touched(notebook)
    edits = [
        lambda cells: cells[1].update(source="g = predict('x', guess=3)"),
        lambda cells: cells[2].update(source="text, and a note"),
        lambda cells: cells.append(v4.new_code_cell("1 + 1")),
        lambda cells: cells.pop(),
        lambda cells: cells.reverse(),
        lambda cells: cells[2].update(cell_type="raw"),
    ]
    for edit in edits:
        notebook = given()
        edit(notebook.cells)
        assert is_touched(notebook)
    assert is_touched(chapter()), "without the mark nobody knows, and it counts as somebody's"


def test_a_copy_in_which_somebody_wrote_is_kept_and_named(tmp_path, capsys):
    save(chapter(code("x = 1", "c")), tmp_path / CHAPTER)
    assert release(tmp_path) == 0
    assert release(tmp_path, check=True) == 0
    copy = nb.read(tmp_path / COPY)
    copy.cells[1].source = "x = 2  # mine"
    nb.write(tmp_path / COPY, copy)
    before = (tmp_path / COPY).read_bytes()
    assert release(tmp_path) == 1
    assert f"{COPY} holds answers and was kept" in capsys.readouterr().err
    assert (tmp_path / COPY).read_bytes() == before
    (tmp_path / CHAPTER).unlink()
    assert release(tmp_path, check=True) == 1
    assert f"{COPY} has no source" in capsys.readouterr().err
