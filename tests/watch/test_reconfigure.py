"""A day of load: nothing is put on the card that does not fit, and changing as load changes refuses fewest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, WorkbookError
from helpers.memory import budget
from helpers.watch import LADDER, Mode, RecoveryPolicy, ServedModel, day_of_users, simulate_day

SERVICE = ServedModel("llama-3-8b", context=4096, gpu="h100")
USERS = day_of_users(320)


def test_the_most_users_fit_and_one_more_does_not() -> None:
    for mode in LADDER:
        most = SERVICE.most_users(mode)
        assert SERVICE.bytes_on_gpu(mode, most) <= SERVICE.room_bytes() < SERVICE.bytes_on_gpu(mode, most + 1)


def test_bytes_are_those_of_the_closed_form_less_what_is_offloaded() -> None:
    setup = ServeSetup("llama-3-8b", "fp8-e4m3", "fp8-e4m3", users=100, context=4096, prefill_tokens=2048)
    whole = budget.serve(setup, "h100")
    mode = Mode("fp8-e4m3", "fp8-e4m3", offloaded=0.25)
    assert SERVICE.bytes_on_gpu(mode, 100) == whole.peak_bytes - whole.held["kv_cache"] // 4
    assert whole.held["kv_cache"] == 100 * 4096 * 65_536  # 2 x 32 layers x 8 heads x 128 values of a byte


def test_no_tick_of_the_day_needs_more_than_the_card_has() -> None:
    day = simulate_day(SERVICE, USERS)
    assert len(day.ticks) == 288
    assert day.peak_bytes <= SERVICE.room_bytes()
    assert {tick.mode for tick in day.ticks} == set(LADDER)
    assert all(tick.served <= tick.wanted for tick in day.ticks)


def test_changing_refuses_fewer_than_any_mode_without_offload_and_is_faster_than_offloading_all_day() -> None:
    changing = simulate_day(SERVICE, USERS)
    fixed = [simulate_day(SERVICE, USERS, [mode]) for mode in LADDER]
    assert changing.refused_share < 0.001 < min(day.refused_share for day in fixed[:3])
    assert fixed[0].refused_share > fixed[1].refused_share > fixed[2].refused_share > fixed[3].refused_share == 0
    assert changing.mean_step_s < fixed[3].mean_step_s
    assert sum(changing.share_of(mode) for mode in LADDER) == pytest.approx(1)


def test_offloading_half_of_the_cache_makes_a_step_of_a_full_card_forty_times_as_long() -> None:
    """Half of 533 caches of 256 MiB over 64 GB/s takes over a second; reading all that the card holds takes 24 ms."""
    near, away = LADDER[2], LADDER[3]
    ratio = SERVICE.step_s(away, SERVICE.most_users(away)) / SERVICE.step_s(near, SERVICE.most_users(near))
    assert 40 < ratio < 55


def test_margin_and_hold_keep_a_noisy_load_from_switching_back_and_forth() -> None:
    eager = simulate_day(SERVICE, USERS, policy=RecoveryPolicy(margin=0, hold=1))
    patient = simulate_day(SERVICE, USERS)
    assert patient.switches <= 8 < 16 < eager.switches


def test_a_load_that_falls_goes_back_up_after_the_hold() -> None:
    most = SERVICE.most_users(LADDER[0])
    day = simulate_day(SERVICE, [most, most + 1, 10, 10, 10, 10], policy=RecoveryPolicy(hold=3))
    assert [LADDER.index(tick.mode) for tick in day.ticks] == [0, 1, 1, 1, 0, 0]


def test_a_load_that_would_just_fit_does_not_go_back_up() -> None:
    most = SERVICE.most_users(LADDER[0])
    day = simulate_day(SERVICE, [most + 1, *[most] * 10])
    assert {tick.mode for tick in day.ticks} == {LADDER[1]}


def test_loading_other_weights_takes_their_bytes_over_the_link_and_a_change_of_the_cache_nothing() -> None:
    assert SERVICE.switch_s(LADDER[0], LADDER[1]) == 0
    back = SERVICE.switch_s(LADDER[2], LADDER[0])
    assert back == pytest.approx(16_060_522_496 / 64e9, rel=0.02)  # Llama-3-8B in BF16 over PCIe 5
    most = SERVICE.most_users(LADDER[1])
    day = simulate_day(SERVICE, [100, most + 20])
    assert day.ticks[1].switch_s > 0
    assert day.ticks[1].served < most + 20


def test_what_no_mode_holds_is_refused_and_counted() -> None:
    most = max(SERVICE.most_users(mode) for mode in LADDER)
    day = simulate_day(SERVICE, [2 * most])
    assert day.refused_share == pytest.approx(0.5, abs=0.01)


def test_a_night_without_users() -> None:
    day = simulate_day(SERVICE, [0, 0])
    assert (day.refused_share, day.switches, day.share_of(LADDER[0])) == (0, 0, 0)


def test_a_day_is_the_same_for_the_same_seed_and_peaks_in_the_afternoon() -> None:
    assert day_of_users(320) == USERS != day_of_users(320, seed=1)
    smooth = [sum(USERS[hour * 12 : hour * 12 + 12]) for hour in range(24)]
    assert 14 <= smooth.index(max(smooth)) <= 18
    assert 2 <= smooth.index(min(smooth)) <= 6


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: simulate_day(SERVICE, []), "an empty ladder or day"),
        (lambda: simulate_day(SERVICE, [1], []), "an empty ladder or day"),
        (lambda: simulate_day(SERVICE, [-1]), "users is -1"),
        (lambda: simulate_day(replace(SERVICE, model="llama-2-70b"), [1], LADDER[:1]), "no mode of the ladder holds"),
        (lambda: simulate_day(replace(SERVICE, gpu="h1000"), [1]), "unknown device"),
        (lambda: Mode(offloaded=1.0), "offloaded is 1.0"),
        (lambda: Mode(offloaded=float("nan")), "offloaded is nan"),
        (lambda: RecoveryPolicy(hold=0), "hold is 0"),
        (lambda: RecoveryPolicy(margin=-0.1), "margin is -0.1"),
        (lambda: day_of_users(0), "peak is 0"),
    ],
)
def test_bad_input_is_told(call, told: str) -> None:
    with pytest.raises(WorkbookError, match=told):
        call()
