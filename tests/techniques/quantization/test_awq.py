"""AWQ: scaling keeps the function, the search is never worse than none, and clipping never widens."""

import doctest

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.quantization import Grid, QuantizedLinear, replace_linears
from helpers.techniques.quantization import awq as module
from helpers.techniques.quantization.awq import awq, clip_weight, salience_scale, search_scale
from helpers.techniques.quantization.calibration import InputStatistics, layer_by_layer, output_error
from helpers.techniques.quantization.salience import CHOICES, ablation, heavy_tailed_layer, kept_channels, round_keeping
from tests.techniques.quantization.tiny import correlated_inputs, damage, logits, tiny_llama, token_batches

GRID = Grid(3, 8)


def problem(seed=0):
    """A weight [16, 24], and inputs of very unequal channels."""
    seen = InputStatistics(24)
    seen.add(correlated_inputs(seed=seed))
    return torch.randn(16, 24, generator=torch.Generator().manual_seed(seed + 1)), seen


def nearest(model, grid):
    return replace_linears(model, lambda linear: QuantizedLinear.of(linear, grid))


@pytest.mark.parametrize("kv_heads", [2, 4], ids=["grouped", "multi-head"])
def test_scaling_preserves_the_function_and_the_given_model(kv_heads):
    model = tiny_llama(kv_heads)
    before, state = logits(model), {name: value.clone() for name, value in model.state_dict().items()}
    scaled = awq(model, token_batches(), Grid(3, 16), clip=False)
    torch.testing.assert_close(logits(scaled), before, rtol=1e-3, atol=1e-4)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not torch.equal(scaled.model.layers[1].mlp.down_proj.weight, model.model.layers[1].mlp.down_proj.weight)


def test_with_grouped_kv_heads_the_output_projection_is_left_unscaled():
    def unchanged(kv_heads):
        scaled = awq(tiny_llama(kv_heads), token_batches(), Grid(2, 16), clip=False)
        return torch.equal(
            scaled.model.layers[0].self_attn.o_proj.weight, tiny_llama(kv_heads).model.layers[0].self_attn.o_proj.weight
        )

    assert unchanged(kv_heads=2)
    assert not unchanged(kv_heads=4)


def test_a_model_rounds_better_after_it():
    grid = Grid(3, 16)
    scale, both = (awq(tiny_llama(), token_batches(4), grid, clip=clip) for clip in (False, True))
    plain = damage(nearest(tiny_llama(), grid))
    assert damage(nearest(both, grid)) < damage(nearest(scale, grid)) < plain


def test_clipping_knows_that_the_inputs_were_scaled():
    """In the prepared model, no clipped weight is worse for its layer's inputs, as they now are, than unclipped."""
    grid = Grid(3, 16)
    scaled, both = (awq(tiny_llama(), token_batches(), grid, clip=clip) for clip in (False, True))
    for plain, clipped in zip(layer_by_layer(scaled, token_batches()), both.model.layers, strict=True):
        for name, seen in plain.observe().items():
            weight, found = plain.layer.get_submodule(name).weight, clipped.get_submodule(name).weight
            expected = weight if name.endswith(("q_proj", "k_proj")) else clip_weight(weight, seen.hessian, grid)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])  # the best step is 13, 14, 11
def test_the_search_finds_the_best_alpha(seed):
    weight, seen = problem(seed)

    def loss(scale):
        x = correlated_inputs(seed=seed)
        rounded = GRID.round(weight * scale) @ (x / scale).T  # what the scaled layer computes
        return float((rounded - weight @ x.T).square().sum(0).mean())

    losses = {step: loss(salience_scale(seen.mean_abs, step / 20)) for step in range(21)}
    assert loss(search_scale([weight], seen, GRID)) == pytest.approx(min(losses.values()), rel=1e-4)
    assert min(losses.values()) < 0.9 * losses[0]
    assert 0 < min(losses, key=losses.get) < 20


def test_layers_that_share_an_input_share_a_scale():
    (first, seen), second = problem(), torch.randn(4, 24)
    together = search_scale([first, 100 * second], seen, GRID)
    assert torch.equal(together, search_scale([second], seen, GRID))  # the louder layer decides


def test_clipping_never_widens_a_group_and_never_rounds_it_worse():
    weight, seen = problem()
    clipped = clip_weight(weight, seen.hessian, GRID)
    before, after = (GRID.blocks(value).abs().amax(-1) for value in (weight, clipped))
    assert (after <= before).all()
    assert (after >= 0.55 * before - 1e-6).all()  # the narrowest of ten steps from 1 down
    assert (after < before).any()
    inside = clipped.abs() < GRID.blocks(clipped).abs().amax(-1).repeat_interleave(8, 1)
    assert torch.equal(clipped[inside], weight[inside])

    def group_losses(rounded):
        deltas = (rounded - weight).split(8, 1)
        return torch.stack(
            [
                ((delta @ seen.hessian[at : at + 8, at : at + 8]) * delta).sum(1)
                for at, delta in zip((0, 8, 16), deltas, strict=True)
            ]
        )

    assert (group_losses(GRID.round(clipped)) <= group_losses(GRID.round(weight)) * 1.0001).all()


def test_round_keeping_leaves_the_kept_channels():
    weight, _ = problem()
    result = round_keeping(weight, GRID, torch.tensor([3, 5]))
    assert torch.equal(result[:, [3, 5]], weight[:, [3, 5]])
    rest = [column for column in range(24) if column not in (3, 5)]
    assert torch.equal(result[:, rest], GRID.round(weight)[:, rest])


def test_each_choice_keeps_the_channels_that_it_says():
    weight, mean_abs = torch.ones(4, 200), torch.arange(200.0)
    weight[:, 7], weight[:, 8] = -5.0, 4.0
    chosen = {by: sorted(kept_channels(by, weight, mean_abs).tolist()) for by in CHOICES}
    assert chosen["none"] == []
    assert chosen["weights"] == [7, 8]
    assert chosen["salience"] == [198, 199]
    assert len(set(chosen["random"])) == 2
    assert len(kept_channels("salience", weight, mean_abs, share=0.001)) == 1


@pytest.mark.parametrize("seed", range(4))
def test_the_ablation_separates_on_the_heavy_tailed_layer(seed):
    error = ablation(*heavy_tailed_layer(seed=seed), GRID, seed=seed)
    assert error["salience"] < 0.5 * error["none"]
    assert error["random"] > 0.95 * error["none"]
    assert error["weights"] > 0.95 * error["none"]


def test_scaling_does_nearly_as_well_as_keeping():
    weight, seen = heavy_tailed_layer()
    scale = search_scale([weight], seen, GRID)
    scaled = output_error(GRID.round(weight * scale) / scale - weight, seen.hessian) / output_error(
        weight, seen.hessian
    )
    assert scaled < 0.2 * ablation(weight, seen, GRID)["none"]


WEIGHT, SEEN = problem()
BAD = [
    (lambda: clip_weight(WEIGHT, SEEN.hessian, Grid(3, "tensor")), "one scale for the whole tensor"),
    (lambda: clip_weight(WEIGHT, torch.eye(8), GRID), "a Hessian of shape [8, 8]"),
    (lambda: clip_weight(WEIGHT * torch.nan, SEEN.hessian, GRID), "NaN or infinite"),
    (lambda: search_scale([torch.ones(3, 8)], SEEN, GRID), "a Hessian of shape [24, 24] for rows of 8"),
    (lambda: search_scale([WEIGHT * torch.inf], SEEN, GRID), "NaN or infinite"),
    (lambda: search_scale([WEIGHT], InputStatistics(24), GRID), "no calibration tokens"),
    (lambda: kept_channels("saliance", WEIGHT, SEEN.mean_abs), "unknown choice 'saliance'"),
    (lambda: kept_channels("random", WEIGHT, SEEN.mean_abs, share=0), "share is 0"),
    (lambda: awq(tiny_llama(), token_batches(), Grid(3, 7)), "groups of 7"),
    (lambda: awq(tiny_llama(), token_batches(), Grid(3, "tensor")), "one scale for the whole tensor"),
]


@pytest.mark.parametrize(("call", "what"), BAD)
def test_bad_input(call, what):
    with pytest.raises(WorkbookError) as caught:
        call()
    assert what in caught.value.what


def test_the_worked_number():
    assert doctest.testmod(module, extraglobs={"torch": torch}) == (0, 1)
