"""The lint's numbers for chapters told anew: words before and between tasks, lines, names; and no answer in sight."""

from pathlib import Path

import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.course.address import SETUP
from helpers.course.build import clean
from helpers.course.copies import cleared
from helpers.course.lint import findings
from helpers.course.spine import (
    SPINES,
    Spine,
    broken,
    in_sight,
    lines,
    too_long,
    too_many_names,
    too_much_code,
    unfolded,
    words,
)

ROOT = Path(__file__).resolve().parents[2]
TASK = v4.new_code_cell('guess = predict("the peak", guess=None)', id="task")


def prose(count):
    return v4.new_markdown_cell("word " * count)


@pytest.mark.parametrize("chapter", SPINES)
def test_the_chapters_keep_their_numbers(chapter):
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    assert not list(broken(chapter, nb.read(path).cells))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ([prose(101), TASK], "101 words before the task in cell task, and 100"),
        ([prose(100), TASK, prose(251), TASK], "251 words before the task in cell task, and 250"),
        ([TASK, *[prose(250), TASK] * 5, prose(51)], "1,301 words, and 1,300 are the most"),
        ([prose(100), TASK, prose(251)], "251 words at the end, and 250"),
        ([prose(100), TASK, prose(200), v4.new_code_cell("print(7)"), prose(51), TASK], "251 words"),
    ],
)
def test_what_is_too_long_is_told(cells, told):
    (found,) = too_long("00", cells)
    assert told in found


def test_what_keeps_within_is_not():
    assert not list(too_long("00", [prose(100), TASK, prose(250), TASK, prose(250)]))
    assert not list(too_long("99", [prose(10_000)])), "a chapter that has no numbers yet"


@pytest.mark.parametrize(
    "task", ['x = choose("?", "a", "b", guess=None)', "fill_in(f, {})", 'claims.read("x", guess=None)']
)
def test_what_counts_as_a_task(task):
    cell = v4.new_code_cell(task)
    assert not list(too_long("00", [prose(90), cell, prose(240), TASK]))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One [link](https://a.b/c-d) and <b>two</b> more.", 5),
        ("| a | b |\n|---|---|\n| c | 1,048.5 |", 4),
        ("```python\nmodel.train()\n```\nand on", 3),
        ("one\n<details><summary>A question</summary>\n\nand its answer\n</details>\ntwo", 2),
    ],
)
def test_all_that_a_reader_meets_are_words_and_no_address_no_tag_nothing_folded(text, count):
    assert words(text) == count


@pytest.fixture
def chapter(monkeypatch):
    """The number of a chapter that has the usual numbers."""
    monkeypatch.setitem(SPINES, "77", Spine())
    return "77"


def code(source, *tags, name="code", folded=False, out=""):
    metadata = {"tags": list(tags)} | ({"jupyter": {"source_hidden": True}} if folded else {})
    outputs = [v4.new_output("stream", text=out)] if out else []
    return v4.new_code_cell(source, id=name, metadata=metadata, outputs=outputs)


def markdown(source, name="text"):
    return v4.new_markdown_cell(source, id=name)


TYPED = "\n\n# a comment\n".join(["x = 1"] * 12)
GAP = "def f(x):\n    ### BEGIN SOLUTION\n" + "    x += 1\n" * 20 + "    return x\n    ### END SOLUTION"


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (code(TYPED), None),
        (code(TYPED + "\nx = 2"), "cell code has 13 lines of code, and 12 are the most"),
        (code(TYPED + "\nx = 2", folded=True), None),
        (code(GAP), None),
        (code("x = 1\n" * 30, "textbook"), None),
        (code("x = 1\n" * 31, "textbook"), "cell code has 31 lines of code, and 30 are the most"),
        (markdown("x = 1\n" * 40), None),
    ],
)
def test_a_cell_in_sight_is_as_long_as_a_reader_would_type(chapter, cell, told):
    found = list(too_much_code(chapter, [cell]))
    assert len(found) == bool(told)
    assert not told or told in found[0]


def test_lines_are_counted_without_comments_and_worked_answers():
    assert (lines(TYPED), lines(GAP), lines("")) == (12, 1, 0)


def test_the_tag_of_a_textbook_algorithm_survives_the_build_and_the_release(tmp_path):
    notebook = v4.new_notebook(cells=[markdown("# 05 · X"), code("x = 1", "textbook")])
    clean(notebook, tmp_path)
    assert nb.tags(notebook.cells[1]) == {"textbook"}
    assert nb.tags(cleared(notebook, "notebooks/05_x.ipynb").cells[1]) == {"textbook"}


def importing(count):
    names = [f"name_{number}" for number in range(count)]
    ours = f"from helpers.catalog import {', '.join(names[:7])}\nfrom helpers.lesson import check"
    first = code(f"import torch\nfrom torch.nn import Linear\n{ours}")
    inside = code(f"def f():\n    from helpers.memory.oom import {', '.join(names[6:])}", name="inside")
    return [code(SETUP, name="setup", folded=True), first, inside]


def test_names_of_ours_are_counted_once_each_and_not_those_of_the_setup_cell(chapter):
    assert not list(too_many_names(chapter, importing(12)))
    (found,) = too_many_names(chapter, importing(13))
    assert found.startswith("13 names of helpers are imported, and 12 are the most: name_0, name_1, name_10")


ASK = code('guess = predict("the peak", unit="GiB", guess=None)', name="ask")
TOLD = code(
    'compare(step, unit="GiB", called="predicted", you=guess)',
    name="told",
    out="peaks\n                  GiB   off by\nyou                 –\nformula         120.0  −1.20 %\n"
    "predicted     1,121.5\nand 33\n",
)
PICK = code('pick = choose("Which?", "the weights", "the gradients", "no", guess=None)', name="ask")
SETTLED = code('settle("the weights", pick, {"the weights": "a", "the gradients": "b", "no": "c"})', name="told")
LEAKS = (
    "1,121.5 GiB",
    "1121.5\u00a0GiB",
    "1,121.52 GiB",
    "about 1,120 GiB",
    "1,100 GiB",
    "**1,121.5** GiB",
    "**1,121.5**",
)
NO_LEAKS = (
    "1,121.5 MiB",
    "1,123 GiB",
    "1,121.5 GiB/s",
    "2 GiB",
    "33 GiB",
    "120.0 GiB",
    "11,121.5 GiB",
    "1,121.5",
    "**7**",
)


def found_in(*cells):
    return [message.split()[1] for message in in_sight(cells)]


@pytest.mark.parametrize("text", [*LEAKS, *NO_LEAKS])
def test_a_number_that_a_guess_asks_for_stands_nowhere_before_its_answer(text):
    leaks = ["text"] * (text in LEAKS)
    assert found_in(markdown(f"It is {text}."), ASK, TOLD) == leaks
    assert found_in(ASK, markdown(f"## It is {text}."), TOLD) == leaks
    assert found_in(ASK, TOLD, markdown(f"It is {text}.")) == []
    assert found_in(ASK, markdown(f"<details><summary>Why</summary>\n\nIt is {text}.\n</details>"), TOLD) == []


def test_a_title_of_a_figure_gives_a_number_away_and_a_number_of_code_does_not():
    assert found_in(ASK, code('plots.bars("A peak of 1,121.5 GiB", x)'), TOLD) == ["code"]
    assert found_in(ASK, code('x = 1121.5\nplots.bars("A peak", {"1121.5 GiB": x})'), TOLD) == []


def test_what_is_looked_through_begins_after_the_answer_to_the_task_before():
    other = code('other = predict("x", unit="GiB", guess=None)'), code("compare(3, you=other)")
    before = markdown("1,121.5 GiB")
    assert found_in(*other, before, ASK, TOLD) == ["text"]
    assert found_in(before, *other, ASK, TOLD) == []
    assert found_in(other[0], before, other[1], ASK, TOLD) == []
    assert found_in(before, code("fill_in(f, {})"), ASK, TOLD) == []
    assert found_in(other[0], before, ASK, TOLD, other[1]) == ["text"]


@pytest.mark.parametrize(
    ("unit", "truth", "text", "leaks"),
    [
        ("×", "1.85", "1.9 times as fast", True),
        ("×", "12.00", "12 × 4,096 numbers", False),
        ("%", "25.72", "a share of 26 %", True),
        ("tokens/s", "41.30", "41 tokens", False),
        ("ms", "−3.40", "3.4 ms less", True),
    ],
)
def test_a_number_counts_beside_its_own_unit(unit, truth, text, leaks):
    table = f"          {unit}   off by\nyou       –\nmeasured     {truth}\n"
    told = code(f'compare(x, unit="{unit}", you=guess)', out=table)
    assert found_in(ASK, markdown(text), told) == ["text"] * leaks


@pytest.mark.parametrize(
    ("cell", "leaks"),
    [
        (markdown("## The weights are largest"), True),
        (markdown("## Larger: the weights or the gradients?"), False),
        (markdown("The weights are largest"), False),
        (code('plots.bars("Of all, the weights", x)'), True),
        (code('plots.bars("Of all, the gradients", x)'), False),
        (code('weigh("the_weights")'), False),
    ],
)
def test_no_heading_and_no_title_picks_the_right_option(cell, leaks):
    assert found_in(PICK, cell, SETTLED) == [cell.id] * leaks
    assert found_in(PICK, SETTLED, cell) == []


def test_a_short_option_stands_everywhere_and_gives_nothing_away():
    pick = code('pick = choose("Which?", "A", "B", guess=None)')
    assert found_in(pick, markdown("## A claim on trial"), code('settle("A", pick, {"A": "a", "B": "b"})')) == []


@pytest.mark.parametrize(
    "asking", ["x = choose(question, *options)", "x = [predict('a'), predict('b')]", "x = [choose('?'), choose('?')]"]
)
def test_what_cannot_be_told_from_the_source_is_let_pass(asking):
    for told in ("settle(right, x, {})", "compare(3, **{'you': x})", "compare(3, x)"):
        assert found_in(code(asking), markdown("## 1,121.5 GiB"), code(told, out=TOLD.outputs[0].text)) == []


def test_the_lint_tells_all_of_it_in_a_chapter_that_has_numbers(chapter):
    long = code(TYPED + "\nx = 2", name="long")
    cells = [prose(201), *importing(13), long, markdown("1,121.5 GiB"), ASK, TOLD]

    def told(path):
        return [one for one in findings(v4.new_notebook(cells=cells), Path(path)) if one.rule == "spine"]

    assert len(told("elsewhere/notebooks/77_x.ipynb")) == 4
    assert not told("elsewhere/notebooks/78_x.ipynb")
    assert not told("elsewhere/notebooks/deeper/77_x.ipynb")


@pytest.mark.parametrize(
    "source", ['compare(1, you=guess, remarks={2: "Right."})', 'settle("a", x, {})', "MY_SLIPS = {}"]
)
def test_sentences_that_answer_are_folded(source):
    assert [*unfolded([code(source, name="told")])] == [
        "cell told has sentences that answer, and anybody reads them before it runs: fold it"
    ]
    assert not [*unfolded([code(source, name="told", folded=True)])]
    assert not [*unfolded([code("compare(1, you=guess)", name="told")])]
