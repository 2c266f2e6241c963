"""Histories cut anywhere are walked back to what was held there, and replayed to where they end."""

import random

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.memory.allocator import MIB, alloc, compare_with_snapshot, empty_cache, free, read_snapshot
from helpers.memory.allocator.rewind import beginning
from helpers.memory.allocator.snapshot_summary import devices_of, summarize
from tests.memory.allocator.snapshots import snapshot_of

SETTINGS = ["", "max_split_size_mb:32", "roundup_power2_divisions:4", "max_split_size_mb:64,large_segment_size_mb:32"]


def program(seed, events=220, streams=3):
    """Random requests of all sizes on several streams, now and then an empty_cache."""
    dice, steps, live = random.Random(seed), [], []
    for number in range(events):
        if live and dice.random() < 0.45:
            steps.append(free(live.pop(dice.randrange(len(live)))))
        elif dice.random() < 0.02:
            steps.append(empty_cache())
        else:
            size = dice.choice((300, 70_000, 900_000, 1_500_000, 7 * MIB, 11 * MIB + 1, 40 * MIB)) + dice.randrange(
                5000
            )
            steps.append(alloc(f"t{number}", size, dice.randrange(streams)))
            live.append(f"t{number}")
    return steps


def cut(data, at):
    """The same snapshot with a history that begins at entry `at`."""
    data["device_traces"][0] = data["device_traces"][0][at:]
    return read_snapshot(data)


@pytest.mark.parametrize("conf", SETTINGS)
@pytest.mark.parametrize("seed", range(6))
def test_a_history_cut_anywhere_replays_to_its_end(conf, seed):
    whole = snapshot_of(program(seed), conf)
    entries = len(whole["device_traces"][0])
    for at in sorted(random.Random(seed).sample(range(1, entries - 2), 8)):
        snapshot = cut(snapshot_of(program(seed), conf), at)
        if not any(event.action == "alloc" for event in snapshot.trace()):
            continue
        found = compare_with_snapshot(snapshot)
        assert found.agrees, (at, str(found))


@pytest.mark.parametrize("seed", range(6))
def test_what_was_held_is_what_an_allocator_held_there(seed):
    """Of the first half a second allocator makes a snapshot: that is the beginning of the second half."""
    steps = program(seed)
    half = snapshot_of(steps[: len(steps) // 2])
    snapshot = cut(snapshot_of(steps), len(half["device_traces"][0]))
    found = beginning(snapshot)
    expected = read_snapshot(half).segments
    assert [(one.address, one.size_bytes, one.pool, one.stream) for one in found] == [
        (one.address, one.size_bytes, one.pool, one.stream) for one in expected
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert {b.address for b in ours.blocks if not b.is_free} == {b.address for b in theirs.blocks if not b.is_free}


def test_a_whole_history_begins_with_nothing():
    assert beginning(read_snapshot(snapshot_of(program(1)))) == ()
    assert beginning(read_snapshot(snapshot_of(program(1), "expandable_segments:True"))) == ()


def test_expandable_segments_are_not_walked_back():
    snapshot = cut(snapshot_of(program(1), "expandable_segments:True"), 60)
    with pytest.raises(WorkbookError, match="expandable segments"):
        compare_with_snapshot(snapshot)


def test_a_history_that_contradicts_its_end_is_refused():
    data = snapshot_of(program(2))
    events = data["device_traces"][0] = data["device_traces"][0][50:]
    del events[max(n for n, event in enumerate(events) if event["action"] == "free_completed")]
    with pytest.raises(WorkbookError, match="of the history"):
        compare_with_snapshot(read_snapshot(data))


def test_a_story_has_the_peak_of_the_run_and_what_was_live_then():
    steps = [alloc("a", 30 * MIB), alloc("b", 20 * MIB), free("a"), alloc("c", 4 * MIB), free("b")]
    found = summarize(read_snapshot(snapshot_of(steps)), settings=["max_split_size_mb:20"])
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.at) == (50 * MIB, 50 * MIB, 1)
    assert [(size, count) for _, size, count in found.live] == [(50 * MIB, 2)]
    assert found.others["max_split_size_mb:20"] == 70 * MIB
    assert found.others[""] == 50 * MIB
    assert found.comparison.agrees
    assert "peak in tensors    50.00 MiB" in str(found)


def test_a_story_from_the_middle_counts_what_was_there():
    steps = [alloc("a", 30 * MIB), alloc("b", 20 * MIB), free("a"), alloc("c", 60 * MIB)]
    data = snapshot_of(steps)
    at = next(n for n, event in enumerate(data["device_traces"][0]) if event["action"] == "free_requested")
    found = summarize(cut(data, at))
    assert found.peak_allocated_bytes == 80 * MIB
    assert 20 * MIB in [size for _, size, _ in found.live]
    assert "mid-run, with 50.00 MiB reserved" in str(found)
    assert found.figures["reserved_before_bytes"] == 50 * MIB


def test_a_snapshot_without_a_history_has_no_story():
    data = snapshot_of(program(1))
    data["device_traces"] = [[]]
    with pytest.raises(WorkbookError, match="has no history"):
        devices_of(read_snapshot(data))
