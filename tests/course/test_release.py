"""labs/ is what release makes of solutions/: stubs, no hidden check, the same bytes every time."""

from __future__ import annotations

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.release import has_answers, release, released
from helpers.course.stubs import stub, without_hidden
from tests.course.example_lab import RIGHT, answer, cell_of, check, code, example_lab, save, with_sources

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
NAME = "05_numbers.ipynb"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            f"def f(x):\n    {BEGIN}\n    return x\n    {END}",
            'def f(x):\n    raise NotImplementedError("write f here")',
        ),
        (
            f'def f(x):\n    """Doc."""\n    y = 1\n    {BEGIN}\n    z = y\n    return z\n    {END}\n\nN = 3',
            'def f(x):\n    """Doc."""\n    y = 1\n    raise NotImplementedError("write f here")\n\nN = 3',
        ),
        (
            f"class C:\n    def m(self):\n        {BEGIN}\n        def g():\n            pass\n        {END}",
            'class C:\n    def m(self):\n        raise NotImplementedError("write C.m here")',
        ),
        (
            f"def f():\n    if 1:\n        {BEGIN}\n        x = 1\n    else:\n        x = 2\n        {END}",
            'def f():\n    if 1:\n        raise NotImplementedError("write f here")',
        ),
        (
            f"def f():\n    def g():\n        {BEGIN}\n        pass\n        {END}",
            'def f():\n    def g():\n        raise NotImplementedError("write f.g here")',
        ),
        (f"{BEGIN}\na, b = 1, 2\na = 3\n{END}", "a = None  # your answer\nb = None  # your answer"),
        (f"{BEGIN}\nn: int = 1\n{END}", "n = None  # your answer"),
    ],
)
def test_a_region_becomes_a_stub(source, expected):
    assert stub(source) == expected


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f():\n    return 1", "no solution region"),
        (f"def f():\n    {BEGIN}\n    return 1", "has no partner"),
        (f"def f():\n    return 1\n    {END}", "has no partner"),
        (f"def f():\n    {BEGIN}\n    {BEGIN}\n    return 1\n    {END}", "has no partner"),
        (f"def f():\n    {BEGIN}\n    # nothing\n    {END}\n    return 1", "is empty"),
        (f"{BEGIN}\nprint(1)\n{END}", "in no function and assigns no name"),
        (f"{BEGIN}\ndef f():\n    return 1\n{END}", "in no function and assigns no name"),
        (f"def f(:\n    {BEGIN}\n    return 1\n    {END}", "is not Python"),
    ],
)
def test_a_bad_region_is_an_error(source, words):
    with pytest.raises(WorkbookError, match=words):
        stub(source)


def test_hidden_tests_vanish():
    assert without_hidden("a = 1\n### BEGIN HIDDEN TESTS\nassert a\n### END HIDDEN TESTS\nb = 2") == "a = 1\nb = 2"
    with pytest.raises(WorkbookError, match="has no partner"):
        without_hidden("### BEGIN HIDDEN TESTS")


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([answer("a", "x"), answer("a", "y"), check("c", "z")], "used 2 times"),
        ([answer("", "x"), check("c", "z")], "has no grade_id"),
        ([answer("a", "x")], "stands alone"),
        ([check("c", "z")], "stands alone"),
        ([answer("a", f"{BEGIN}\nx = 1\n{END}"), check("c", f"print(1)\n{BEGIN}")], "may not have it"),
    ],
)
def test_a_lab_that_cannot_be_graded_is_not_released(cells, words):
    lab = example_lab()
    lab.cells = cells
    with pytest.raises(WorkbookError, match=words):
        released(lab, "solutions/x.ipynb")


def test_the_twin_shows_the_target_and_names_its_source(built_root):
    lab = nb.read(built_root / "labs" / NAME)
    assert lab.metadata.workbook.generator == "workbook release"
    assert lab.metadata.workbook.source == f"solutions/{NAME}"
    assert not has_answers(lab)
    first_answer, first_check = cell_of(lab, "twice"), cell_of(lab, "check-twice")
    assert (first_answer.outputs, first_answer.execution_count) == ([], None)
    assert first_check.outputs[0].text == "1 -> 2\n5 -> 10\n"
    assert first_check.execution_count
    assert "HIDDEN" not in nb.text(lab)
    assert "SOLUTION" not in nb.text(lab)


def test_what_measures_and_checks_is_folded_and_nothing_else():
    lab = example_lab()
    lab.cells.insert(2, code("# apparatus: x\nX = 1", "apparatus"))
    lab.cells[2].metadata["workbook"] = {"role": "apparatus"}
    twin = released(lab, f"solutions/{NAME}")
    folded = {cell.id for cell in twin.cells if cell.metadata.get("jupyter", {}).get("source_hidden")}
    assert folded == {"apparatus", *(cell.id for cell in twin.cells if lab_cells.is_check(cell))}


def test_check_sees_an_edit_a_missing_twin_and_an_orphan(course, capsys):
    assert release(course, check=True) == 0
    twin, text = course / "labs" / NAME, (course / "labs" / NAME).read_text("utf-8")
    for broken in (lambda: twin.write_text(text + " ", "utf-8"), twin.unlink):
        broken()
        assert release(course, check=True) == 1
        assert "workbook release" in capsys.readouterr().err
    assert release(course) == 0
    assert twin.read_text("utf-8") == text
    (course / "solutions" / NAME).unlink()
    assert release(course, check=True) == 1
    assert "has no source" in capsys.readouterr().err


def test_half_an_answer_is_an_answer(built_root):
    """The stub's line is still there, and so is somebody's work above it."""
    lab = nb.read(built_root / "labs" / NAME)
    cell = cell_of(lab, "twice")
    cell.source = cell.source.replace("raise", "half = x + 0\n    raise")
    assert has_answers(lab)


def test_somebodys_answers_are_never_overwritten(course, capsys):
    path = course / "labs" / NAME
    save(with_sources(nb.read(path), {"pages": RIGHT["pages"]}), path)
    before = path.read_bytes()
    assert release(course) == 1
    assert "holds answers" in capsys.readouterr().err
    assert path.read_bytes() == before
