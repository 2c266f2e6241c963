"""What an operator asks of the machine: FLOPs and bytes, by rule; and the roof that limits both. No torch.

The bytes are those that must pass between memory and the chip when nothing but this operator is cached: each input
read once, each output written once. A kernel may move more (that is its own fault), never less, unless its data
was still in a cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..catalog.devices import Device, device
from ..catalog.errors import WorkbookError, require_number, require_whole
from ..catalog.formats import number_format

MEMORY, COMPUTE = "memory", "compute"


@dataclass(frozen=True)
class Work:
    """FLOPs done, bytes read, bytes written. Two of them add up to the work of one after the other.

    >>> add = Work(flops=1000, read_bytes=8000, written_bytes=4000)
    >>> add.bytes, round(add.intensity, 3), (add + add).bytes
    (12000, 0.083, 24000)
    """

    flops: int
    read_bytes: int
    written_bytes: int

    def __post_init__(self) -> None:
        _require_whole(0, flops=self.flops, read_bytes=self.read_bytes, written_bytes=self.written_bytes)
        require_whole("bytes, read and written together,", self.bytes)

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte moved."""
        return self.flops / self.bytes

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops, self.read_bytes + other.read_bytes, self.written_bytes + other.written_bytes
        )


@dataclass(frozen=True)
class Roof:
    """What a machine can do at best: FLOPs per second in one number format, bytes per second of its memory.

    Williams, Waterman and Patterson, Roofline, 2009.

    >>> h100 = Roof.of("h100", "bf16")
    >>> round(h100.ridge), h100.bound(matmul(1, 4096, 4096)), h100.bound(matmul(4096, 4096, 4096))
    (295, 'memory', 'compute')
    """

    flops_per_s: float
    bytes_per_s: float
    name: str = ""

    def __post_init__(self) -> None:
        for part in ("flops_per_s", "bytes_per_s"):
            rate, expected, do = getattr(self, part), "a rate above zero, per second", "3.35 TB/s is 3.35e12"
            require_number(f"{part} of the roof", rate, below=1e24, expected=expected, do=do)

    @classmethod
    def of(cls, gpu: str | Device, format_name: str) -> Roof:
        """The roof on the datasheet of a catalogue device; WorkbookError where it has no rate for the format."""
        where = device(gpu)
        return cls(where.flops_per_s(format_name), where.memory_bytes_per_s, f"{where.title}, {format_name}")

    @property
    def ridge(self) -> float:
        """The intensity, in FLOPs per byte, from which on compute is the limit."""
        return self.flops_per_s / self.bytes_per_s

    def seconds(self, work: Work) -> float:
        """The least time `work` can take: its bytes or its FLOPs, whichever takes longer."""
        return max(work.bytes / self.bytes_per_s, work.flops / self.flops_per_s)

    def bound(self, work: Work) -> str:
        """What limits `work` here: "memory" or "compute"."""
        return COMPUTE if work.flops / self.flops_per_s > work.bytes / self.bytes_per_s else MEMORY

    def attainable(self, intensity: float) -> float:
        """FLOPs per second that the roof allows at an intensity."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


def copy(values: int, format_name: str = "fp32") -> Work:
    """y = x: one read, one write, nothing computed."""
    return pointwise(values, format_name, inputs=1, flops_per_value=0)


def pointwise(values: int, format_name: str = "fp32", inputs: int = 1, flops_per_value: int = 1) -> Work:
    """One kernel over `inputs` tensors of `values` elements: each is read, one result is written.

    Adding two FP32 tensors of a million: 8 MB read, 4 MB written, a million FLOPs.
    """
    _require_whole(values=values, inputs=inputs)
    size = _stored(values, format_name)
    return Work(flops_per_value * values, inputs * size, size)


def layernorm(rows: int, width: int, format_name: str = "fp32") -> Work:
    """LayerNorm with scale and shift over rows of `width`, fused: read once, written once.

    8 FLOPs a value by convention: mean and variance (4), subtract, divide, scale, shift. Weight and bias are read too;
    so are mean and 1/std written, which training keeps: 2 values a row.
    """
    _require_whole(rows=rows, width=width)
    read, written = rows * width + 2 * width, rows * width + 2 * rows
    return Work(8 * rows * width, _stored(read, format_name), _stored(written, format_name))


def softmax(rows: int, width: int, format_name: str = "fp32") -> Work:
    """Softmax over rows of `width`, fused. 5 FLOPs a value by convention: max, subtract, exp, sum, divide."""
    _require_whole(rows=rows, width=width)
    return pointwise(rows * width, format_name, flops_per_value=5)


def matmul(m: int, n: int, k: int, format_name: str = "bf16", out_format: str | None = None) -> Work:
    """(m, k) times (k, n): 2mnk FLOPs, a multiply and an add for each of the mnk products.

    A linear layer is m = tokens, k = inputs, n = outputs; m = 1 is one decode step, a GEMV, whose bytes are the
    weight's. 4096 cubed in BF16: 137 GFLOP and 101 MB, 1365 FLOPs a byte.
    """
    _require_whole(m=m, n=n, k=k)
    read_bytes = _stored(m * k, format_name) + _stored(k * n, format_name)
    return Work(2 * m * n * k, read_bytes, _stored(m * n, out_format or format_name))


def attention(
    queries: int,
    context: int,
    heads: int,
    head_dim: int,
    kv_heads: int | None = None,
    batch: int = 1,
    format_name: str = "bf16",
) -> Work:
    """Attention whose score matrix never reaches memory (FlashAttention, SDPA): q, K and V read, the output written.

    4 · batch · heads · queries · context · head_dim FLOPs, two matrix products, as PyTorch's flop_counter counts
    them: nothing is taken off for a causal mask. K and V are read once per `kv_heads` (all heads if None).
    One query over 8192 tokens with Llama-3-8B's heads (32, 8 of K and V, width 128): 134 MFLOP, 33.6 MB.
    """
    shared = heads if kv_heads is None else kv_heads
    _require_whole(queries=queries, context=context, heads=heads, head_dim=head_dim, batch=batch, kv_heads=shared)
    if heads % shared:
        do = "Llama-3-8B has heads=32, kv_heads=8"
        raise WorkbookError(f"{heads} heads share {shared} heads of K and V", "kv_heads that divide heads", do)
    q = _stored(batch * heads * queries * head_dim, format_name)
    kv = _stored(2 * batch * shared * context * head_dim, format_name)
    return Work(4 * batch * heads * queries * context * head_dim, q + kv, q)


def _require_whole(least: int = 1, /, **sizes: int) -> None:
    for name, value in sizes.items():
        require_whole(name, value, least)


def _stored(values: int, format_name: str) -> int:
    """Bytes of a tensor as an operator reads it; a format with scales is a checkpoint's, and no operand."""
    one = number_format(format_name)
    if one.quantized:
        what = f"{one.name} is a format of weights, with scales beside the values"
        do = "add up the Work yourself: Work(flops, read_bytes, written_bytes)"
        raise WorkbookError(what, "a format of an operand: fp32, bf16, fp16, fp8-e4m3", do)
    return one.storage_bytes(values)
