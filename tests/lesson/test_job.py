"""The job that chapters carry along: the one that chapter 00 spells out, on one scale everywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from helpers.catalog import TrainSetup
from helpers.course import notebook as nb
from helpers.lesson import job
from helpers.lesson.drawing.marks import Line
from helpers.memory import budget
from tests.house.tree import ROOT


def cards_line(card):
    (line,) = [mark for mark in card.body if isinstance(mark, Line) and mark.kind == "capacity"]
    return line.points[0][0]


def test_chapter_00_spells_it_out():
    (path,) = (ROOT / "notebooks").glob("00_*.ipynb")
    source = "\n".join(cell.source for cell in nb.read(path).cells)
    (spelled,) = re.findall(r"ours = (TrainSetup\(.*\))", source)
    assert eval(spelled, {"TrainSetup": TrainSetup}) == job.SETUP


@pytest.mark.parametrize(
    "changes", [{}, {"checkpointing": "full"}, {"optimizer": "adamw-foreach"}, {"precision": "bf16"}]
)
def test_its_bars_share_a_scale_and_the_cards_line(changes):
    setup = replace(job.SETUP, **changes)
    assert cards_line(job.bars("t", {"a rung": setup})) == cards_line(job.bars("another", {"the job": job.SETUP}))


def test_parts_may_be_given():
    assert "idle 1.00 GiB" in job.bars("t", {"x": {"idle": 2**30}}).words
    assert "121.50 GiB" in job.bars("t", {"x": budget.train(job.SETUP).parts}).words
