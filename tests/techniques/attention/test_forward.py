"""Naive and tiled, against attention by its definition in FP64."""

import pytest
import torch
from hypothesis import given, settings

from helpers.catalog.errors import WorkbookError
from helpers.techniques import attention
from tests.techniques.attention.drawn import EXACT, by_definition, cases, error


@settings(max_examples=150, deadline=None)
@given(cases)
def test_as_by_definition(case):
    q, k, v = case.tensors()
    output, log_sum_exp = by_definition(q, k, v, case.mask)
    found, sums = attention.tiled(q, k, v, case.mask, case.tile)
    assert error(found, output) < EXACT
    assert error(sums, log_sum_exp) < EXACT
    assert error(attention.naive(q, k, v, case.mask), output) < EXACT


@pytest.mark.parametrize("mask", [attention.Causal(), attention.Window(300, 4)])
def test_long_rows(mask):
    q, k, v = (torch.randn(1, heads, 1000, 64, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    seen = mask.allowed(torch.arange(1000), torch.arange(1000))
    double = (tensor.double().repeat_interleave(4 // tensor.shape[1], 1) for tensor in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*double, attn_mask=seen)
    assert error(attention.tiled(q, k, v, mask)[0], expected) < EXACT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_inputs_are_summed_in_fp32(dtype):
    q, k, v = (torch.randn(1, 2, 300, 32, generator=torch.Generator().manual_seed(1)).to(dtype) for _ in range(3))
    found, sums = attention.tiled(q, k, v, tile=64)
    output, log_sum_exp = by_definition(q, k, v, attention.Causal())
    assert (found.dtype, sums.dtype) == (dtype, torch.float32)
    assert error(sums, log_sum_exp) < EXACT
    assert error(found, output) <= torch.finfo(dtype).eps / 2  # one rounding, at the end


def test_large_scores_and_a_scale():
    q, k, v = (1e3 * torch.randn(1, 2, 40, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    found, _ = attention.tiled(q.double(), k.double(), v.double(), tile=7, scale=0.5)
    assert error(found, by_definition(q, k, v, attention.Causal(), 0.5)[0]) < 1e-12


def test_layouts_that_are_views():
    q, k, v = (torch.randn(2, 20, 4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))  # as projections leave them
    expected = attention.tiled(q.contiguous(), k.contiguous(), v.contiguous(), tile=6)[0]
    torch.testing.assert_close(attention.tiled(q, k, v, tile=6)[0], expected, rtol=1e-6, atol=1e-6)


Z = torch.zeros


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ((Z(2, 3, 4), Z(2, 3, 4), Z(2, 3, 4)), "four dimensions"),
        ((Z(1, 4, 5, 8), Z(1, 3, 5, 8), Z(1, 3, 5, 8)), "kv_heads that divide heads"),
        ((Z(1, 4, 5, 8), Z(1, 4, 5, 6), Z(1, 4, 5, 8)), "one head_dim"),
        ((Z(1, 4, 5, 8), Z(1, 4, 5, 8), Z(1, 4, 6, 8)), "same heads and keys"),
        ((Z(1, 4, 5, 8), Z(2, 4, 5, 8), Z(2, 4, 5, 8)), "of one batch"),
        ((Z(1, 4, 5, 8), Z(1, 4, 5, 8).double(), Z(1, 4, 5, 8)), "one floating-point format"),
        ((Z(1, 1, 1, 1).long(),) * 3, "one floating-point format"),
    ],
)
@pytest.mark.parametrize("kernel", [attention.naive, attention.tiled])
def test_tensors_that_do_not_fit(kernel, tensors, expected):
    with pytest.raises(WorkbookError, match=expected):
        kernel(*tensors)


@pytest.mark.parametrize(
    "options", [{"tile": 0}, {"tile": (4, 0)}, {"tile": 1.5}, {"tile": (1, 2, 3)}, {"scale": -1.0}]
)
def test_tiles_and_scales_that_are_none(options):
    with pytest.raises(WorkbookError):
        attention.tiled(*(Z(1, 1, 4, 8) for _ in range(3)), **options)
