"""When a card will be full: a leak is found with an interval that holds the truth, and nothing else passes for one."""

from __future__ import annotations

import random
from math import inf

import pytest

from helpers.catalog import WorkbookError
from helpers.watch import Trend, forecast, series
from helpers.watch.exhaustion import after_last_jump, format_seconds, theil_sen, thinned
from helpers.watch.simulated import MIB, TOTAL_BYTES

GIB = 2**30
SECONDS = 240


def noisy(seed: int, slope: float, noise_bytes: float, likeness: float = 0.0) -> list[tuple[float, float]]:
    """A line from 40 GiB on with noise; `likeness` is how much of it each second hands to the next."""
    drawn, wave, samples = random.Random(seed), 0.0, []
    for second in range(SECONDS):
        wave = likeness * wave + noise_bytes * drawn.gauss(0, 1)
        samples.append((float(second), 40 * GIB + slope * second + wave))
    return samples


def test_a_leak_is_told_with_the_time_that_is_true_inside_its_interval() -> None:
    samples = series("leak", 600)
    found = forecast(samples, TOTAL_BYTES)
    true_s = (TOTAL_BYTES / 2) / (20 * MIB) - samples[-1][0]
    assert found.trend is Trend.GROWING
    assert found.earliest_s < true_s < found.latest_s
    assert found.expected_s == pytest.approx(true_s, rel=0.01)
    assert found.latest_s - found.earliest_s < 0.1 * true_s


def test_the_interval_holds_the_true_slope_in_nineteen_of_twenty_series() -> None:
    holds = [(one := forecast(noisy(seed, MIB, 200 * MIB), TOTAL_BYTES)).low <= MIB <= one.high for seed in range(100)]
    assert 92 <= sum(holds) <= 99


@pytest.mark.parametrize("likeness", [0.0, 0.9])
def test_noise_passes_for_growth_in_one_series_of_twelve_at_most(likeness: float) -> None:
    found = [forecast(noisy(seed, 0, 100 * MIB, likeness), TOTAL_BYTES).trend for seed in range(100)]
    assert found.count(Trend.GROWING) <= 8


@pytest.mark.parametrize("seconds", [130, 135, 180, 270, 600])
def test_a_sawtooth_is_not_growth_from_one_and_a_half_periods_on(seconds: int) -> None:
    for phase in range(0, 90, 6):
        samples = series("sawtooth", seconds + phase)[phase:]
        assert forecast(samples, TOTAL_BYTES).trend is Trend.STEADY, phase


@pytest.mark.parametrize("after", [5, 19, 20, 100, 280])
def test_a_jump_is_not_growth_however_long_ago_it_was(after: int) -> None:
    found = forecast(series("jump", 300 + after), TOTAL_BYTES)
    assert found.trend is (Trend.TOO_SHORT if after < 20 else Trend.STEADY)
    assert found.expected_s == inf


def test_a_leak_after_a_jump_is_found_with_its_own_slope() -> None:
    samples = [(second, 10 * GIB + (30 * GIB + second * MIB if second >= 100 else 0)) for second in range(200)]
    assert forecast(samples, TOTAL_BYTES).slope == pytest.approx(MIB)


def test_growth_in_large_pieces_is_growth() -> None:
    samples = [(second, 10 * GIB + second // 30 * 2 * GIB) for second in range(300)]
    found = forecast(samples, TOTAL_BYTES)
    assert found.trend is Trend.GROWING
    assert found.low <= 2 * GIB / 30 <= found.high


def test_a_staircase_of_segments_is_growth() -> None:
    """PyTorch takes memory from the driver in segments: 20 MiB every ten seconds, and nothing in between."""
    found = forecast([(second, 10 * GIB + second // 10 * 20 * MIB) for second in range(600)], TOTAL_BYTES)
    assert found.slope == pytest.approx(2 * MIB, rel=0.02)
    assert found.trend is Trend.GROWING


def test_a_counter_that_stands_still_is_steady() -> None:
    assert forecast([(second, GIB) for second in range(60)], TOTAL_BYTES).trend is Trend.STEADY


def test_memory_that_is_given_back_is_steady() -> None:
    assert forecast([(second, 40 * GIB - second * MIB) for second in range(60)], TOTAL_BYTES).trend is Trend.STEADY


def test_a_third_of_wild_samples_does_not_move_the_slope() -> None:
    drawn = random.Random(1)
    points = [(second, drawn.uniform(0, 1e9) if second % 4 == 3 else 1e3 * second) for second in range(200)]
    assert theil_sen(points)[0] == pytest.approx(1e3, rel=0.02)


def test_thinning_keeps_the_slope() -> None:
    points = thinned([(second, 3 * second) for second in range(10_000)])
    assert len(points) == 240
    assert theil_sen(points)[0] == pytest.approx(3)


def test_two_jumps_leave_what_is_after_the_second_and_three_leave_everything() -> None:
    two = [(second, (second // 10) * 4 * GIB) for second in range(30)]
    assert len(after_last_jump(two, TOTAL_BYTES)) == 10
    three = [(second, (second // 10) * 4 * GIB) for second in range(40)]
    assert len(after_last_jump(three, TOTAL_BYTES)) == 40


def test_a_full_card_that_grows_is_full_now() -> None:
    found = forecast([(second, 79 * GIB + second * 20 * MIB) for second in range(100)], TOTAL_BYTES)
    assert (found.earliest_s, found.expected_s, found.latest_s) == (0, 0, 0)


@pytest.mark.parametrize("total", [0, -1, 1.5, True, None])
def test_a_total_that_is_none(total: object) -> None:
    with pytest.raises(WorkbookError, match="total_bytes is"):
        forecast([], total)


def test_one_sample_has_no_slope() -> None:
    with pytest.raises(WorkbookError, match="two or more"):
        theil_sen([(0, 1)])


def test_seconds_are_told_in_two_units_at_most() -> None:
    told = [format_seconds(seconds) for seconds in (0, 59.9, 60, 3599, 3600, 86_400 * 5, inf)]
    assert told == ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "5 days", "never"]
