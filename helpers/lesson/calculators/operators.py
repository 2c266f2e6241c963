"""The operators that the roofline calculator knows: the sizes each takes, its formats, its work and how it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.formats import number_format
from ...memory.work import Work, attention, copy, layernorm, matmul, softmax

Terms = tuple[str, str, str]  # of the FLOPs, the bytes read, the bytes written; arithmetic, then ", " and words
LARGEST = 2**24  # no tensor has a longer side, and a typing slip has
SIZES = {
    "tokens": "rows at once; of attention-decode, sequences at once",
    "width": "values in a token's vector",
    "outputs": "output features of the linear layer",
    "context": "tokens in each sequence's KV cache",
    "heads": "heads that the width is divided into",
    "kv_heads": "heads of K and V",
}
_STORED = ("fp32", "bf16", "fp16")
_FP8 = ("fp8-e4m3", "fp8-e5m2")
_MATRIX = ("fp32", "tf32", "bf16", "fp16")
_ROWS = ("tokens", "width")


@dataclass(frozen=True)
class CountedOperator:
    """`work(format, **sizes)` counts it, `terms(bytes per value, **sizes)` tells FLOPs, reads and writes as sums.

    `matrix`: its FLOPs are matrix products, done at the device's rate for the format. The others compute in FP32 on
    the ordinary cores, whatever they read and write. `cure` is what helps where memory is the limit for any size.
    """

    sizes: tuple[str, ...]
    formats: tuple[str, ...]
    matrix: bool
    work: Callable[..., Work]
    terms: Callable[..., Terms]
    cure: str = ""


def operator(name: str) -> CountedOperator:
    """The operator called `name`; WorkbookError with the nearest match otherwise."""
    return OPERATORS[require_name("operator", name, OPERATORS)]


def checked_sizes(name: str, sizes: Mapping[str, object]) -> dict[str, int]:
    """Exactly the sizes that the operator takes, each from 1 to LARGEST; those not given are Llama-3-8B's."""
    takes, given = operator(name).sizes, {}
    for size, value in sizes.items():
        if size not in takes:
            raise WorkbookError(f"{name} takes no {size}", ", ".join(takes), f"leave {size} out")
        given[size] = require_whole(size, value, most=LARGEST, do=f"pass {size} as an int: {SIZES[size]}")
    full = {size: given.get(size, DEFAULTS[size]) for size in takes}
    if "heads" in full and full["width"] % full["heads"]:
        what = f"width {full['width']:,} is not divided by {full['heads']} heads"
        raise WorkbookError(what, "heads that divide the width", "Llama-3-8B has width 4096 and 32 heads")
    return full


def _linear(number: str, tokens: int, width: int, outputs: int) -> Work:
    return matmul(tokens, outputs, width, number, _linear_output(number))


def _linear_output(number: str) -> str:
    """Products of FP8 are summed in FP32 and written in BF16, as torch's scaled matrix product does by default."""
    return "bf16" if number in _FP8 else number


def _linear_terms(number: str, tokens: int, width: int, outputs: int) -> Terms:
    out = _linear_output(number)
    wider = f", in {out}" if out != number else ""
    return (
        f"2 × {tokens:,} × {width:,} × {outputs:,}, a multiply and an add",
        f"({tokens:,} × {width:,} + {width:,} × {outputs:,}) × {_size(number)} B, input and weight",
        f"{tokens:,} × {outputs:,} × {_size(out)} B{wider}",
    )


def _on_rows(
    work: Callable[..., Work],
    flops: str,
    read: str = "{rows} × {size} B",
    written: str = "{rows} × {size} B",
    formats: tuple[str, ...] = _STORED,
) -> CountedOperator:
    """An operator that reads rows and writes rows, each once: what helps is fewer bytes."""

    def terms(number: str, tokens: int, width: int) -> Terms:
        sizes = {"rows": f"{tokens:,} × {width:,}", "tokens": f"{tokens:,}", "width": f"{width:,}"}
        counted, moved_in, moved_out = (text.format(**sizes, size=_size(number)) for text in (flops, read, written))
        return counted, moved_in, moved_out

    cure = "What helps is fewer bytes: fuse it with its neighbours, or store fewer bits."
    return CountedOperator(_ROWS, formats, False, work, terms, cure)


def _prefill(number: str, tokens: int, width: int, heads: int, kv_heads: int) -> Work:
    return attention(tokens, tokens, heads, width // heads, kv_heads, format_name=number)


def _prefill_terms(number: str, tokens: int, width: int, heads: int, kv_heads: int) -> Terms:
    t, kv = f"{tokens:,}", f"{kv_heads} × {width // heads}"
    return (
        f"4 × {t} × {t} × {width:,}, nothing off for the mask",
        f"({t} × {width:,} + 2 × {t} × {kv}) × {_size(number)} B, q, K, V",
        f"{t} × {width:,} × {_size(number)} B",
    )


def _decode(number: str, tokens: int, width: int, context: int, heads: int, kv_heads: int) -> Work:
    return attention(1, context, heads, width // heads, kv_heads, batch=tokens, format_name=number)


def _decode_terms(number: str, tokens: int, width: int, context: int, heads: int, kv_heads: int) -> Terms:
    t, kv = f"{tokens:,}", f"{kv_heads} × {width // heads}"
    return (
        f"4 × {t} × {context:,} × {width:,}, two products",
        f"({t} × {width:,} + 2 × {t} × {context:,} × {kv}) × {_size(number)} B, q, K, V",
        f"{t} × {width:,} × {_size(number)} B",
    )


def _size(number: str) -> int:
    return number_format(number).value_bytes


_FEWER_HEADS = (
    "More sequences at once do not help, for each reads K and V of its own; fewer heads of K and V, or fewer bits, do."
)
DEFAULTS = {"tokens": 1, "width": 4096, "outputs": 14336, "context": 8192, "heads": 32, "kv_heads": 8}
OPERATORS: dict[str, CountedOperator] = {
    "copy": _on_rows(
        lambda number, tokens, width: copy(tokens * width, number), "0, nothing is computed", formats=(*_STORED, *_FP8)
    ),
    "layernorm": _on_rows(
        lambda number, tokens, width: layernorm(tokens, width, number),
        "8 × {rows}, on the ordinary cores, in FP32",
        "({rows} + 2 × {width}) × {size} B, with weight and bias",
        "({rows} + 2 × {tokens}) × {size} B, with mean and 1/std",
    ),
    "softmax": _on_rows(
        lambda number, tokens, width: softmax(tokens, width, number), "5 × {rows}, on the ordinary cores, in FP32"
    ),
    "linear": CountedOperator((*_ROWS, "outputs"), (*_MATRIX, *_FP8), True, _linear, _linear_terms),
    "attention-prefill": CountedOperator((*_ROWS, "heads", "kv_heads"), _MATRIX, True, _prefill, _prefill_terms),
    "attention-decode": CountedOperator(
        (*_ROWS, "context", "heads", "kv_heads"), _MATRIX, True, _decode, _decode_terms, _FEWER_HEADS
    ),
}
