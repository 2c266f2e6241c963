"""Bits and bytes of each number format, scales included, against the figures the field publishes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog.formats import NUMBER_FORMATS, number_format

BITS = {
    "fp32": 32,
    "tf32": 32,
    "fp16": 16,
    "bf16": 16,
    "fp8-e4m3": 8,
    "fp8-e5m2": 8,
    "int8": 8,
    "nf4": 4.5,
    "nf4-dq": 4 + 8 / 64 + 32 / (64 * 256),
    "mxfp8": 8.25,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "q8_0": 8.5,  # 34 bytes for 32 values; of the others the bytes of a block for 256, as ggml-common.h asserts
    "q6_k": 210 * 8 / 256,
    "q5_k": 176 * 8 / 256,
    "q4_k": 144 * 8 / 256,
    "q4_0": 4.5,  # 18 bytes for 32 values
    "q3_k": 110 * 8 / 256,
    "q2_k": 84 * 8 / 256,
    "q5_1": 24 * 8 / 32,
    "q5_0": 22 * 8 / 32,
    "q4_1": 20 * 8 / 32,
    "iq4_nl": 18 * 8 / 32,
    "iq4_xs": 136 * 8 / 256,
    "iq3_s": 110 * 8 / 256,
    "iq3_xxs": 98 * 8 / 256,
    "iq2_s": 82 * 8 / 256,
    "iq2_xs": 74 * 8 / 256,
    "iq2_xxs": 66 * 8 / 256,
    "iq1_m": 56 * 8 / 256,
    "iq1_s": 50 * 8 / 256,
    "tq2_0": 66 * 8 / 256,
    "tq1_0": 54 * 8 / 256,
    "int2-g32": 2.5625,
    "int2-g64": 2.28125,
    "int2-g128": 2.140625,
    "int3-g32": 3.59375,
    "int3-g64": 3.296875,
    "int3-g128": 3.1484375,
    "int4-g32": 4.625,
    "int4-g64": 4.3125,
    "int4-g128": 4.15625,
    "int8-g32": 8.75,
    "int8-g64": 8.375,
    "int8-g128": 8.1875,
    "gptq-int4": 4.15625,  # and the group of each input, which depends on the width
    "gptq-int8": 8.1875,
    "awq-int4": 4.15625,
    "w4a16-g32": 4.5,  # no zero points
    "w4a16-g64": 4.25,
    "w4a16-g128": 4.125,
    "w8a16-g128": 8.125,
    "w8a8": 8.0,  # and a scale for each row
    "torchao-int4-g32": 5.0,  # a BF16 zero point beside each scale
    "torchao-int4-g64": 4.5,
    "torchao-int4-g128": 4.25,
}
GGUF = {name for name in BITS if name.startswith(("q", "iq", "tq"))}


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
        ("gptq-int4", 4 * 256, 4, 512 + 8 * 2.5 + 256 * 4),  # four rows of two groups, and 256 inputs
        ("int4-g128", 128, None, 64 + 3),  # 16 + 4 bits round up to 3 bytes
        ("int4-g128", 2 * 130, 2, 130 + 10),  # two groups in each row, though 260 values would fill three
        ("int3-g32", 64, 2, 24 + 5),  # 19 bits twice
        ("mxfp4", 33, None, 17 + 2),
        ("mxfp4", 66, 2, 33 + 4),
        ("nf4", 2 * 65, 2, 65 + 3 * 4),  # bitsandbytes' blocks run on over the end of a row
        ("nf4", 0, None, 0),
        ("nvfp4", 32, 1, 16 + 2),
        ("w8a8", 64, 2, 64 + 2 * 2),
        ("torchao-int4-g64", 128, 2, 64 + 2 * 4),
        ("q4_k", 512, 2, 2 * 144),
        ("q3_k", 512, 1, 2 * 110),
    ],
)
def test_storage_bytes(name, values, rows, expected):
    assert number_format(name).storage_bytes(values, rows) == expected


@given(name=st.sampled_from(sorted(NUMBER_FORMATS)), values=st.integers(0, 10**7))
def test_storage_is_the_bits_rounded_up_and_never_less(name, values):
    entry = number_format(name)
    stored = entry.storage_bytes(values, rows=0)
    assert values * entry.bits_per_value / 8 <= stored + 1e-6
    assert stored <= values * entry.bits_per_value / 8 + max(12, entry.scale_bits // 8 + 1)  # of the last block
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


def test_constants_are_those_of_a_real_bitsandbytes_tensor():
    functional = pytest.importorskip("bitsandbytes").functional
    import torch

    for name, kind, nested in (("nf4", "nf4", False), ("nf4-dq", "nf4", True), ("nf4", "fp4", False)):
        state = functional.quantize_4bit(torch.randn(64, 64), quant_type=kind, compress_statistics=nested)[1]
        held = [state.code, *([state.offset, state.state2.code] if nested else [])]
        assert number_format(name).constant_bytes == sum(tensor.nbytes for tensor in held), (name, kind)


def test_which_formats_are_quantized_and_what_they_leave():
    quantized = {name for name, entry in NUMBER_FORMATS.items() if entry.quantized}
    groups = {f"int{bits}-g{group}" for bits in (2, 3, 4, 8) for group in (32, 64, 128)}
    groups |= {"gptq-int4", "gptq-int8", "awq-int4", "w8a8", "w8a16-g128"}
    groups |= {f"{kind}-g{group}" for kind in ("w4a16", "torchao-int4") for group in (32, 64, 128)}
    assert quantized == {"int8", "nf4", "nf4-dq", "mxfp8", "mxfp4", "nvfp4"} | groups | GGUF
    assert {name for name, entry in NUMBER_FORMATS.items() if entry.linears_only} == quantized - GGUF | {
        "fp8-e4m3",
        "fp8-e5m2",
    }
    assert {name for name, entry in NUMBER_FORMATS.items() if entry.mixed} == GGUF
    assert {name for name, entry in NUMBER_FORMATS.items() if "experts" in entry.keeps} == {"int8", "nf4", "nf4-dq"}
    assert all(entry.source and "lm_head" in entry.keeps for entry in NUMBER_FORMATS.values())
