"""Block-wise 8 bits: equal to bitsandbytes' on a CPU, bit for bit, and to the textbook's nearest level."""

import logging

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.optimizers.blockwise import dequantized, dynamic_map, quantized
from tests.techniques.optimizers.small import ON_X86

SIGNS = pytest.mark.parametrize("signed", [True, False])


@pytest.fixture(scope="module")
def bitsandbytes():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return pytest.importorskip("bitsandbytes")


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def with_zeros():
    x = normal(10, 512)
    x[2] = 0
    x[5, ::2] = 0
    return x


CASES = {
    "random": normal(64, 1024),
    "decades apart": normal(100, 256) ** 9,
    "a tail": normal(3, 100),
    "a single value": normal(1),
    "zeros": with_zeros(),
    "one outlier": torch.cat([normal(255) / 1e6, torch.ones(1)]),
    "small": normal(256) * 1e-30,
    "even steps": torch.linspace(-1, 1, 65_536),
}


@SIGNS
def test_the_map_is_bitsandbytes(bitsandbytes, signed):
    assert torch.equal(dynamic_map(signed), bitsandbytes.functional.create_dynamic_map(signed=signed))


@ON_X86
@SIGNS
@pytest.mark.parametrize("name", CASES)
def test_by_table_every_code_is_bitsandbytes(bitsandbytes, name, signed):
    x, levels = CASES[name] if signed else CASES[name].abs(), dynamic_map(signed)
    codes, absmax = quantized(x, levels, rounding="table")
    theirs, scales = torch.ops.bitsandbytes.quantize_blockwise(x, levels, 256)
    assert torch.equal(codes, theirs)
    assert torch.equal(absmax, scales)
    decoded = torch.ops.bitsandbytes.dequantize_blockwise(theirs, scales, levels, 256, torch.float32)
    assert torch.equal(dequantized(codes, absmax, levels), decoded)


@SIGNS
@pytest.mark.parametrize("name", CASES)
def test_nearest_is_the_nearest_of_all_levels(name, signed):
    x, levels = CASES[name] if signed else CASES[name].abs(), dynamic_map(signed)
    codes, absmax = quantized(x, levels)
    spread = absmax.repeat_interleave(256)[: x.numel()]
    chosen = dequantized(codes, absmax, levels).reshape(-1)
    best = (x.reshape(-1, 1)[:4096] - spread[:4096, None] * levels).abs().amin(-1)
    torch.testing.assert_close((x.reshape(-1) - chosen).abs()[:4096], best, rtol=0, atol=1e-7 * float(absmax.max()))


@SIGNS
@pytest.mark.parametrize("name", CASES)
def test_how_far_the_table_is_from_the_nearest(name, signed):
    """It looks up a neighbour at most half a step away, so it errs by at most a step, 3.06e-5 of the absmax, more."""
    x, levels = CASES[name] if signed else CASES[name].abs(), dynamic_map(signed)
    absmax = quantized(x, levels)[1].repeat_interleave(256)[: x.numel()].reshape(x.shape)
    best, table = (
        (x - dequantized(*quantized(x, levels, rounding=rounding), levels)).abs() for rounding in ("nearest", "table")
    )
    assert (table <= best + absmax * 3.06e-5).all()


def test_by_table_a_second_moment_of_zero_is_none():
    levels = dynamic_map(signed=False)
    found = dequantized(*quantized(torch.tensor([0.0, 1.0]), levels, rounding="table"), levels)
    assert found[0].item() == pytest.approx(1.5625e-5)


@pytest.mark.parametrize(
    ("values", "block", "nbytes"), [(65_536, 256, 66_560), (65_536, 2048, 65_664), (257, 256, 265)]
)
def test_bytes(values, block, nbytes):
    codes, absmax = quantized(torch.ones(values), dynamic_map(), block)
    assert codes.nbytes + absmax.nbytes == nbytes


@pytest.mark.parametrize("shape", [(7, 33), (256,), (3, 5, 2)])
@pytest.mark.parametrize("block", [1, 64, 256])
def test_the_shape_comes_back(shape, block):
    x = normal(*shape)
    back = dequantized(*quantized(x, dynamic_map(), block), dynamic_map(), block)
    assert back.shape == x.shape
    assert (back - x).abs().max() < 0.02 * x.abs().max()


def test_one_outlier_spoils_its_block_alone():
    x = normal(2, 256)
    x[0, 0] = 1e9
    back = dequantized(*quantized(x, dynamic_map()), dynamic_map())
    assert (back[0, 1:] == 0).all()
    assert (back[1] - x[1]).abs().max() < 0.05


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: quantized(torch.ones(4), dynamic_map(), block=0), "block is 0"),
        (lambda: quantized(torch.ones(4), dynamic_map(), rounding="even"), "even"),
        (lambda: quantized(torch.ones(0), dynamic_map()), "no values"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
