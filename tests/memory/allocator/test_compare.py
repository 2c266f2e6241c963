"""The simulator against a device's history: equal where it is, and every way to differ is named."""

import copy
import random

import pytest

from helpers.catalog import WorkbookError
from helpers.memory.allocator import (
    MIB,
    Settings,
    alloc,
    compare_with_snapshot,
    empty_cache,
    free,
    read_snapshot,
    requests_of,
)
from helpers.memory.allocator.driver import Driver
from tests.memory.allocator.snapshots import snapshot_of

CONFS = ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"]
STEPS = [alloc("a", 3 * MIB), alloc("b", 30 * MIB), alloc("c", 1000), free("b"), alloc("d", 12 * MIB), free("a")]


def busy(seed, events=400):
    rng, living, steps = random.Random(seed), [], []
    for number in range(events):
        if rng.random() < 0.02:
            steps.append(empty_cache())
        elif living and rng.random() < 0.5:
            steps.append(free(living.pop(rng.randrange(len(living)))))
        else:
            steps.append(alloc(number, int(2 ** rng.uniform(6, 26)), stream=rng.randrange(2)))
            living.append(number)
    return steps


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_history_replays_to_what_it_came_from(conf, seed):
    comparison = compare_with_snapshot(read_snapshot(snapshot_of(busy(seed), conf)))
    assert comparison.agrees, str(comparison)
    assert comparison.segment_events > 20
    assert str(comparison).startswith("equal: ")


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_a_retry_in_the_history_replays(conf):
    steps = [alloc("a", 20 * MIB), alloc("b", 20 * MIB), free("a"), alloc("c", 36 * MIB)]
    data = snapshot_of(steps, conf, capacity_bytes=64 * MIB)
    assert {event["action"] for event in data["device_traces"][0]} & {"segment_free", "segment_unmap"}
    assert compare_with_snapshot(read_snapshot(data)).agrees


def test_a_failed_request_in_the_history_is_passed_over():
    data = snapshot_of([alloc("a", 40 * MIB), alloc("b", 40 * MIB)], capacity_bytes=64 * MIB)
    assert data["device_traces"][0][-1]["action"] == "oom"
    assert compare_with_snapshot(read_snapshot(data)).agrees


def test_addresses_of_the_device_break_ties():
    """Two equal holes, the later segment at the lower address: that one is taken, here as on the device."""
    steps = [alloc("a", 12 * MIB), alloc("b", 12 * MIB), free("a"), free("b"), alloc("c", 12 * MIB)]
    device = Driver(recorded=[(12 * MIB, 1 << 40), (12 * MIB, 1 << 30)])
    comparison = compare_with_snapshot(read_snapshot(snapshot_of(steps, driver=device)))
    assert comparison.agrees, str(comparison)
    found = [(segment.address, segment.allocated_bytes) for segment in comparison.replay.segments]
    assert found == [(1 << 40, 0), (1 << 30, 12 * MIB)]


def test_expandable_segments_lie_where_the_device_put_them():
    steps = [alloc("a", 3 * MIB), alloc("b", 4 * MIB, stream=1), alloc("c", 30 * MIB)]
    device = Driver(recorded=[(20 * MIB, 1 << 40), (20 * MIB, 1 << 30)])
    snapshot = read_snapshot(snapshot_of(steps, "expandable_segments:True", driver=device))
    assert [(segment.address, segment.stream) for segment in snapshot.segments] == [(1 << 30, 1), (1 << 40, 0)]
    comparison = compare_with_snapshot(snapshot)
    assert comparison.agrees, str(comparison)
    assert [segment.address for segment in comparison.replay.segments] == [1 << 40, 1 << 30]


def changed(change):
    data = copy.deepcopy(snapshot_of(STEPS))
    change(data)
    return read_snapshot(data)


def resize_call(data):
    next(e for e in data["device_traces"][0] if e["action"] == "segment_alloc")["size"] = 22 * MIB


def another_stream(data):
    next(e for e in data["device_traces"][0] if e["action"] == "segment_alloc")["stream"] = 9


def shift_block(data):
    first, second = data["segments"][0]["blocks"][:2]
    first["size"] += 512
    second["size"] -= 512
    second["address"] += 512


DIFFERENT = [
    (resize_call, "call 0 to the driver: segment_alloc of 22.00 MiB on the device"),
    (another_stream, "call 0 to the driver"),
    (shift_block, "segment 1 at the end"),
]


@pytest.mark.parametrize(("change", "named"), DIFFERENT, ids=[row[0].__name__ for row in DIFFERENT])
def test_a_difference_is_found_and_named(change, named):
    comparison = compare_with_snapshot(changed(change))
    assert not comparison.agrees
    assert named in str(comparison)


def test_other_settings_than_the_devices_differ():
    snapshot = read_snapshot(snapshot_of(STEPS, "expandable_segments:True"))
    assert not compare_with_snapshot(snapshot, Settings()).agrees


def test_a_history_that_begins_late_is_replayed_from_there_and_says_so():
    data = snapshot_of(STEPS)
    data["device_traces"][0] = data["device_traces"][0][2:]
    comparison = compare_with_snapshot(read_snapshot(data))
    assert comparison.agrees, str(comparison)
    assert comparison.unrecorded_bytes == 20 * MIB
    assert "20.00 MiB were reserved before the history begins" in str(comparison)


def test_a_segment_that_is_missing_at_the_end_is_a_contradiction():
    data = snapshot_of(STEPS)
    data["segments"].pop()
    with pytest.raises(WorkbookError, match="of the history"):
        compare_with_snapshot(read_snapshot(data))


def test_what_cannot_be_compared_is_refused():
    empty = snapshot_of(STEPS)
    empty["device_traces"] = [[]]
    with pytest.raises(WorkbookError, match="no history of device 0"):
        compare_with_snapshot(read_snapshot(empty))
    with pytest.raises(WorkbookError, match="no history of device 1"):
        compare_with_snapshot(read_snapshot(snapshot_of(STEPS)), device=1)
    private = snapshot_of(STEPS)
    private["segments"][0]["segment_pool_id"] = (0, 1)
    with pytest.raises(WorkbookError, match="private memory pools"):
        compare_with_snapshot(read_snapshot(private))


def test_steps_of_a_history():
    trace = read_snapshot(snapshot_of([*STEPS[:4], empty_cache()])).trace()
    assert [step.action for step in requests_of(trace)] == ["alloc", "alloc", "alloc", "free", "empty_cache"]
    assert requests_of(trace)[0].name == "train.py:12 step"
