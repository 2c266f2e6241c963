"""GPTQ against the textbook: the same greedy choice made slowly, with the Hessian inverted anew for each column."""

import doctest

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.quantization import Grid, QuantizedLinear, dense_linears, replace_linears
from helpers.techniques.quantization import gptq as module
from helpers.techniques.quantization.calibration import InputStatistics, layer_by_layer, output_error
from helpers.techniques.quantization.gptq import gptq, gptq_model, inverse_factor
from tests.techniques.quantization.tiny import correlated_inputs, damage, tiny_llama, token_batches

GRIDS = [Grid(3, 8), Grid(4, 6, symmetric=True), Grid(2, "row"), Grid(3, "tensor"), Grid(4, 12)]


def problem(seed=0, rows=16, columns=24):
    x = correlated_inputs(channels=columns, seed=seed)
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed + 1))
    return weight, x.T @ x / len(x)


def textbook(weight, hessian, grid, order=None, damping=0.01):
    """Optimal brain quantization with the columns in a given order, in FP64, and nothing lazy or factored.

    After a column is fixed, the best change of all others is read off the inverse of *their* Hessian.
    """
    columns = weight.shape[1]
    work = weight.double()
    damped = hessian.double() + damping * hessian.double().diagonal().mean() * torch.eye(columns, dtype=torch.float64)
    size = {"row": columns, "tensor": columns}.get(grid.group, grid.group)
    original, values, free = grid.scales(weight), torch.zeros_like(weight), list(order or range(columns))
    scales = None
    while free:
        column, inverse = free[0], torch.linalg.inv(damped[free][:, free])
        if order is not None or grid.group == "tensor":
            scales = original[column // size if grid.group != "tensor" else 0]
        elif column % size == 0:
            scales = grid.scales(work[:, column : column + size].float())
        rounded = grid.decode(grid.encode(work[:, column, None], scales), scales).double()[:, 0]
        error = (work[:, column] - rounded) / inverse[0, 0]
        work[:, free] -= error[:, None] * inverse[0]
        values[:, column] = rounded.float()
        free = free[1:]
    return values


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("block", [1, 5, 8, 128])
def test_equals_the_textbook_whatever_the_block(grid, block):
    weight, hessian = problem()
    values = grid.values(*gptq(weight, hessian, grid, block=block))
    torch.testing.assert_close(values, textbook(weight, hessian, grid), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("grid", GRIDS)
def test_act_order_equals_the_textbook_in_that_order_and_comes_back_in_place(grid):
    weight, hessian = problem()
    order = hessian.diagonal().argsort(descending=True).tolist()
    assert order != sorted(order)
    values = grid.values(*gptq(weight, hessian, grid, act_order=True, block=8))
    torch.testing.assert_close(values, textbook(weight, hessian, grid, order), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_a_diagonal_hessian_leaves_nothing_to_make_up_for(grid, act_order):
    weight, hessian = problem()
    values = grid.values(*gptq(weight, hessian.diagonal().diag(), grid, act_order))
    torch.testing.assert_close(values, grid.round(weight))


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_output_error_is_well_below_that_of_rounding_to_nearest(bits, act_order):
    grid = Grid(bits, 8)
    for seed in range(5):
        weight, hessian = problem(seed)
        found = output_error(grid.values(*gptq(weight, hessian, grid, act_order)) - weight, hessian)
        assert found < 0.5 * output_error(grid.round(weight) - weight, hessian)


@pytest.mark.parametrize("damping", [0.01, 0.0])
def test_a_dead_column_becomes_zero_and_does_not_widen_its_group(damping):
    weight, hessian = problem()
    weight[:, 3], hessian[3], hessian[:, 3] = 100.0, 0.0, 0.0
    codes, scales = gptq(weight, hessian, Grid(4, 8), damping=damping)
    assert not Grid(4, 8).values(codes, scales)[:, 3].any()
    assert scales.scale.max() < 1


def test_weight_and_hessian_are_left_as_they_were():
    weight, hessian = problem()
    hessian[3], hessian[:, 3] = 0.0, 0.0
    before = weight.clone(), hessian.clone()
    gptq(weight, hessian, Grid(4, 8))
    assert torch.equal(weight, before[0])
    assert torch.equal(hessian, before[1])


def test_the_factor_is_that_of_the_inverse():
    _, hessian = problem()
    upper = inverse_factor(hessian, damping=0.1)
    damped = hessian + 0.1 * hessian.diagonal().mean() * torch.eye(24)
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper @ damped, torch.eye(24), rtol=1e-3, atol=1e-3)


def test_a_model_is_quantized_on_its_own_quantized_layers_and_shares_the_rest():
    model, grid = tiny_llama(), Grid(3, 16)
    quantized = gptq_model(model, token_batches(4), grid)
    nearest = replace_linears(model, lambda linear: QuantizedLinear.of(linear, grid))
    assert damage(quantized) < 0.8 * damage(nearest)
    assert quantized.lm_head.weight is model.lm_head.weight
    assert len(dense_linears(model)) == 14  # the given model still has its own
    layer = quantized.model.layers[1].mlp.down_proj
    assert layer.stored.nbytes == nearest.model.layers[1].mlp.down_proj.stored.nbytes

    *_, last = layer_by_layer(model, token_batches(4))  # had it been calibrated on the float layers
    seen = last.observe()["mlp.down_proj"]
    other = grid.values(*gptq(last.layer.mlp.down_proj.weight, seen.hessian, grid))
    assert not torch.equal(layer.stored.dequantize(), other)


def test_biases_stay():
    model = tiny_llama()
    biased = replace_linears(model, lambda linear: torch.nn.Linear(linear.in_features, linear.out_features)).eval()
    quantized = gptq_model(biased, token_batches(), Grid(4, 16))
    assert torch.equal(quantized.model.layers[0].mlp.up_proj.bias, biased.model.layers[0].mlp.up_proj.bias)


def bad(**changes):
    weight, hessian = problem()
    return {"weight": weight, "hessian": hessian, "grid": Grid(4, 8), **changes}


BAD = [
    (bad(hessian=torch.eye(23)), "a Hessian of shape [23, 23] for rows of 24"),
    (bad(hessian=torch.ones(24)), "a Hessian of shape [24]"),
    (bad(hessian=torch.full((24, 24), torch.nan)), "no sum of squares"),
    (bad(hessian=-torch.eye(24)), "no sum of squares"),
    (bad(hessian=torch.ones(24, 24), damping=0.0), "not positive definite"),
    (bad(weight=torch.full((16, 24), torch.inf)), "NaN or infinite"),
    (bad(weight=torch.ones(2, 3, 24)), "a weight of shape [2, 3, 24]"),
    (bad(grid=Grid(4, 7)), "groups of 7"),
    (bad(damping=-0.1), "damping=-0.1"),
    (bad(block=0), "block=0"),
]


@pytest.mark.parametrize(("arguments", "what"), BAD)
def test_bad_input(arguments, what):
    with pytest.raises(WorkbookError) as caught:
        gptq(**arguments)
    assert what in caught.value.what


def test_the_worked_number():
    failed, tried = doctest.testmod(module, extraglobs={"torch": torch})
    assert (failed, tried) == (0, 3)


def test_a_seen_hessian_fits():
    seen = InputStatistics(24)
    seen.add(correlated_inputs())
    torch.testing.assert_close(seen.hessian, problem()[1])
