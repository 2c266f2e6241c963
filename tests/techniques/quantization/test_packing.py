"""Codes survive packing, and what is stored is counted on real storages."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.catalog.formats import number_format
from helpers.techniques.quantization.grids import Grid, GridScales
from helpers.techniques.quantization.packing import QuantizedTensor, pack, storage_bits, unpack


def codes_of(*values):
    return torch.tensor(values, dtype=torch.uint8)


@settings(max_examples=80)
@given(bits=st.sampled_from([2, 4, 8]), count=st.integers(0, 33), seed=st.integers(0, 2**31))
def test_codes_come_back(bits, count, seed):
    codes = torch.randint(2**bits, (count,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == -(-count * bits // 8)
    assert torch.equal(unpack(packed, bits, count), codes)


@pytest.mark.parametrize(
    ("codes", "bits", "expected"),
    [
        ((1, 2, 15), 4, (0x12, 0xF0)),  # the first in the high bits, the rest of the last byte 0
        ((3, 0, 1, 2, 1), 2, (0b11000110, 0b01000000)),
        ((200, 7), 8, (200, 7)),
    ],
)
def test_where_each_code_goes(codes, bits, expected):
    assert pack(codes_of(*codes), bits).tolist() == list(expected)


def test_nibbles_lie_as_in_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes").functional
    packed, _ = functional.quantize_4bit(torch.tensor([[-1.0, 1.0, 0.0, -1.0]]), quant_type="nf4")
    assert packed.flatten().tolist() == pack(codes_of(0, 15, 7, 0), 4).tolist() == [0x0F, 0x70]


def test_storage_is_honest_about_three_bits():
    assert [storage_bits(bits) for bits in range(1, 9)] == [2, 2, 4, 4, 8, 8, 8, 8]
    weight = torch.randn(32, 128)
    three, four = (QuantizedTensor.of(weight, Grid(bits)) for bits in (3, 4))
    assert three.nbytes == four.nbytes


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: pack(codes_of(1), 3), "codes of 3 bits do not fill a byte"),
        (lambda: pack(codes_of(1), True), "codes of True bits do not fill a byte"),
        (lambda: unpack(codes_of(1), 5, 1), "codes of 5 bits do not fill a byte"),
        (lambda: pack(codes_of(3, 16), 4), "codes in torch.uint8, up to 16"),
        (lambda: pack(torch.tensor([-1], dtype=torch.int8), 4), "codes in torch.int8, up to -1"),
        (lambda: pack(torch.empty(0), 4), "codes in torch.float32, up to none"),
        (lambda: unpack(codes_of(1, 2), 4, 5), "5 codes of 4 bits in 2 values of torch.uint8"),
        (lambda: unpack(codes_of(1), 4, -1), "-1 codes of 4 bits in 1 values of torch.uint8"),
        (lambda: unpack(torch.ones(1), 4, 1), "1 codes of 4 bits in 1 values of torch.float32"),
        (lambda: storage_bits(9), "the width of a code is 9"),
        (lambda: storage_bits(2.5), "the width of a code is 2.5"),
    ],
)
def test_bad_codes(call, what):
    with pytest.raises(WorkbookError) as error:
        call()
    assert error.value.what == what


def test_three_bits_are_told_where_to_go():
    with pytest.raises(WorkbookError, match=r"keep narrower codes in the next width: bits=storage_bits\(3\) is 4"):
        pack(codes_of(1), 3)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, "row", "tensor"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_dequantizing_gives_what_the_grid_rounds_to(bits, group, symmetric):
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(bits)).to(torch.bfloat16)
    grid = Grid(bits, group, symmetric, scale_dtype=torch.float16)
    kept = QuantizedTensor.of(weight, grid)
    assert torch.equal(kept.dequantize(), grid.round(weight))
    assert kept.dequantize(torch.float32).dtype == torch.float32
    assert (kept.zeros is None) == symmetric


def test_bytes_of_the_catalogue_s_formats():
    weight = torch.randn(256, 1024)
    grid = Grid(4, 128, scale_dtype=torch.float16)
    assert QuantizedTensor.of(weight, grid).nbytes == number_format("int4-g128").storage_bytes(weight.numel())
    assert QuantizedTensor.of(weight, Grid(4, 64, symmetric=True)).nbytes * 8 / weight.numel() == 4.5
    row = QuantizedTensor.of(weight, Grid(8, "row", symmetric=True))
    assert row.nbytes == number_format("int8").storage_bytes(weight.numel(), rows=256)


def test_a_storage_counts_whole_and_once():
    kept = QuantizedTensor.of(torch.randn(8, 64), Grid(symmetric=True))
    long = torch.zeros(1000, dtype=torch.uint8)
    assert dataclasses.replace(kept, packed=long[:256]).nbytes == 1000 + 8 * 4
    both = torch.zeros(264)
    shared = dataclasses.replace(kept, packed=both.view(torch.uint8)[:256], scale=both[256:].reshape(8, 1))
    assert shared.nbytes == 264 * 4


def test_taken_apart_and_put_together():
    kept = QuantizedTensor.of(torch.randn(8, 64), Grid())
    assert set(kept.tensors) == {"packed", "scale", "zeros"}
    again = QuantizedTensor(**kept.tensors, **kept.facts)
    assert torch.equal(again.dequantize(), kept.dequantize())


def test_scales_cast_behind_the_grid_s_back_are_refused():
    kept = QuantizedTensor.of(torch.randn(8, 64), Grid())
    with pytest.raises(WorkbookError, match=r"before quantizing, not after"):
        dataclasses.replace(kept, scale=kept.scale.bfloat16())


@pytest.mark.parametrize("zero", [7.6, -1.0, float("nan")])
def test_zero_points_must_be_codes(zero):
    grid, scale = Grid(4, "row"), torch.ones(2, 1)
    codes = torch.zeros(2, 8, dtype=torch.uint8)
    with pytest.raises(WorkbookError, match="zero points that are not codes"):
        QuantizedTensor.from_codes(codes, GridScales(scale, torch.full((2, 1), zero)), grid, torch.float32)
