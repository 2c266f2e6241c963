"""The solver against every plan there is, and against the field's policies at the same budget."""

import subprocess
import sys
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.techniques.checkpointing import (
    LayerChoice,
    LayerCost,
    PolicySegment,
    layout,
    least_bytes,
    pareto_plans,
    price,
    solve,
)

FIELD = ("none", "full", "every:2", "every:3", "sqrt-n", "first:2", "selective")


@st.composite
def layer_costs(draw):
    """A layer with costs that a real one could have: keeping less costs more FLOPs."""
    size = st.integers(1, 12)
    boundary, inner, working, tail = draw(size), draw(size), draw(size), draw(size)
    keeps_input = draw(st.booleans())
    saved = inner + boundary * keeps_input
    forward = tail + draw(size)
    middle = draw(st.integers(boundary, boundary + inner))
    return LayerCost(
        boundary,
        saved,
        keeps_input,
        forward,
        {
            "none": LayerChoice(saved, saved + working),
            "full": LayerChoice(boundary, boundary + inner + draw(size), forward - tail),
            "selective": LayerChoice(middle, middle + inner + working, draw(st.integers(0, forward - tail))),
        },
    )


CHAINS = st.lists(layer_costs(), min_size=1, max_size=6)


def every_plan(layers):
    """All ways to cut the chain, and all choices for the pieces of one layer."""
    for cuts in product([False, True], repeat=len(layers) - 1):
        edges = [0, *(at + 1 for at, cut in enumerate(cuts) if cut), len(layers)]
        pieces = list(pairwise(edges))
        options = [layers[a].choices if b == a + 1 else ["full"] for a, b in pieces]
        for hows in product(*options):
            yield tuple(PolicySegment(a, b, how) for (a, b), how in zip(pieces, hows, strict=True))


@settings(max_examples=40)
@given(CHAINS, st.integers(0, 40), st.data())
def test_no_plan_is_better(layers, head_bytes, data):
    prices = [price(layers, plan, head_bytes) for plan in every_plan(layers)]
    least, most = min(p.peak_bytes for p in prices), max(p.peak_bytes for p in prices)
    assert least_bytes(layers, head_bytes) == least
    budget = data.draw(st.integers(least, most))
    found = solve(layers, budget, head_bytes)
    assert found.price == price(layers, found.segments, head_bytes)
    assert found.price.peak_bytes <= budget
    assert found.price.recompute_flops == min(p.recompute_flops for p in prices if p.peak_bytes <= budget)
    with pytest.raises(WorkbookError, match=f"at least {least:,}"):
        solve(layers, least - 1, head_bytes)


@settings(max_examples=40)
@given(st.lists(layer_costs(), min_size=3, max_size=14), st.integers(0, 40))
def test_never_worse_than_the_policies_of_the_field(layers, head_bytes):
    for policy in FIELD:
        theirs = price(layers, layout(policy, len(layers)), head_bytes)
        ours = solve(layers, theirs.peak_bytes, head_bytes).price
        assert ours.peak_bytes <= theirs.peak_bytes
        assert ours.recompute_flops <= theirs.recompute_flops


def equal_layers(count, keeps_input=False):
    return [
        LayerCost(10, 100, keeps_input, 50, {"none": LayerChoice(100, 110), "full": LayerChoice(10, 120, 40)})
    ] * count


def test_a_chain_that_can_be_done_by_hand():
    layers = equal_layers(4)
    assert price(layers, layout("none", 4)).peak_bytes == 3 * 100 + 110
    assert price(layers, layout("full", 4)) == price(layers, layout("every:1", 4))
    assert price(layers, layout("full", 4)).peak_bytes == 3 * 10 + 120
    pairs = price(layers, layout("every:2", 4))  # 10 stored, 10 kept, two layers' 100 alive, 10 at work
    assert (pairs.peak_bytes, pairs.stored_bytes, pairs.recompute_flops) == (10 + 10 + 200 + 10, 20, 2 * (50 + 40))
    nested = price(layers, layout("nested:2", 4))  # 10 stored, 10 kept, 10 of the second layer's and all of its own
    assert (nested.peak_bytes, nested.stored_bytes, nested.recompute_flops) == (10 + 10 + 120, 20, 2 * (50 + 2 * 40))
    kept = price(equal_layers(4, keeps_input=True), layout("every:2", 4))
    assert kept.peak_bytes == 10 + 200 + 20  # a layer that saves its input saves the checkpoint's


def test_logits_set_a_floor_that_no_policy_lowers():
    layers = equal_layers(8)
    assert least_bytes(layers) == 7 * 10 + 110  # the last layer gains nothing by being recomputed: it is next anyway
    assert least_bytes(layers, head_bytes=1000) == 1000 + 10  # one segment of all layers, its input kept
    assert solve(layers, 1000 + 170, 1000).price.recompute_flops == 7 * 40


def test_the_front_goes_from_least_memory_to_no_recomputation():
    layers = equal_layers(12)
    plans = pareto_plans(layers, points=30)
    peaks, flops = ([getattr(plan.price, part) for plan in plans] for part in ("peak_bytes", "recompute_flops"))
    assert peaks[0] == least_bytes(layers)
    assert flops[-1] == 0
    assert peaks == sorted(peaks)
    assert flops == sorted(flops, reverse=True)
    assert len(set(zip(peaks, flops, strict=True))) == len(plans) > 5


def test_a_plan_reads_in_runs_of_equal_segments():
    plan = solve(equal_layers(5), 260)
    assert str(plan) == "layers 0 to 2: full x 1\nlayers 3 to 4: none x 1"  # 3 x 10 + 100 + 110


@pytest.mark.parametrize("budget", [None, True, 0, -5, float("nan"), "2 GiB"])
def test_a_budget_that_is_none_is_told_the_least(budget):
    with pytest.raises(WorkbookError) as told:
        solve(equal_layers(3), budget)
    assert "at least 130" in told.value.expected


def test_other_bad_input():
    with pytest.raises(WorkbookError, match="a chain without layers"):
        solve([], 100)
    with pytest.raises(WorkbookError, match="unknown measured policy 'module:mlp'"):
        price(equal_layers(2), layout("module:mlp", 2))
    for broken in (
        {"choices": {"none": LayerChoice(1, 1)}},
        {"input_bytes": -1},
        {"keeps_input": True, "input_bytes": 200},
    ):
        fields = {
            "input_bytes": 10,
            "saved_bytes": 100,
            "keeps_input": False,
            "forward_flops": 5,
            "choices": {"none": LayerChoice(1, 1), "full": LayerChoice(1, 1)},
        }
        LayerCost(**fields)
        with pytest.raises(WorkbookError, match="no cost below zero"):
            LayerCost(**{**fields, **broken})


def test_policies_and_solver_need_no_torch():
    code = (
        "import sys; from helpers.techniques.checkpointing import layout, solve; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
