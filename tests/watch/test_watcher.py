"""The watcher over a faked NVML: a day of samples in flat memory, a card that disappears, a counter that jumps."""

from __future__ import annotations

import tracemalloc

import pytest

from helpers.catalog import WorkbookError
from helpers.watch import EventKind, Nvml, Reading, Ring, Severity, SimulatedCard, Thresholds, Trend, Watcher, screen
from helpers.watch.exhaustion import Forecast
from helpers.watch.torch_counters import TorchCounters
from tests.watch.fake_nvml import GIB, Card, FakeNvml

DAY_S = 86_400


def test_a_day_of_samples_stays_in_flat_memory() -> None:
    card = Card("GPU-a")
    watcher = Watcher(Nvml(FakeNvml(card)), window=600)
    tracemalloc.start()
    try:
        for second in range(DAY_S):
            if second == 8000:  # the ring is full, and a forecast has been made
                warm = tracemalloc.get_traced_memory()[0]
            card.used_bytes = 10 * GIB + second % 1000 * 2**20
            watcher.sample(second)
            if second % 7200 == 0:
                watcher.states()
        grown = tracemalloc.get_traced_memory()[0] - warm
    finally:
        tracemalloc.stop()
    assert watcher.samples == DAY_S
    # Eight bytes a sample would be 600 KiB; what other tests left running may take a few
    assert grown < 64 * 1024, f"{grown} bytes more at the end of the day than in its third hour"


def test_a_card_that_disappears_is_told_and_the_other_is_read_on() -> None:
    gone, there = Card("GPU-a"), Card("GPU-b")
    watcher = Watcher(Nvml(FakeNvml(gone, there)))
    watcher.sample(0)
    gone.lost, there.used_bytes = True, 11 * GIB
    watcher.sample(1)
    watcher.sample(2)
    lost, read = watcher.states()
    assert (lost.reading.lost, lost.severity, lost.history) == ("GPU is lost", Severity.CRITICAL, ())
    assert read.reading.used_bytes == 11 * GIB
    assert [(event.kind, event.gpu) for event in watcher.events] == [(EventKind.LOST, 0)]
    assert "lost: GPU is lost" in screen(watcher)


def test_a_card_that_comes_back_starts_afresh() -> None:
    card = Card("GPU-a")
    watcher = Watcher(Nvml(FakeNvml(card)))
    for second, lost in enumerate([False, True, False]):
        card.lost = lost
        watcher.sample(second)
    assert [event.kind for event in watcher.events] == [EventKind.LOST, EventKind.FOUND]
    assert watcher.states()[0].history == (10 * GIB,)


def test_a_card_that_is_lost_from_the_start_does_not_hide_the_others() -> None:
    watcher = Watcher(Nvml(FakeNvml(Card("GPU-a", lost=True), Card("GPU-b"))))
    watcher.sample(0)
    assert [state.reading.lost for state in watcher.states()] == ["GPU is lost", ""]


def test_a_counter_that_jumps_is_an_event_and_no_trend() -> None:
    card = Card("GPU-a")
    watcher = Watcher(Nvml(FakeNvml(card)))
    for second in range(100):
        card.used_bytes = (10 if second < 50 else 40) * GIB
        watcher.sample(second)
    (event,), (state,) = watcher.events, watcher.states()
    assert (event.kind, event.change_bytes, event.time_s) == (EventKind.JUMP, 30 * GIB, 50)
    assert watcher.jumps == {0: 1}
    assert state.forecast.trend is Trend.STEADY


def test_events_are_kept_in_bounds() -> None:
    card = Card("GPU-a")
    watcher = Watcher(Nvml(FakeNvml(card)))
    for second in range(100):
        card.used_bytes = (10 + 30 * (second % 2)) * GIB
        watcher.sample(second)
    assert len(watcher.events) == 20
    assert watcher.jumps == {0: 99}


def test_no_driver_and_no_card_are_told_as_errors() -> None:
    with pytest.raises(WorkbookError, match="NVML Shared Library Not Found"):
        Nvml(FakeNvml(missing=True))
    with pytest.raises(WorkbookError, match="lists no GPU"):
        Nvml(FakeNvml())


def test_utilization_that_the_driver_does_not_tell_is_none() -> None:
    (reading,) = Nvml(FakeNvml(Card("GPU-a", utilization=None))).read(0)
    assert (reading.utilization, reading.used_bytes, reading.name) == (None, 10 * GIB, "NVIDIA H100")
    assert Nvml(FakeNvml(Card("GPU-a"))).read(0)[0].utilization == 0.5


@pytest.mark.parametrize(
    ("used_gib", "expected_s", "severity"),
    [
        (40, float("inf"), Severity.OK),
        (72, float("inf"), Severity.WARNING),
        (76, float("inf"), Severity.CRITICAL),
        (40, 3600, Severity.WARNING),
        (40, 600, Severity.CRITICAL),
        (40, 3601, Severity.OK),
    ],
)
def test_a_card_is_as_bad_as_the_worse_of_its_share_and_its_time(
    used_gib: int, expected_s: float, severity: str
) -> None:
    reading = Reading(0, "GPU-a", "H100", used_gib * GIB, 80 * GIB)
    assert Thresholds().severity(reading, Forecast(Trend.GROWING, expected_s=expected_s)) is severity


@pytest.mark.parametrize(
    "given",
    [
        {"warning_share": 0.95},
        {"critical_share": 1.1},
        {"warning_share": 0},
        {"critical_s": 0},
        {"warning_s": 600},
        {"warning_share": float("nan")},
    ],
)
def test_thresholds_that_are_none(given: dict[str, float]) -> None:
    with pytest.raises(WorkbookError, match="thresholds of"):
        Thresholds(**given)


def test_processes_are_shown_with_the_card_that_they_use() -> None:
    counters = [TorchCounters(7, "GPU-b", 2 * GIB, 3 * GIB, 4 * GIB, 1, 0)]
    watcher = Watcher(Nvml(FakeNvml(Card("GPU-a"), Card("GPU-b"))), counters=lambda: counters)
    watcher.sample(0)
    assert [len(state.processes) for state in watcher.states()] == [0, 1]
    told = "process 7: 2.00 GiB allocated (peak 4.00 GiB), 3.00 GiB reserved, 1 retries, 0 out of memory"
    assert told in screen(watcher)


def test_the_view_says_the_same_with_and_without_colours() -> None:
    watcher = Watcher(SimulatedCard("leak"))
    for second in range(100):
        watcher.sample(second)
    plain, coloured = screen(watcher), screen(watcher, coloured=True)
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain
    assert "growing by" in plain


def test_a_ring_keeps_the_latest_and_its_times_increase() -> None:
    ring = Ring(3)
    for second in range(5):
        ring.add(second, second)
    assert (len(ring), list(ring)) == (3, [(2, 2), (3, 3), (4, 4)])
    for time_s in (4, 3.5, float("nan")):
        with pytest.raises(WorkbookError, match="times that increase"):
            ring.add(time_s, 0)
    ring.clear()
    assert list(ring) == []
    ring.add(0, 7)
    assert list(ring) == [(0, 7)]
