"""The lint's numbers for chapters that have been told anew: words in all, before the first task, between two."""

from pathlib import Path

import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.course.spine import SPINES, too_long, words

ROOT = Path(__file__).resolve().parents[2]
TASK = v4.new_code_cell('guess = predict("the peak", guess=None)', id="task")


def prose(count):
    return v4.new_markdown_cell("word " * count)


@pytest.mark.parametrize("chapter", SPINES)
def test_the_chapters_keep_their_numbers(chapter):
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    assert not list(too_long(chapter, nb.read(path).cells))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ([prose(101), TASK], "101 words before the task in cell task, and 100"),
        ([prose(100), TASK, prose(251), TASK], "251 words before the task in cell task, and 250"),
        ([TASK, *[prose(250), TASK] * 5, prose(51)], "1,301 words, and 1,300 are the most"),
        ([prose(100), TASK, prose(200), v4.new_code_cell("print(7)"), prose(51), TASK], "251 words"),
    ],
)
def test_what_is_too_long_is_told(cells, told):
    (found,) = too_long("00", cells)
    assert told in found


def test_what_keeps_within_is_not():
    assert not list(too_long("00", [prose(100), TASK, prose(250), TASK, prose(400)]))
    assert not list(too_long("99", [prose(10_000)])), "a chapter that has no numbers yet"


@pytest.mark.parametrize(
    "task", ['x = choose("?", "a", "b", guess=None)', "fill_in(f, {})", 'claims.read("x", guess=None)']
)
def test_what_counts_as_a_task(task):
    cell = v4.new_code_cell(task)
    assert not list(too_long("00", [prose(90), cell, prose(240), TASK]))


def test_tables_addresses_and_tags_are_no_words():
    assert words("| a | b |\n|---|---|\n| c | d |\n\nOne [link](https://a.b/c-d) and <b>two</b> more.") == 5
