"""Bits and bytes of each number format, scales included, against the figures the field publishes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog.formats import NUMBER_FORMATS, number_format

BITS = {
    "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8-e4m3": 8, "fp8-e5m2": 8, "int8": 8,
    "nf4": 4.5, "nf4-dq": 4 + 8 / 64 + 32 / (64 * 256), "int4-g128": 4.15625, "mxfp4": 4.25,
}  # fmt: skip


def test_bits_per_value():
    assert {name: entry.bits_per_value for name, entry in NUMBER_FORMATS.items()} == BITS
    assert round(BITS["nf4-dq"], 3) == 4.127


@pytest.mark.parametrize(
    ("name", "values", "rows", "expected"),
    [
        ("fp32", 3, None, 12),
        ("bf16", 3, None, 6),
        ("int8", 12, 3, 12 + 3 * 4),
        ("nf4", 64, None, 32 + 4),
        ("nf4", 65, None, 33 + 2 * 4),  # half a byte, and a second block, are whole ones
        ("nf4-dq", 64 * 256, None, 8192 + 256 + 4),
        ("nf4-dq", 64 * 256 + 1, None, 8193 + 257 + 8),
        ("int4-g128", 128, None, 64 + 3),  # 16 + 4 bits round up to 3 bytes
        ("mxfp4", 33, None, 17 + 2),
        ("nf4", 0, None, 0),
    ],
)
def test_storage_bytes(name, values, rows, expected):
    assert number_format(name).storage_bytes(values, rows) == expected


@given(name=st.sampled_from(sorted(NUMBER_FORMATS)), values=st.integers(0, 10**7))
def test_storage_is_the_bits_rounded_up_and_never_less(name, values):
    entry = number_format(name)
    stored = entry.storage_bytes(values, rows=0)
    assert values * entry.bits_per_value / 8 <= stored + 1e-6
    assert stored <= values * entry.bits_per_value / 8 + 12
    assert entry.storage_bytes(values + 1, rows=0) >= stored


def test_nf4_equals_a_real_bitsandbytes_tensor():
    functional = pytest.importorskip("bitsandbytes").functional
    import torch

    weight = torch.randn(100, 130)
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    held = packed.numel() + state.absmax.numel() * 4
    assert number_format("nf4").storage_bytes(weight.numel()) == held
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=True)
    held = packed.numel() + state.absmax.numel() + state.state2.absmax.numel() * 4
    assert number_format("nf4-dq").storage_bytes(weight.numel()) == held


def test_only_weight_schemes_are_quantized():
    quantized = {name for name, entry in NUMBER_FORMATS.items() if entry.quantized}
    assert quantized == {"int8", "nf4", "nf4-dq", "int4-g128", "mxfp4"}
    assert all(entry.source for entry in NUMBER_FORMATS.values())
