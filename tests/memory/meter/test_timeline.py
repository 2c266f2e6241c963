"""What is live at the peak, and after some events: pure accounting."""

from helpers.memory.meter.timeline import ZERO_GRAD, AllocationEvent, StorageLifetime, account, live_after, live_at_peak


def story():
    """a and b meet at the peak of 5; c is alone at the end, and is as large as it was at the start."""
    a, b, c = (StorageLifetime(size, "", name, ()) for name, size in (("a", 2), ("b", 3), ("c", 4)))
    return [
        AllocationEvent(a, 1, ""),
        AllocationEvent(b, 1, ""),
        AllocationEvent(a, -1, ""),
        AllocationEvent(b, -1, ""),
        AllocationEvent(c, 1, ""),
    ]


def owners(blocks):
    return [block.owner for block in blocks]


def test_what_is_live_when_most_is():
    assert owners(live_at_peak(story())) == ["a", "b"]
    assert owners(live_after(story())) == ["c"]


def test_a_peak_is_looked_for_from_an_event_on():
    assert owners(live_at_peak(story(), first=2)) == ["c"]
    assert live_at_peak([]) == []


def test_what_is_freed_between_two_phases_begins_none():
    """Once the loss's gradient was freed after backward, and the picture read forward, backward, forward."""
    kept, loss, gradient = (
        StorageLifetime(4, "forward", "", ()),
        StorageLifetime(1, "forward", "", ()),
        StorageLifetime(9, "backward", "", ()),
    )
    gradient.category = "gradients"
    step = [
        AllocationEvent(kept, 1, "forward"),
        AllocationEvent(loss, 1, "forward"),
        AllocationEvent(gradient, 1, "backward"),
        AllocationEvent(loss, -1, "forward"),
        AllocationEvent(gradient, -1, "forward"),
        AllocationEvent(kept, -1, "forward"),
    ]
    measured = account(step, 0, None, 0, "cpu", None)
    assert measured.timeline.phases == ["forward"] * 2 + ["backward"] * 2 + [ZERO_GRAD] * 2
    assert [(moment.at, moment.total) for moment in measured.moments] == [("forward", 5), ("backward", 14)]


def test_gradients_freed_at_the_beginning_of_a_step_are_no_forward_either():
    old, new = StorageLifetime(9, "backward", "", (), "gradients"), StorageLifetime(2, "forward", "", ())
    phases = account(
        [AllocationEvent(old, 1, ""), AllocationEvent(old, -1, "forward"), AllocationEvent(new, 1, "forward")],
        1,
        None,
        0,
        "cpu",
        None,
    )
    assert phases.timeline.phases == [ZERO_GRAD, "forward"]


def test_a_part_of_the_callers_own_is_told_apart_and_still_counts_as_saved():
    scores, other, gradient = (StorageLifetime(size, phase, "attn", shape) for size, phase, shape in (
        (8, "forward", (4, 4)), (2, "forward", (4,)), (1, "backward", ())))  # fmt: skip
    step = [
        AllocationEvent(scores, 1, "forward"),
        AllocationEvent(other, 1, "forward"),
        AllocationEvent(gradient, 1, "backward"),
    ]
    measured = account(step, 0, None, 0, "cpu", None, lambda block: "scores" if block.shape == (4, 4) else None)
    assert measured.timeline.parts["scores"] == [8, 8, 8]
    assert measured.moments[-1].parts["scores"] == 8
    assert measured.saved_bytes == 10
