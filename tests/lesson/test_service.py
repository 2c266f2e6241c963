"""The service that chapters carry along, beside a count of its own: whole heads and matrices over eight ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.lesson import service
from helpers.lesson.drawing.marks import Line

HIDDEN, LAYERS, HEADS, WIDE, WORDS = 8192, 80, 64, 28_672, 128_256  # Llama-3.1-70B's config


def cards_line(card):
    (line,) = [mark for mark in card.body if isinstance(mark, Line) and mark.kind == "capacity"]
    return line.points[0][0]


def test_a_card_has_one_kv_head_of_every_user_and_an_eighth_of_each_matrix():
    held = service.parts()
    assert held["kv_cache"] == 200 * 8192 * LAYERS * 2 * 128 * 2
    a_layer = HIDDEN * (2 * HIDDEN + 2 * HIDDEN // 8 + 3 * WIDE) // 8 + 2 * HIDDEN
    turns = 131_072 * 128  # the engine's table of rotary angles, for every position
    assert held["parameters"] == 2 * (LAYERS * a_layer + 2 * WORDS * HIDDEN // 8 + HIDDEN + turns)


def test_the_engine_holds_fewer_users_than_the_bar_has_and_all_of_them_in_fp8():
    assert service.launch().users < service.SETUP.users
    assert service.launch(replace(service.SETUP, kv="fp8-e4m3")).users > service.SETUP.users
    assert service.parts().total > service.CARD.capacity_bytes


@pytest.mark.parametrize("changes", [{}, {"kv": "fp8-e4m3"}, {"weights": "fp8-e4m3"}, {"users": 100}])
def test_its_bars_share_a_scale_and_the_cards_line(changes):
    bars = service.bars("t", {"a rung": replace(service.SETUP, **changes)})
    assert cards_line(bars) == cards_line(service.bars("another", {"the service": service.SETUP}))


def test_parts_may_be_given():
    assert "idle 1.00 GiB" in service.bars("t", {"x": {"idle": 2**30}}).words


def test_a_chapter_may_ask_for_a_longer_scale_on_which_two_pictures_agree():
    tall = {"a rung": {"kv_cache": 120 * 2**30}}
    long, short = (service.bars("t", {"x": service.SETUP}, **scale) for scale in ({"scale_bytes": 120 * 2**30}, {}))
    assert cards_line(long) == cards_line(service.bars("t", tall)) < cards_line(short)
