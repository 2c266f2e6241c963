"""What the book shows of recordings: experiments that there are, each in its own chapter, and none forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from helpers.course import notebook as nb
from helpers.course.record.experiments import EXPERIMENTS

NOTEBOOKS = nb.find_all(Path(__file__).parents[3], nb.BOOK)


def shown(source: str) -> list[str]:
    """The experiments that a cell names in calls of recorded() and recorded_table()."""
    calls = re.findall(r"\brecorded(?:_table)?\(([^()]*)\)", source)
    return [name for call in calls for name in re.findall(r'"([^"]*/[^"]*)"', call)]


def by_notebook() -> list[tuple[str, str, bool]]:
    """(the chapter's number or A, experiment, whether nbval ignores the cell) for each place."""
    found = []
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, 4).cells:
            ignored = "nbval-ignore-output" in cell.metadata.get("tags", ())
            found += [
                (path.name.partition("_")[0], name, ignored) for name in shown(cell.source) if cell.cell_type == "code"
            ]
    return found


def test_names_are_found_in_calls_only():
    assert shown('recorded_table("02/a", "02/b", quantity="held")\nx = recorded("01/c")') == ["02/a", "02/b", "01/c"]
    assert shown('print("02/a")\nunrecorded("02/b")') == []


def test_each_experiment_is_shown_in_its_chapter_or_in_its_companion_or_in_the_appendix():
    places = by_notebook()
    assert {name for _, name, _ in places} == {one.name for one in EXPERIMENTS}
    assert all(chapter == "A" or name.startswith(chapter + "/") for chapter, name, _ in places)


def test_such_cells_are_not_compared():
    """What they print depends on which recordings lie there."""
    assert [place for place in by_notebook() if not place[2]] == []


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_each_has_a_sentence_for_the_list(one):
    assert 10 < len(one.what) < 62
