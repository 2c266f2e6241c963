"""Predict, compare, check: a guess is kept, a table compares, and a check can fail."""

import math

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson import check, check_speed, compare, predict
from helpers.memory.breakdown import Breakdown, Moment
from helpers.memory.budget import TrainBudget
from helpers.memory.meter.timeline import Measurement, Timeline

MIB = 2**20


@pytest.mark.parametrize(
    ("unit", "size"), [("bytes", 3), ("KiB", 3 * 2**10), ("MiB", 3 * 2**20), ("GiB", 3 * 2**30), ("GB", 3 * 10**9)]
)
def test_a_guess_is_kept_in_bytes(unit, size, printed):
    assert printed(predict, "peak", unit, guess=3) == f"Your guess, peak: 3 {unit}\n"
    assert predict("peak", unit, guess=3).value == size


def test_no_guess_is_allowed_and_says_how_to_make_one(printed):
    assert predict("peak").value is None
    assert "Put a number in place of None" in printed(predict, "peak", "GiB")


def test_minutes_are_sixty_seconds_and_dollars_months_and_cards_are_plain_numbers(printed):
    assert predict("until full", "minutes", guess=2).value == 120
    assert [predict("so many", unit, guess=3).value for unit in ("dollars", "months", "cards")] == [3, 3, 3]
    assert "2.00" in printed(compare, 120, unit="minutes")


@pytest.mark.parametrize("guess", ["12", True, -1, math.nan, math.inf, [3, 4], 3j])
def test_a_bad_guess_is_none_and_says_how_to_write_one(guess, printed):
    said = printed(predict, "peak", guess=guess)
    assert "you have no guess yet" in said
    assert "guess=512" in said
    assert predict("peak", guess=guess).value is None


@pytest.mark.parametrize(("unit", "told"), [("%", "+2.00 points"), ("MiB", "+0.0 MiB"), ("tokens", "+0.02 tokens")])
def test_where_the_truth_is_0_the_distance_is_in_its_unit(unit, told, printed):
    lines = printed(compare, 0, unit=unit, you=0.02, none=None, right=0).splitlines()
    assert lines[1].endswith(f"  {told}")
    assert lines[3].split()[-2:] == ["0.00", "%"]
    assert lines[-1].startswith("The truth is 0")
    assert len(printed(compare, 0, unit=unit, you=None, right=0).splitlines()) == 4


def test_below_a_truth_that_is_negative_is_minus(printed):
    rows = [line.split() for line in printed(compare, -2, unit="%", you=-3, other=-1).splitlines()]
    assert [row[2:] for row in rows[1:3]] == [["−50.00", "%"], ["+50.00", "%"]]


def test_a_bad_unit_is_refused():
    with pytest.raises(WorkbookError, match="unknown unit 'MB'"):
        predict("peak", unit="MB")


def test_compare_prints_each_prediction_with_its_distance(printed):
    table = printed(compare, 200 * MIB, you=predict("peak", guess=100), formula=199 * MIB, trace=200 * MIB)
    rows = [line.split() for line in table.splitlines() if not line.startswith("Your")]
    assert rows == [
        ["MiB", "off", "by"],
        ["you", "100.0", "−50.00", "%"],
        ["formula", "199.0", "−0.50", "%"],
        ["trace", "200.0", "0.00", "%"],
        ["measured", "200.0"],
    ]


def test_compare_without_a_guess_prints_a_dash_and_lines_up(printed):
    lines = printed(compare, 2**30, unit="GiB", you=None, a_rather_long_name=2 * 2**30).splitlines()
    assert lines[1].split() == ["you", "–"]
    assert lines[2].split() == ["a_rather_long_name", "2.0", "+100.00", "%"]
    assert len({line.rindex(number) + len(number) for line, number in zip(lines[2:], ("2.0", "1.0"), strict=True)}) == 1


def test_check_passes_up_to_the_allowed_distance_and_prints_it(printed):
    said = printed(check, "peak", measured=1000, predicted=1019, rel=0.02)
    assert said == "✓ peak: predicted 1019 B, measured 1000 B, off by +1.90 % (allowed ±2 %)\n"
    assert "−1.00 %" in printed(check, "peak", measured=1000, predicted=990, rel=0.02)
    assert "off by 0.00 %" in printed(check, "peak", measured=10**9, predicted=10**9 + 1, rel=0.02)
    assert "1000 B, traced 1000 B" in printed(check, "peak", 1000, 1000, rel=0.02, called="traced")


ON_GPU = Measurement("cuda", 100 * MIB, (), Timeline({}, []), {}, None, unseen_bytes=64 * MIB)


def test_tensors_and_libraries_of_a_gpu_are_two_tables_each_with_its_own_prediction(printed):
    formula = TrainBudget(None, (Moment("loss", Breakdown(logits=89 * MIB)),), 0, 0, library_bytes=53 * MIB)
    table = printed(compare, ON_GPU, you=predict("peak", guess=18), plain=27 * MIB, formula=formula)
    assert [line.split() for line in table.splitlines() if not line.startswith("Your")] == [
        ["tensors", "MiB", "off", "by"],
        ["you", "18.0", "−50.00", "%"],
        ["plain", "27.0", "−25.00", "%"],
        ["formula", "36.0", "0.00", "%"],
        ["measured", "36.0"],
        ["libraries", "MiB", "off", "by"],
        ["formula", "53.0", "−17.19", "%"],
        ["measured", "64.0"],
    ]


@pytest.mark.parametrize(("predicted_bytes", "told"), [(64 * MIB, ["64.0", "0.00", "%"]), (0, ["–"])])
def test_libraries_beside_plain_bytes_are_predicted_from_the_card(predicted_bytes, told, printed):
    table = printed(compare, ON_GPU, libraries=predicted_bytes, formula=36 * MIB)
    assert table.splitlines()[-2].split() == ["formula", *told]


def test_check_holds_the_tensors_and_tells_of_the_libraries(printed, capsys):
    said = printed(check, "step", ON_GPU, 36 * MIB, rel=0.01, libraries=64 * MIB).splitlines()
    assert said[0].startswith("✓ step: predicted 36.00 MiB, measured 36.00 MiB")
    assert said[1] == "✓ libraries: predicted 64.00 MiB, measured 64.00 MiB, off by 0.00 %"
    assert printed(check, "step", ON_GPU, 36 * MIB, rel=0.01, libraries=16 * MIB).splitlines()[1].startswith("○ ")
    assert "nothing predicts them" in printed(check, "step", ON_GPU, 36 * MIB, rel=0.01).splitlines()[1]
    with pytest.raises(AssertionError, match="✗ step: predicted 100"):
        check("step", ON_GPU, 100 * MIB, rel=0.01, libraries=64 * MIB)  # nothing absorbs what the libraries took


@pytest.mark.parametrize("predicted", [1021, 979, 0, -1000, 10**9])
def test_check_raises_beyond_it(predicted, capsys):
    with pytest.raises(AssertionError, match=r"✗ peak: .*allowed ±2 %"):
        check("peak", measured=1000, predicted=predicted, rel=0.02)
    assert "✓" not in capsys.readouterr().out


@pytest.mark.parametrize(("measured", "predicted"), [(0, 1), (-1, -1), (math.nan, 1), (1, math.nan), (math.inf, 1)])
def test_check_refuses_what_is_no_measurement(measured, predicted):
    with pytest.raises(WorkbookError, match="against predicted"):
        check("peak", measured=measured, predicted=predicted, rel=0.5)


@pytest.mark.parametrize(("unit", "value"), [("ms", 0.003), ("GB/s", 3e9), ("tokens/s", 3), ("FLOPs per byte", 3)])
def test_a_guess_of_time_or_rate_is_kept_without_its_prefix(unit, value, printed):
    assert predict("how long", unit, guess=3).value == pytest.approx(value)
    assert printed(compare, value, unit=unit).split()[-1] == "3.00"


def test_seconds_are_compared_and_checked_in_their_unit(printed):
    table = printed(compare, 0.020, unit="ms", you=predict("how long", "ms", guess=10), floor=0.015)
    rows = [line.split() for line in table.splitlines() if not line.startswith("Your")]
    assert rows == [
        ["ms", "off", "by"],
        ["you", "10.00", "−50.00", "%"],
        ["floor", "15.00", "−25.00", "%"],
        ["measured", "20.00"],
    ]
    said = printed(check, "a step", measured=0.020, predicted=0.015, rel=0.3, unit="ms")
    assert said == "✓ a step: predicted 15.00 ms, measured 20.00 ms, off by −25.00 % (allowed ±30 %)\n"
    with pytest.raises(AssertionError, match=r"✗ a step: predicted 15\.00 ms"):
        check("a step", measured=0.020, predicted=0.015, rel=0.2, unit="ms")


@pytest.mark.parametrize("call", [lambda: compare(1, unit="msec"), lambda: check("x", 1, 1, rel=1, unit="GHz")])
def test_an_unknown_unit_is_refused_before_anything_is_printed(call, capsys):
    with pytest.raises(WorkbookError, match="unknown unit"):
        call()
    assert capsys.readouterr().out == ""


def test_the_truth_may_have_another_name(printed):
    rows = printed(compare, 295.3, unit="FLOPs per byte", called="datasheet", you=None).splitlines()
    assert rows[-1].split() == ["datasheet", "295.30"]


def test_a_speed_is_measured_again_and_never_fails(capsys):
    told = iter([(13e9, 17e9), (16e9, 17e9)])
    check_speed("copy", 10e9, 17e9, rel=0.25, unit="GB/s", again=lambda: next(told))
    assert capsys.readouterr().out.startswith("✓ copy: predicted 17.00 GB/s, measured 16.00 GB/s")
    check_speed("copy", 10e9, 17e9, rel=0.25, unit="GB/s", again=lambda: (10e9, 17e9))
    assert "busy" in capsys.readouterr().out


def test_a_speed_that_cannot_be_is_an_error_as_in_check():
    with pytest.raises(WorkbookError):
        check_speed("copy", 0.0, 17e9, rel=0.25, unit="GB/s", again=lambda: (0.0, 17e9))


@pytest.mark.parametrize(
    ("guess", "said"), [(0, "low"), (16, "low"), (16.1, "near"), (99, "near"), (101, None), (None, None)]
)
def test_a_remark_is_of_the_least_number_that_a_guess_does_not_exceed(guess, said, capsys):
    compare(64 * 2**30, unit="GiB", you=predict("the peak", unit="GiB", guess=guess), remarks={16: "low", 100: "near"})
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == said if said else last.startswith("measured")


def test_ten_times_and_more_is_no_percentage(printed):
    assert "10 times as much" in printed(compare, 10 * 2**20, wrong=100 * 2**20)
    assert "+880.00 %" in printed(compare, 10 * 2**20, wrong=98 * 2**20)
