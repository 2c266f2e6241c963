"""A whole tensor in every format: shares counted again value by value, the stored tensors measured again."""

import json
import math
import shlex

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.catalog.floats import FLOAT_FORMATS
from helpers.cli import main
from helpers.lesson.calculators import Histogram, tensor_answer, tensor_numbers
from helpers.lesson.calculators.histograms import Fates, Reach, stored_histograms
from helpers.lesson.calculators.stored import PLAIN
from helpers.lesson.drawing.marks import Box
from tests.lesson.calculators.live import live
from tests.lesson.calculators.small_model_tensors import SOURCE, WHAT, counted

VALUES = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=10, deadline=None)
@given(values=VALUES, powers=st.lists(st.integers(-30, 20), min_size=1, max_size=20), scale=st.integers(-8, 8))
def test_shares_are_those_of_the_values_one_by_one(name, values, powers, scale):
    fmt = FLOAT_FORMATS[name]
    values = [*values, *(1.3 * 2.0**power for power in powers)]
    scaled = [value * 2.0**scale for value in values if value]
    stored = [abs(fmt.decode(fmt.encode(value))) for value in scaled]
    told = Fates.of(Histogram.of("values", values), Reach.of(fmt), scale)
    least = fmt.smallest_subnormal / 2  # just this becomes 0, and is counted as what is above it
    zero = sum(now == 0 and abs(value) != least for value, now in zip(scaled, stored, strict=True))
    assert told.zero == pytest.approx(zero / len(scaled))
    small = sum(least <= abs(value) < fmt.smallest_normal for value in scaled)
    assert told.subnormal == pytest.approx(small / len(scaled))
    beyond = sum(map(fmt.overflows, scaled)) / len(scaled)
    assert told.too_large <= beyond + 1e-9
    assert beyond <= told.too_large + told.at_the_edge + 1e-9


def test_the_fates_of_one_tensor_by_hand():
    histogram = Histogram("mine", {-26: 1, -25: 2, -15: 3, -14: 4, 15: 5, 16: 6}, zeros=4)
    assert Fates.of(histogram, Reach.of(FLOAT_FORMATS["fp16"]), 0) == Fates(1 / 21, 5 / 21, 6 / 21, 5 / 21)
    assert Fates.of(histogram, Reach.of(FLOAT_FORMATS["fp16"]), 1) == Fates(0, 3 / 21, 11 / 21, 0)
    assert Fates.of(histogram, Reach.of(FLOAT_FORMATS["fp16"]), -16) == Fates(10 / 21, 0, 0, 0)


def test_what_the_sentence_says_of_the_largest_scale_is_true():
    for name, tensor in ((name, tensor) for name in PLAIN for tensor in stored_histograms()):
        answer = tensor_answer(tensor, name)
        best, past = (answer.fates(name, answer.largest_scale + more) for more in (0, 1))
        assert best.too_large == 0 < past.too_large
        assert f"Times 2**{answer.largest_scale} the largest comes into" in answer.sentence
        assert max(map(len, answer.formula)) <= 96


def test_the_small_model_is_as_it_is_told():
    """About 54, 98 and 1 % of three kinds of gradients become 0 in FP16."""
    shares = {name: tensor_answer(name).fates("fp16", 0) for name in WHAT}
    assert shares["activation gradients"].zero == pytest.approx(0.54, abs=0.01)
    assert shares["logit gradients"].zero == pytest.approx(0.98, abs=0.01)
    assert shares["weight gradients"].zero == pytest.approx(0.007, abs=0.001)
    assert shares["weights"].zero == shares["activations"].zero == 0


@pytest.mark.slow
def test_the_stored_tensors_are_the_small_models():
    """Another processor rounds otherwise, and moves a few values over a power of two."""
    stored = stored_histograms()
    assert list(stored) == list(WHAT)
    for name, entry in counted().items():
        known, again = stored[name], dict(enumerate(entry["counts"], entry["first"]))
        assert known.source == f"{WHAT[name]}; {SOURCE}"
        assert known.nonzero + known.zeros == sum(again.values()) + entry["zeros"]
        moved = sum(abs(known.counts.get(power, 0) - again.get(power, 0)) for power in {*known.counts, *again})
        assert moved < 0.001 * known.nonzero, name


def test_a_tensor_of_your_own():
    own = Histogram.of("mine", torch.tensor([[0.0, 1.5], [-3.0, 2.0**-30]]))
    assert (own.counts, own.zeros, own.span) == ({-30: 1, 0: 1, 1: 1}, 1, (-30, 1))
    calculator = tensor_numbers(tensor=own, scale=4)
    assert calculator.answer().title == "mine × 2**4 in fp16: 33 % become 0, 33 % without the scale"
    assert calculator.answer().command is None
    assert calculator.options["tensor"][1] == [own, *stored_histograms()]
    controls, *_, output = live(calculator)
    assert controls["tensor"].value == own
    assert output.value == calculator.answer().as_html()
    controls["tensor"].value = "weights"
    assert "weights × 2**4" in output.value
    assert json.dumps(calculator.answer().figures)


def test_bins_and_bands_are_drawn_where_they_are():
    card = tensor_answer("activation gradients", "fp16", 16).cards[0]
    bins = [mark for mark in card.marks if isinstance(mark, Box) and mark.kind == "bin"]
    bands = [mark for mark in card.marks if isinstance(mark, Box) and mark.kind == "band" and mark.part == "fp16"]
    subnormal, normal = bands
    for fate, start, end in (("becomes 0", 0, subnormal.x), ("subnormal", subnormal.x, normal.x)):
        found = [mark for mark in bins if mark.part == fate]
        assert found
        assert all(start <= mark.x + 0.01 and mark.x + mark.width <= end + 0.01 for mark in found)
    assert normal.x == pytest.approx(subnormal.x + subnormal.width)
    before = next(mark for mark in card.marks if getattr(mark, "kind", "") == "before")
    peak, tallest = min(before.points, key=lambda at: at[1]), min(bins, key=lambda mark: mark.y)
    assert peak[1] == pytest.approx(tallest.y)  # the same tensor, further left
    assert tallest.x - peak[0] == pytest.approx(16 * tallest.width)
    unscaled = tensor_answer("activation gradients", "fp16").cards[0]
    assert not any(getattr(mark, "kind", "") == "before" for mark in unscaled.marks)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tensor_answer("weight"), "did you mean 'weights'?"),
        (lambda: tensor_answer("weights", "mxfp4"), "unknown float format 'mxfp4'"),
        (lambda: tensor_answer("weights", scale=1.5), "scale is 1.5"),
        (lambda: tensor_answer("weights", scale=201), "from -200 to 200"),
        (lambda: Histogram.of("mine", [1.0, math.nan]), "mine holds what is no finite number"),
        (lambda: Histogram.of("mine", ["a"]), "mine holds what is no finite number"),
        (lambda: Histogram.of("mine", 3), "mine holds what is no finite number"),
        (lambda: Histogram.of("mine", []), "mine has no value but 0"),
        (lambda: Histogram("mine", [1]), "counts is [1]"),
        (lambda: Histogram("mine", {0: -1}), "the count of 2**0 is -1"),
        (lambda: Histogram("mine", {0.5: 1}), "a power of two is 0.5"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(WorkbookError) as refused:
        call()
    assert says in str(refused.value)


@pytest.mark.parametrize("scale", [0, 16, -3])
def test_the_command_says_the_same(scale, capsys):
    answer = tensor_answer("weight gradients", "fp8-e5m2", scale)
    words = shlex.split(answer.command)[1:]
    assert main(words) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.figures
