"""Pictures of rounding: what is drawn is what was given, and the front is the front."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.lesson import quality

POINTS = {"fp32": (6.9e6, 3.50), "4 bits": (1.5e6, 3.52), "2 bits": (1.1e6, 5.1), "pruned": (4.0e6, 4.4)}


@pytest.fixture
def drawn(monkeypatch):
    """`drawn(picture, *arguments)` gives the axes that became the picture."""
    kept = []
    monkeypatch.setattr(quality, "as_picture", lambda figure, title: kept.append((figure, title)))

    def call(function, *arguments, **named):
        function(*arguments, **named)
        return kept[-1][0].axes[0]

    return call


def test_every_level_is_a_tick_under_the_histogram(drawn):
    axes = drawn(quality.levels, "t", torch.randn(500), {"a": [-1.0, 0.0, 1.0], "b": [0.5]})
    ticks = [sorted(segment[0][0] for segment in lines.get_segments()) for lines in axes.collections]
    assert ticks == [[-1.0, 0.0, 1.0], [0.5]]
    assert all(segment[:, 1].max() < 0 for lines in axes.collections for segment in lines.get_segments())


def test_channels_are_as_tall_as_their_values(drawn):
    axes = drawn(quality.channels, "t", torch.tensor([100.0, 1.0]), torch.tensor([2.0, 1.0]), ("before", "after"))
    assert [float(segment[1][1]) for segment in axes.collections[0].get_segments()] == [100.0, 1.0]
    assert list(axes.lines[0].get_ydata()) == [2.0, 1.0]
    assert axes.get_ylim()[1] >= 100


def test_what_is_lost_in_noise_is_drawn_at_the_noise(drawn):
    axes = drawn(quality.lost, "t", [2, 4], {"groups": [0.5, -0.01]}, "lost", 0.001)
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.001]


def test_the_front_joins_the_best_and_names_all(drawn):
    best = quality.unbeaten(POINTS)
    axes = drawn(quality.front, "t", POINTS, "perplexity", best)
    assert {text.get_text() for text in axes.texts} == set(POINTS)
    joined = next(line for line in axes.lines if len(line.get_xdata()) == len(best))
    assert list(joined.get_xdata()) == sorted(POINTS[name][0] / 1e6 for name in best)


def test_the_pictures_are_png():
    picture = quality.front("what to see", POINTS, "perplexity")
    assert picture.png.startswith(b"\x89PNG")
    assert repr(picture) == "[picture: what to see]"


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_nothing_beats_what_is_on_the_front(points):
    best = quality.unbeaten(points)
    for name, (size, score) in points.items():
        beaten = any(s <= size and q <= score and (s, q) != (size, score) for s, q in points.values())
        twin = any(points[one] == (size, score) for one in best)
        assert (name in best) <= (not beaten)
        assert beaten or twin
