"""Time against a size: the floor's line goes through every point that it was given."""

from helpers.lesson.drawing import speeds


def test_the_floor_bends_where_it_turns_and_not_at_the_nearest_dot(monkeypatch):
    drawn = []
    monkeypatch.setattr(speeds, "as_picture", lambda figure, title, words: drawn.append((figure, words)))
    floors = {1: 1e-3, 48: 1e-3, 64: 4e-3 / 3, 128: 8e-3 / 3}
    speeds.growth("t", [1, 32, 64, 128], [2e-3, 2e-3, 3e-3, 5e-3], floors, "tokens", 48)
    (figure, words) = drawn[0]
    floor = figure.axes[0].lines[0]
    assert dict(zip(floor.get_xdata(), floor.get_ydata(), strict=True)) == floors
    assert words.endswith("The floor turns at 48.")
