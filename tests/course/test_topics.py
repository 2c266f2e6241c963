"""The table of topics points to cells and questions that exist, and docs/topics.md is what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import notebook as nb
from helpers.course import topics

ROOT = Path(__file__).resolve().parents[2]
ROW = ["Levels", "2e5338ca", "L2", "01 move-seconds"]  # of chapter 01


def found(row: list[str]) -> topics.Topic:
    (topic,) = topics._in_chapter(ROOT, "01", [row])
    return topic


def test_the_page_is_what_the_notebooks_say():
    stored = (ROOT / topics.PAGE).read_text(encoding="utf-8")
    assert stored == topics.page(ROOT), "run `workbook topics`"


def test_every_chapter_and_every_lab_has_topics():
    there = topics.topics(ROOT)
    chapters = {path.name[:2] for path in nb.find_all(ROOT, ["notebooks"])}
    labs = {path.name[:2] for path in nb.find_all(ROOT, ["solutions"])}
    assert {topic.chapter for topic in there} == chapters
    assert {topic.question[:2] for topic in there if topic.question[:2].isdigit()} == labs


def test_every_question_of_every_lab_checks_a_topic():
    asked = {f"{one.question[:2]} {name}" for one in topics.topics(ROOT) for name in topics.named(one.question)}
    for path in nb.find_all(ROOT, ["solutions"]):
        lab = path.name[:2]
        assert not {f"{lab} {name}" for name in topics._questions(ROOT, lab)} - asked


def test_a_topic_is_found_in_the_first_cell_of_its_section_that_says_so():
    topic = found(ROW)
    cell = nb.read(next((ROOT / "notebooks").glob("01_*"))).cells[topic.cell]
    assert cell.id == topic.cell_id
    assert "L2" in cell.source
    assert "lab 01: `move-seconds`" in topic.row


@pytest.mark.parametrize(
    ("position", "other", "why"),
    [
        (1, "550ced", "no heading"),
        (2, "abacus", "no cell of section 2e5338ca says 'abacus'"),
        (3, "01 abacus", "lab 01 has no question 'abacus'"),
        (3, "nowhere", "no notebook no"),
    ],
)
def test_a_topic_whose_place_is_gone_is_an_error(position, other, why):
    row = [*ROW]
    row[position] = other
    with pytest.raises(WorkbookError, match=why):
        found(row)


def test_a_section_that_asks_nothing_checks_nothing():
    with pytest.raises(WorkbookError, match="asks nothing"):
        found(["In short", "d3242953", "memory", topics.HERE])
