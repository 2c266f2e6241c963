"""Replays: what a trace reserved, when, what each event did and how it is told."""

import doctest
import importlib
import random

import pytest

from helpers.catalog import WorkbookError
from helpers.memory.allocator import MIB, OutOfMemory, Settings, alloc, empty_cache, free, replay
from helpers.memory.meter.timeline import AllocationEvent, StorageLifetime
from tests.calls import calls_of

STEPS = [
    alloc("x", 40 * MIB),
    free("x"),
    alloc("keep", 12 * MIB),
    alloc("y", 28 * MIB),
    free("y"),
    empty_cache(),
    alloc("z", 36 * MIB),
]


def test_the_record_of_a_trace():
    ran = replay(STEPS)
    assert [size // MIB for size in ran.allocated] == [40, 0, 12, 40, 12, 12, 48]
    assert [size // MIB for size in ran.reserved] == [40, 40, 40, 40, 40, 40, 76]
    assert (ran.peak_allocated_bytes, ran.peak_reserved_bytes) == (48 * MIB, 76 * MIB)
    assert ran.fragmentation == pytest.approx(28 / 76)
    assert [event.size_bytes // MIB for event in ran.segment_events] == [40, 36]
    assert [[block.name for block in segment.blocks] for segment in ran.segments] == [["keep", ""], ["z"]]


def test_each_event_says_what_it_did():
    ran = replay(STEPS)
    assert [outcome.kind for outcome in ran.outcomes] == [
        "segment",
        "freed",
        "split",
        "reused",
        "freed",
        "emptied",
        "segment",
    ]
    assert [ran.format_event(at) for at in range(len(ran))] == [
        "alloc x, 40.00 MiB: asked the driver for a new segment of 40.00 MiB",
        "free x: kept 40.00 MiB in the cache; the driver gets nothing back",
        "alloc keep, 12.00 MiB: split the free block of 40.00 MiB that x left: 12.00 MiB taken, 28.00 MiB still free",
        "alloc y, 28.00 MiB: reused the free block of 28.00 MiB",
        "free y: kept 28.00 MiB in the cache; the driver gets nothing back",
        "empty_cache(): gave nothing back: no segment is without a live block",
        "alloc z, 36.00 MiB: asked the driver for a new segment of 36.00 MiB",
    ]


TOLD = [
    (
        [alloc("a", 3 * MIB)],
        "",
        None,
        "asked the driver for a new segment of 20.00 MiB and split it: 17.00 MiB still free",
    ),
    (
        [alloc("a", 11 * MIB), free("a"), alloc("b", 11 * MIB)],
        "",
        None,
        "reused the free block of 12.00 MiB that a left, 1.00 MiB of it unused",
    ),
    (
        [alloc("a", 3 * MIB), alloc("b", 3 * MIB), free("a"), free("b")],
        "",
        None,
        "kept 3.00 MiB in the cache and merged it into a hole of 20.00 MiB; the driver gets nothing back",
    ),
    ([alloc("a", 16 * MIB), free("a"), empty_cache()], "", None, "gave 16.00 MiB back to the driver"),
    (
        [alloc("a", 30 * MIB), free("a"), empty_cache()],
        "expandable_segments:True",
        None,
        "gave 40.00 MiB back to the driver",
    ),
    (
        [alloc("a", 16 * MIB), free("a"), alloc("b", 20 * MIB)],
        "",
        20 * MIB,
        "the driver had too little, so 16.00 MiB of cache went back first; then asked the driver for a new segment of "
        "20.00 MiB",
    ),
    (
        [alloc("a", 30 * MIB)],
        "expandable_segments:True",
        None,
        "grew the expandable segment by 40.00 MiB: 10.00 MiB still free",
    ),
    ([alloc("a", 0)], "", None, "took nothing: a tensor of 0 bytes has no block"),
    (
        [alloc("a", 16 * MIB), alloc("b", 20 * MIB)],
        "",
        32 * MIB,
        "cannot serve 20.00 MiB: 16.00 MiB are in use and the device ends at 32.00 MiB, so 16.00 MiB are free",
    ),
]


@pytest.mark.parametrize(("steps", "conf", "capacity_bytes", "sentence"), TOLD)
def test_every_kind_of_outcome_has_its_sentence(steps, conf, capacity_bytes, sentence):
    ran = replay(steps, conf, capacity_bytes)
    assert ran.format_outcome(len(ran) - 1) == sentence


def test_a_replay_ends_where_memory_does():
    ran = replay([*STEPS, alloc("never", MIB)], capacity_bytes=64 * MIB)
    assert isinstance(ran.oom, OutOfMemory)
    assert (ran.oom.reason, ran.oom.name, len(ran), len(ran.requests)) == ("fragmented", "z", 7, 7)
    assert ran.outcomes[-1].kind == "out of memory"
    assert ran.format_event(6).startswith("alloc z, 36.00 MiB: cannot serve 36.00 MiB though 52.00 MiB are free")
    assert "out of memory (fragmented)" in str(ran)
    assert replay(STEPS, "expandable_segments:True", 64 * MIB).oom is None
    assert replay(STEPS, Settings(max_split_size_mb=20), 80 * MIB).oom is None


def test_text_of_a_replay():
    ran = replay(STEPS, "max_split_size_mb:20")
    assert str(ran) == (
        "7 events, max_split_size_mb:20\n"
        "peak allocated     52.00 MiB\n"
        "peak reserved      52.00 MiB   76.9% of it unused"
    )


def test_events_of_the_meter_replay_as_they_are():
    a, b = (
        StorageLifetime(3 * MIB, "forward", "layers.0", (3,)),
        StorageLifetime(512, "forward", "", (1,), "parameters"),
    )
    ran = replay(
        [AllocationEvent(a, 1, "forward"), AllocationEvent(b, 1, "forward"), AllocationEvent(a, -1, "backward")]
    )
    assert list(ran.allocated) == [3 * MIB, 3 * MIB + 512, 512]
    assert ran.peak_reserved_bytes == 22 * MIB
    assert [step.name for step in ran.requests] == ["layers.0", "parameters", "layers.0"]


def test_the_meters_own_events_replay():
    import torch

    from helpers.memory.meter.meter import Meter

    with Meter() as meter:
        x = torch.ones(1024, 1024)
        y = x * 2
        del x, y
    meter.stop()
    ran = replay(meter.events)
    assert (ran.peak_allocated_bytes, ran.allocated[-1], ran.peak_reserved_bytes) == (8 * MIB, 0, 20 * MIB)


BROKEN = [
    ([free("a")], "event 0 frees 'a', which is not alive"),
    ([alloc("a", 1), free("a"), free("a")], "event 2 frees 'a', which is not alive"),
    ([alloc("a", 1), alloc("a", 2)], "event 1 allocates 'a', which is alive"),
    ([("a", 3)], "event 0 is a tuple"),
    ([alloc("a", -3)], "size_bytes is -3"),
    ([alloc("a", 0.5)], "size_bytes is 0.5"),
]


@pytest.mark.parametrize(("steps", "what"), BROKEN, ids=[row[1] for row in BROKEN])
def test_a_trace_that_cannot_be(steps, what):
    with pytest.raises(WorkbookError) as caught:
        replay(steps)
    assert caught.value.what == what


def test_nothing_replays_to_nothing():
    ran = replay([])
    assert (len(ran), ran.fragmentation, ran.peak_reserved_bytes, ran.segments) == (0, 0.0, 0, ())


def test_the_state_after_some_steps():
    middle = replay(STEPS[:3])
    assert [[block.size_bytes // MIB for block in segment.blocks] for segment in middle.segments] == [[12, 28]]


def long_trace(events):
    rng, living, steps = random.Random(0), [], []
    for number in range(events):
        if living and (rng.random() < 0.5 or len(living) > 2000):
            steps.append(free(living.pop(rng.randrange(len(living)))))
        else:
            steps.append(alloc(number, int(2 ** rng.uniform(6, 27))))
            living.append(number)
    return steps


@pytest.mark.parametrize("conf", ["", "max_split_size_mb:64", "expandable_segments:True"])
def test_an_event_costs_the_same_few_dozen_calls_however_long_the_trace_is(conf):
    """So 100,000 of them take about 0.6 s on an ordinary core."""
    short, long = long_trace(2_000), long_trace(8_000)
    assert calls_of(lambda: replay(long, conf)) < 4.4 * calls_of(lambda: replay(short, conf)) < 4.4 * 60 * len(short)


@pytest.mark.parametrize("name", ["settings", "simulator", "replay", "blocks", "driver", "outcome"])
def test_the_examples_in_the_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"helpers.memory.allocator.{name}")).failed == 0
