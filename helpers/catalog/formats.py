"""Number formats and what a tensor in each of them really occupies, scales included."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import WorkbookError, unknown_name


@dataclass(frozen=True)
class NumberFormat:
    """How values are stored: `value_bits` each, plus scales.

    `block_values` values share one scale of `scale_bits`; `superblock_blocks` blocks share one more of
    `superscale_bits` (double quantization); `row_bits` is kept once per output row. Zero means there is none.
    `quantized` formats apply to the linear layers inside the decoder layers only: embeddings, norms and the
    output head stay in 16 bits, as bitsandbytes, GPTQ and AWQ leave them.
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
    quantized: bool = False

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
        """Bytes of one value in a format that packs nothing; an error for 4-bit ones."""
        if self.value_bits % 8:
            raise WorkbookError(
                f"{self.name} packs {8 // self.value_bits} values in a byte",
                "a format of whole bytes per value",
                "use storage_bytes(values), which counts the packing and the scales",
            )
        return self.value_bits // 8

    def storage_bytes(self, values: int, rows: int | None = None) -> int:
        """Bytes of a tensor of `values` elements with `rows` output rows, every scale included, rounded up.

        `rows` is needed only where a scale is kept per row (int8). Constants of a whole tensor (code tables,
        the offset of double quantization) are left out: they are under 1.1 KB however large the tensor is.

        >>> number_format("nf4").storage_bytes(4096 * 4096) / 2**20
        9.0
        >>> number_format("int8").storage_bytes(4096 * 4096, rows=4096)
        16793600
        """
        _require_count("values", values)
        total = _bits_to_bytes(values * self.value_bits)
        if self.block_values:
            blocks = _ceil_div(values, self.block_values)
            total += _bits_to_bytes(blocks * self.scale_bits)
            if self.superblock_blocks:
                total += _bits_to_bytes(_ceil_div(blocks, self.superblock_blocks) * self.superscale_bits)
        if self.row_bits:
            if rows is None:
                raise WorkbookError(
                    f"{self.name} keeps one scale per output row, and `rows` was not given",
                    "the number of output rows",
                    "pass rows=weight.shape[0]",
                )
            _require_count("rows", rows)
            total += _bits_to_bytes(rows * self.row_bits)
        return total


def number_format(name: str) -> NumberFormat:
    """The format called `name` (any case); WorkbookError with the nearest match otherwise."""
    found = NUMBER_FORMATS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise unknown_name("number format", name, NUMBER_FORMATS)
    return found


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _bits_to_bytes(bits: int) -> int:
    return _ceil_div(bits, 8)


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WorkbookError(f"{name} is {value!r}", "a whole number from 0 up", f"pass {name} as an int")


_IEEE = "IEEE 754-2019"
_OCP_FP8 = "OCP 8-bit Floating Point Specification 1.0 (2023)"
_QLORA = "Dettmers et al., QLoRA, 2023, arXiv:2305.14314"

NUMBER_FORMATS: dict[str, NumberFormat] = {
    f.name: f
    for f in (
        NumberFormat("fp32", 32, "none", _IEEE),
        NumberFormat(
            "tf32",
            32,
            "none: stored as FP32, rounded to 19 bits inside the tensor core",
            "NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020)",
        ),
        NumberFormat("fp16", 16, "none", _IEEE),
        NumberFormat("bf16", 16, "none", "Kalamkar et al., 2019, arXiv:1905.12322"),
        NumberFormat("fp8-e4m3", 8, "one FP32 per tensor, too small to count", _OCP_FP8),
        NumberFormat("fp8-e5m2", 8, "one FP32 per tensor, too small to count", _OCP_FP8),
        NumberFormat(
            "int8",
            8,
            "one FP32 per output row",
            "Dettmers et al., LLM.int8(), 2022, arXiv:2208.07339",
            row_bits=32,
            quantized=True,
        ),
        NumberFormat("nf4", 4, "one FP32 absmax per 64 values", _QLORA, block_values=64, scale_bits=32, quantized=True),
        NumberFormat(
            "nf4-dq",
            4,
            "one 8-bit absmax code per 64 values, one FP32 per 256 of those",
            _QLORA,
            block_values=64,
            scale_bits=8,
            superblock_blocks=256,
            superscale_bits=32,
            quantized=True,
        ),
        NumberFormat(
            "int4-g128",
            4,
            "one FP16 scale and one 4-bit zero point per 128 values",
            "Frantar et al., GPTQ, 2022, arXiv:2210.17323; Lin et al., AWQ, 2023, arXiv:2306.00978",
            block_values=128,
            scale_bits=20,
            quantized=True,
        ),
        NumberFormat(
            "mxfp4",
            4,
            "one 8-bit power of two per 32 values",
            "OCP Microscaling Formats (MX) Specification 1.0 (2023)",
            block_values=32,
            scale_bits=8,
            quantized=True,
        ),
    )
}
