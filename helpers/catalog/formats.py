"""Number formats and what a tensor in each of them really occupies, scales included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from .errors import WorkbookError, require_whole, unknown_name

# What the tools leave in 16 bits unless told otherwise, by part of the model or name of the layer.
CHECKPOINTS_KEEP = ("lm_head", "projections")  # GPTQ, AWQ, FP8: only layers inside the decoder layers are quantized
BITSANDBYTES_KEEPS = ("lm_head", "experts")  # Transformers stacks experts in one tensor, which is no nn.Linear


class Decoding(Enum):
    """Where the kernels of a format put its values while they multiply."""

    FUSED = "decoded as they are multiplied: nothing besides (Marlin, and all kernels of one token)"
    WHOLE = "each weight in 16 bits while its product runs"
    KEPT = "one buffer in 16 bits, as large as the largest weight, that stays"


@dataclass(frozen=True)
class NumberFormat:
    """How values are stored: `value_bits` each, plus scales.

    `block_values` values share one scale of `scale_bits` (a zero point in it, where there is one); `row_blocks` says
    that blocks end with their row. `superblock_blocks` blocks share one more of `superscale_bits` (double
    quantization); `row_bits` is kept once per output row, `constant_bytes` once per tensor (code tables, an offset).
    Zero means there is none. Nothing is computed in a `quantized` format: its values are decoded first. As a format of
    weights, one that is `linears_only` applies to linear layers: embeddings, norms and biases stay in 16 bits, and so
    do the parts in `keeps`. With `experts_only`, of a model that has experts, nothing but them is quantized.
    `column_bits` are kept once per input. `decoding` is what a product takes beside its weight, where it multiplies
    more than `fused_tokens` tokens; `partial_sums` results are alive where it multiplies fewer.
    """

    name: str
    value_bits: int
    scale: str
    source: str
    block_values: int = 0
    scale_bits: int = 0
    superblock_blocks: int = 0
    superscale_bits: int = 0
    row_bits: int = 0
    constant_bytes: int = 0
    row_blocks: bool = False
    quantized: bool = False
    linears_only: bool = False
    keeps: tuple[str, ...] = CHECKPOINTS_KEEP
    experts_only: bool = False
    mixed: bool = False
    column_bits: int = 0
    decoding: Decoding = Decoding.FUSED
    fused_tokens: int = 0
    partial_sums: int = 0

    @property
    def bits_per_value(self) -> float:
        """Bits per value in a large tensor; a per-row scale is left out, for it depends on the row's width.

        >>> number_format("nf4").bits_per_value
        4.5
        >>> round(number_format("nf4-dq").bits_per_value, 3)
        4.127
        """
        bits = float(self.value_bits)
        if self.block_values:
            bits += self.scale_bits / self.block_values
        if self.superblock_blocks:
            bits += self.superscale_bits / (self.block_values * self.superblock_blocks)
        return bits

    @property
    def value_bytes(self) -> int:
        """Bytes of one value in a format that packs nothing; an error for those that pack."""
        if self.value_bits % 8:
            expected = "a format of whole bytes per value"
            do = "use storage_bytes(values), which counts the packing and the scales"
            raise WorkbookError(f"{self.name} packs values of {self.value_bits} bits in bytes", expected, do)
        return self.value_bits // 8

    def packed_bytes(self, values: int) -> int:
        """Bytes of the values alone, rounded up."""
        require_whole("values", values, 0)
        return _bits_to_bytes(values * self.value_bits)

    def scale_bytes(self, values: int, rows: int | None = None) -> int:
        """Bytes of all scales and zero points of a tensor of `values` elements with `rows` output rows.

        `rows` is needed where a scale is kept per row (int8). Without it blocks are counted as if one row held all.

        >>> number_format("nf4-dq").scale_bytes(4096 * 4096)
        266240
        """
        require_whole("values", values, 0)
        if rows is not None:
            require_whole("rows", rows, 0)
        total = 0
        if self.block_values:
            blocks = self._blocks(values, rows)
            total += _bits_to_bytes(blocks * self.scale_bits)
            if self.superblock_blocks:
                total += _bits_to_bytes(_ceil_div(blocks, self.superblock_blocks) * self.superscale_bits)
        if self.row_bits or self.column_bits:
            if rows is None:
                kept = "scale per output row" if self.row_bits else "number per input"
                what = f"{self.name} keeps one {kept}, and `rows` was not given"
                raise WorkbookError(what, "the number of output rows", "pass rows=weight.shape[0]")
            total += _bits_to_bytes(rows * self.row_bits)
            total += _bits_to_bytes(values // rows * self.column_bits) if rows else 0
        return total

    def storage_bytes(self, values: int, rows: int | None = None) -> int:
        """Bytes of values and scales, rounded up. Constants of a whole tensor (`constant_bytes`) are left out.

        >>> number_format("nf4").storage_bytes(4096 * 4096) / 2**20
        9.0
        >>> number_format("int8").storage_bytes(4096 * 4096, rows=4096)
        16793600
        """
        return self.packed_bytes(values) + self.scale_bytes(values, rows)

    def _blocks(self, values: int, rows: int | None) -> int:
        if self.row_blocks and rows:
            return rows * _ceil_div(values // rows, self.block_values)
        return _ceil_div(values, self.block_values)


class FileFormat(NumberFormat):
    """What a GGUF file is in: a type of its own for each tensor. So nothing is known of a value without its tensor."""

    @property
    def bits_per_value(self) -> float:
        raise self._refused()

    @property
    def value_bytes(self) -> int:
        raise self._refused()

    def packed_bytes(self, values: int) -> int:
        raise self._refused()

    def scale_bytes(self, values: int, rows: int | None = None) -> int:
        raise self._refused()

    def _refused(self) -> WorkbookError:
        what = "a GGUF file has each tensor in a type of its own, and this question asks for the bytes of a part"
        do = "ask `workbook estimate serve --model file.gguf`, or name the model's config.json"
        return WorkbookError(what, "a question about the whole file", do)


GGUF = FileFormat("gguf", 16, "each tensor in a type of its own", "llama.cpp, GGUF", quantized=True, mixed=True)


def number_format(name: str) -> NumberFormat:
    """The format called `name` (any case); WorkbookError with the nearest match otherwise."""
    found = GGUF if name == GGUF.name else NUMBER_FORMATS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise unknown_name("number format", name, NUMBER_FORMATS)
    return found


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _bits_to_bytes(bits: int) -> int:
    return _ceil_div(bits, 8)


_IEEE = "IEEE 754-2019"
_OCP_FP8 = "OCP 8-bit Floating Point Specification 1.0 (2023)"
_QLORA = "Dettmers et al., QLoRA, 2023, arXiv:2305.14314"
_LLM_INT8 = "Dettmers et al., LLM.int8(), 2022, arXiv:2208.07339"
_GROUPS = "Frantar et al., GPTQ, 2022, arXiv:2210.17323; Lin et al., AWQ, 2023, arXiv:2306.00978"
_CODES = 16 * 4  # bitsandbytes keeps the 16 levels beside each weight, in FP32
_NESTED = 256 * 4 + 4  # and with double quantization the 256 levels of the scales, and their mean


def _grouped(bits: int, group: int) -> NumberFormat:
    """Integers with a scale and a zero point per group of a row, as GPTQ and AWQ checkpoints hold them.

    GPTQ's also name each input's group, 4 bytes an input, which is not counted: engines drop it unless the groups
    are out of order. As its own library keeps it, it is `gptq-int4`.
    """
    return NumberFormat(
        f"int{bits}-g{group}",
        bits,
        f"one FP16 scale and one {bits}-bit zero point per {group} values of a row",
        _GROUPS,
        block_values=group,
        scale_bits=16 + bits,
        row_blocks=True,
        quantized=True,
        linears_only=True,
    )


def _symmetric(name: str, bits: int, group: int = 0, scale_bits: int = 16) -> NumberFormat:
    """Integers with scales alone, for each group of a row or for the row: llm-compressor's W4A16 and W8A8.

    torchao's int4 has a BF16 zero point beside each scale: `scale_bits` of 32 (its quant_api, Int4WeightOnlyConfig).
    """
    zero = " and one BF16 zero point" if scale_bits == 32 else ""
    sizes: dict[str, Any] = {"row_bits": scale_bits}
    if group:
        sizes = {"block_values": group, "scale_bits": scale_bits, "row_blocks": True}
    scale = f"one BF16 scale{zero} per {f'{group} values of a row' if group else 'output row'}"
    return NumberFormat(name, bits, scale, "compressed-tensors; torchao", quantized=True, linears_only=True, **sizes)


def _checkpoint(name: str, bits: int, **fields: Any) -> NumberFormat:
    """The same with groups of 128, as the library that wrote a checkpoint runs it; the group of each input with GPTQ.

    AutoGPTQ's ExLlama kernels take 4 bits and decode into one buffer (autogptq_post_init in
    auto_gptq/modeling/_utils.py); its others decode each weight from 128 tokens on. AutoAWQ's decode it from 1,024 on
    (awq/modules/linear/gemm.py), and add up eight partial products below (split_k_iters).
    """
    return replace(_grouped(bits, 128), name=name, **fields)


BNB_FUSED_TOKENS = 64  # up to so many, bitsandbytes decodes a 4-bit weight as it multiplies, and holds nothing


def _bitsandbytes(name: str, bits: int, scale: str, source: str, **fields: Any) -> NumberFormat:
    if bits == 4:
        fields |= {"decoding": Decoding.WHOLE, "fused_tokens": BNB_FUSED_TOKENS}
    return NumberFormat(
        name, bits, scale, source, quantized=True, linears_only=True, keeps=BITSANDBYTES_KEEPS, **fields
    )


def _fp8(name: str) -> NumberFormat:
    """DeepSeek's checkpoints keep an FP32 for each 128 x 128 values instead (`shipped.fp8_block`): 0.02 % more."""
    return NumberFormat(name, 8, "one FP32 per weight", _OCP_FP8, constant_bytes=4, linears_only=True)


_TF32 = "none: stored as FP32, rounded to 19 bits inside the tensor core"
_DOUBLE = "one 8-bit absmax code per 64 values, one FP32 per 256 of those"
_BLOCKS_OF_CODES = {"block_values": 64, "scale_bits": 8, "superblock_blocks": 256, "superscale_bits": 32}


def _mx(bits: int, experts_only: bool) -> NumberFormat:
    """OpenAI's gpt-oss has its experts alone in MXFP4; MXFP8, where it is used, holds all linear layers."""
    return NumberFormat(
        f"mxfp{bits}",
        bits,
        "one 8-bit power of two per 32 values",
        "OCP Microscaling Formats (MX) Specification 1.0 (2023)",
        block_values=32,
        scale_bits=8,
        row_blocks=True,
        quantized=True,
        linears_only=True,
        experts_only=experts_only,
    )


_NVFP4 = NumberFormat(
    "nvfp4",
    4,
    "one E4M3 per 16 values, one FP32 per weight",
    "NVIDIA, Introducing NVFP4 for Efficient and Accurate Low-Precision Inference, 2025",
    block_values=16,
    scale_bits=8,
    constant_bytes=4,
    row_blocks=True,
    quantized=True,
    linears_only=True,
)


def _ggml(name: str, bits: int, scale: str, *blocks: int) -> NumberFormat:
    """A block of llama.cpp. `blocks` is values and scale bits of one, and of its super-block: blocks, scale bits."""
    sizes: dict[str, Any] = dict(
        zip(("block_values", "scale_bits", "superblock_blocks", "superscale_bits"), blocks, strict=False)
    )
    source = f"llama.cpp, ggml/src/ggml-common.h, block_{name.replace('_k', '_K')}"
    return NumberFormat(name, bits, scale, source, row_blocks=True, quantized=True, mixed=True, **sizes)


_STEP_LOW, _LATTICE = "two FP16 (step, low) per 32 values", "one FP16 per 256 values, the rest of the block its codes"
GGML_FORMATS = (
    _ggml("q8_0", 8, "one FP16 per 32 values", 32, 16),
    _ggml("q6_k", 6, "one int8 per 16 values, one FP16 per 16 of those", 16, 8, 16, 16),
    _ggml("q5_k", 5, "two of 6 bits (step, low) per 32 values, two FP16 per 8 of those", 32, 12, 8, 32),
    _ggml("q5_1", 5, _STEP_LOW, 32, 32),
    _ggml("q5_0", 5, "one FP16 per 32 values", 32, 16),
    _ggml("q4_k", 4, "two of 6 bits (step, low) per 32 values, two FP16 per 8 of those", 32, 12, 8, 32),
    _ggml("q4_1", 4, _STEP_LOW, 32, 32),
    _ggml("q4_0", 4, "one FP16 per 32 values", 32, 16),
    _ggml("iq4_nl", 4, "one FP16 per 32 values", 32, 16),
    _ggml("iq4_xs", 4, "one of 6 bits per 32 values, one FP16 per 8 of those", 256, 64),
    _ggml("q3_k", 3, "one of 6 bits per 16 values, one FP16 per 16 of those", 16, 6, 16, 16),
    _ggml("iq3_s", 3, _LATTICE, 256, 112),
    _ggml("iq3_xxs", 3, _LATTICE, 256, 16),
    _ggml("q2_k", 2, "two of 4 bits (step, low) per 16 values, two FP16 per 16 of those", 16, 8, 16, 32),
    _ggml("iq2_s", 2, _LATTICE, 256, 144),
    _ggml("iq2_xs", 2, _LATTICE, 256, 80),
    _ggml("iq2_xxs", 2, _LATTICE, 256, 16),
    _ggml("tq2_0", 2, "one FP16 per 256 values", 256, 16),
    _ggml("iq1_m", 1, "in the block of 256 values, with its codes", 256, 192),
    _ggml("iq1_s", 1, _LATTICE, 256, 144),
    _ggml("tq1_0", 1, "one FP16 per 256 values, of which five share a byte", 256, 176),
)


NUMBER_FORMATS: dict[str, NumberFormat] = {
    number_format.name: number_format
    for number_format in (
        NumberFormat("fp32", 32, "none", _IEEE),
        NumberFormat("tf32", 32, _TF32, "NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020)"),
        NumberFormat("fp16", 16, "none", _IEEE),
        NumberFormat("bf16", 16, "none", "Kalamkar et al., 2019, arXiv:1905.12322"),
        _fp8("fp8-e4m3"),
        _fp8("fp8-e5m2"),
        _bitsandbytes("int8", 8, "one FP32 per output row", _LLM_INT8, row_bits=32),
        _bitsandbytes(
            "nf4", 4, "one FP32 absmax per 64 values", _QLORA, block_values=64, scale_bits=32, constant_bytes=_CODES
        ),
        _bitsandbytes("nf4-dq", 4, _DOUBLE, _QLORA, constant_bytes=_CODES + _NESTED, **_BLOCKS_OF_CODES),
        *(_grouped(bits, group) for bits in (2, 3, 4, 8) for group in (32, 64, 128)),
        *(_symmetric(f"w4a16-g{group}", 4, group) for group in (32, 64, 128)),
        _symmetric("w8a16-g128", 8, 128),
        _symmetric("w8a8", 8),
        *(_symmetric(f"torchao-int4-g{group}", 4, group, 32) for group in (32, 64, 128)),
        _checkpoint("gptq-int4", 4, column_bits=32, decoding=Decoding.KEPT),
        _checkpoint("gptq-int8", 8, column_bits=32, decoding=Decoding.WHOLE, fused_tokens=127),
        _checkpoint("awq-int4", 4, decoding=Decoding.WHOLE, fused_tokens=1023, partial_sums=8),
        _mx(8, experts_only=False),
        _mx(4, experts_only=True),
        _NVFP4,
        *GGML_FORMATS,
    )
}
