"""The choice of widths against all choices there are; the measurement against one unit rounded by hand."""

import doctest
import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.techniques.quantization import Grid, QuantizedLinear, dense_linears, model_bytes, swapped
from helpers.techniques.quantization import sensitivity as module
from helpers.techniques.quantization.sensitivity import BitPlan, Option, apply, choose_bits, measure
from tests.techniques.quantization.tiny import damage, tiny_llama

OPTION = st.builds(Option, st.integers(2, 8), st.integers(0, 60), st.integers(-20, 100).map(lambda loss: loss / 8))
UNITS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=5)


def brute_force(options, byte_budget):
    """Least loss of all plans within the budget, and among those the fewest bytes."""
    plans = [(sum(o.loss for o in plan), sum(o.nbytes for o in plan)) for plan in product(*options.values())]
    return min(plan for plan in plans if plan[1] <= byte_budget)


@given(UNITS, st.floats(0, 1))
def test_no_plan_is_better(units, share):
    options = {f"unit {index}": choices for index, choices in enumerate(units)}
    low, high = (sum(end(o.nbytes for o in choices) for choices in units) for end in (min, max))
    budget = low + int(share * (high - low))
    plan = choose_bits(options, budget)
    assert (plan.loss, plan.nbytes) == brute_force(options, budget)
    taken = [[o for o in options[name] if o.bits == bits] for name, bits in plan.bits.items()]
    assert list(plan.bits) == list(options)
    assert any(
        sum(o.nbytes for o in plan_) == plan.nbytes and sum(o.loss for o in plan_) == plan.loss
        for plan_ in product(*taken)
    )


def test_greedy_would_have_failed():
    """The best loss per byte comes first to a greedy mind, and then nothing else fits."""
    options = {
        "a": [Option(2, 0, 10.0), Option(4, 60, 2.0)],
        "b": [Option(2, 0, 7.0), Option(4, 50, 1.0)],
        "c": [Option(2, 0, 7.0), Option(4, 50, 1.0)],
    }
    assert choose_bits(options, 100).bits == {"a": 2, "b": 4, "c": 4}


@pytest.mark.all
def test_two_hundred_units_of_a_few_shapes_are_quick_to_settle():
    shapes = (4096 * 4096, 4096 * 1024, 4096 * 14336)
    options = {
        f"{index}": [
            Option(bits, shapes[index % 3] * bits // 8, (index * 37 % 101 + 1) / 4.0**bits) for bits in (2, 4, 8)
        ]
        for index in range(224)
    }
    everything = sum(shapes[index % 3] for index in range(224))
    plan = choose_bits(options, everything // 2)
    assert plan.nbytes <= everything // 2
    assert plan.loss < sum(choices[1].loss for choices in options.values())


def test_measure_rounds_one_unit_at_a_time_and_counts_packed_bytes():
    model, seen = tiny_llama(), []

    def score(candidate):
        seen.append(candidate)
        return 1 + damage(candidate)  # a score has its own zero

    options = measure(model, score, widths=(2, 8), group=16)
    assert list(options) == list(dense_linears(model))
    assert len(seen) == 1 + 2 * len(options)
    name, linear = "model.layers.1.mlp.up_proj", model.model.layers[1].mlp.up_proj
    by_hand = QuantizedLinear.of(linear, Grid(2, 16))
    low, high = options[name]
    assert (low.bits, low.nbytes) == (2, by_hand.stored.nbytes)
    assert low.loss == pytest.approx(damage(swapped(model, {name: by_hand})))
    assert 0 < high.loss < 0.1 * low.loss
    assert damage(model) == 0


def test_a_layer_has_the_bytes_of_its_linear_layers_and_is_rounded_whole():
    by_layer, by_linear = (measure(tiny_llama(), damage, (4,), group=16, unit=unit) for unit in ("layer", "linear"))
    assert list(by_layer) == ["model.layers.0", "model.layers.1"]
    for layer, (option,) in by_layer.items():
        parts = [choices[0] for name, choices in by_linear.items() if name.startswith(layer)]
        assert option.nbytes == sum(part.nbytes for part in parts)
        assert option.loss > max(part.loss for part in parts)


@pytest.mark.parametrize("unit", ["linear", "layer"])
def test_the_plan_is_applied_to_the_byte_and_beats_one_width_for_all(unit):
    model = tiny_llama()
    options = measure(model, damage, group=16, unit=unit)
    budget = sum(choices[1].nbytes for choices in options.values())  # everything at 4 bits
    plan = choose_bits(options, budget)
    mixed = apply(model, plan, group=16)
    packed = {name: part for name, part in mixed.named_modules() if isinstance(part, QuantizedLinear)}
    assert sum(linear.stored.nbytes for linear in packed.values()) == plan.nbytes <= budget
    assert all(
        linear.stored.grid.bits == plan.bits[name if unit == "linear" else name[:14]] for name, linear in packed.items()
    )
    uniform = apply(model, BitPlan(dict.fromkeys(options, 4), budget, 0.0), group=16)
    assert model_bytes(mixed) <= model_bytes(uniform)
    assert plan.loss <= sum(choices[1].loss for choices in options.values())


def test_the_text_of_a_plan():
    plan = BitPlan({"a": 2, "b": 4, "c": 4}, 12345, 0.25)
    assert str(plan) == "1 x 2 bits, 2 x 4 bits: 12,345 B, forecast +0.2500"


TWO = {"a": [Option(2, 50, 0.9), Option(4, 100, 0.1)], "b": [Option(2, 50, 0.2)]}
BAD = [
    (lambda: choose_bits(TWO, 99), "a budget of 99 bytes"),
    (lambda: choose_bits({}, 99), "no units"),
    (lambda: choose_bits({"a": []}, 99), "a has []"),
    (lambda: choose_bits({"a": [Option(2, 5, math.nan)]}, 99), "a has [Option"),
    (lambda: choose_bits({"a": [Option(2, 5, math.inf)]}, 99), "a has [Option"),
    (lambda: choose_bits({"a": [Option(2, -5, 0.1)]}, 99), "a has [Option"),
    (lambda: measure(tiny_llama(), damage, unit="linears"), "unknown unit 'linears'"),
    (lambda: measure(tiny_llama(), damage, widths=(1,)), "bits is 1"),
    (lambda: apply(tiny_llama(), BitPlan({"model.layers.7": 4}, 0, 0.0)), "unknown unit 'model.layers.7'"),
]


@pytest.mark.parametrize(("call", "what"), BAD)
def test_bad_input(call, what):
    with pytest.raises(WorkbookError) as caught:
        call()
    assert what in caught.value.what


def test_the_worked_number():
    assert doctest.testmod(module) == (0, 2)
