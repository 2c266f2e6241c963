"""What is live at the peak, and after some events: pure accounting."""

from helpers.memory.meter.timeline import Block, Event, live_after, live_at_peak


def story():
    """a and b meet at the peak of 5; c is alone at the end, and is as large as it was at the start."""
    a, b, c = (Block(size, "", name, ()) for name, size in (("a", 2), ("b", 3), ("c", 4)))
    return [Event(a, 1, ""), Event(b, 1, ""), Event(a, -1, ""), Event(b, -1, ""), Event(c, 1, "")]


def owners(blocks):
    return [block.owner for block in blocks]


def test_what_is_live_when_most_is():
    assert owners(live_at_peak(story())) == ["a", "b"]
    assert owners(live_after(story())) == ["c"]


def test_a_peak_is_looked_for_from_an_event_on():
    assert owners(live_at_peak(story(), first=2)) == ["c"]
    assert live_at_peak([]) == []
