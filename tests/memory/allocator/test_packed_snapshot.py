"""A packed snapshot replays as the whole one does, and is small."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.memory.allocator import MIB, alloc, compare_with_snapshot, empty_cache, free, pack, read_snapshot, unpack
from tests.memory.allocator.snapshots import snapshot_of

CONFS = ["", "expandable_segments:True", "max_split_size_mb:64"]


def program(seed, count=400):
    rng, living, steps = random.Random(seed), [], []
    for number in range(count):
        if rng.random() < 0.02:
            steps.append(empty_cache())
        elif living and rng.random() < 0.5:
            steps.append(free(living.pop(rng.randrange(len(living)))))
        else:
            living.append(f"t{number}")
            steps.append(alloc(living[-1], int(2 ** rng.uniform(6, 26)), stream=rng.choice((0, 0, 0, 7))))
    return steps


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(3))
def test_what_comes_back_replays_alike(conf, seed):
    whole = read_snapshot(snapshot_of(program(seed), conf))
    back = unpack(pack(whole))
    assert (back.conf, back.reserved_bytes, back.allocated_bytes) == (conf, whole.reserved_bytes, whole.allocated_bytes)
    layouts = [
        [
            (s.address, s.size_bytes, s.pool, s.stream, [(b.size_bytes, b.state) for b in s.blocks])
            for s in snapshot.segments
        ]
        for snapshot in (whole, back)
    ]
    assert layouts[0] == layouts[1]
    kept = [event[:4] for event in whole.trace() if event.action != "free_requested"]
    assert [event[:4] for event in back.trace()] == kept
    ours, theirs = compare_with_snapshot(back), compare_with_snapshot(whole)
    assert ours.agrees
    assert ours.segment_events == theirs.segment_events > 10
    assert ours.replay.reserved == theirs.replay.reserved


def test_equal_snapshots_give_equal_bytes_and_few_of_them():
    whole = read_snapshot(snapshot_of(program(0, 3000)))
    assert pack(whole) == pack(whole)
    assert pack(whole)[4:8] == bytes(4), "the header holds the time at which it was packed"
    assert len(pack(whole)) < 25_000


def test_an_empty_one():
    assert unpack(pack(read_snapshot({"segments": []}))).segments == ()


def test_addresses_that_are_no_blocks_are_refused():
    data = snapshot_of([alloc("a", 3 * MIB)])
    data["device_traces"][0][-1]["addr"] += 100
    with pytest.raises(WorkbookError, match="not a multiple of 512"):
        pack(read_snapshot(data))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        gzip.compress(b"{}"),
        gzip.compress(b"[]"),
        gzip.compress(b"\xff"),
        pack(read_snapshot(snapshot_of([alloc("a", 3 * MIB)])))[:-9],
        gzip.compress(json.dumps({"format": 1, "segments": [3]}).encode()),
    ],
    ids=range(7),
)
def test_what_is_no_packed_snapshot_is_told(content):
    with pytest.raises(WorkbookError, match="no packed snapshot"):
        unpack(content)


def test_columns_of_different_lengths_are_told():
    data = json.loads(gzip.decompress(pack(read_snapshot(snapshot_of([alloc("a", 3 * MIB)])))))
    data["sizes"].pop()
    with pytest.raises(WorkbookError, match="no packed snapshot"):
        unpack(gzip.compress(json.dumps(data).encode()))
