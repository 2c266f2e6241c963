"""The roof of this machine and operators under it: bytes and FLOPs by rule, time by the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
from torch.nn import functional

from ...catalog.errors import WorkbookError, require_name
from .. import work
from ..work import Roof, Work
from .clock import Run, in_turns, settle, usable

_aten = torch.ops.aten
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEAD_DIM = 64
Prepared = tuple[Work, Run]


@dataclass(frozen=True)
class ProbeSizes:
    """How large the probes are: streams of `values` elements, rows and a weight of `width`, attention over `tokens`."""

    values: int
    width: int
    heads: int
    tokens: int
    side: int


SIZES = {  # a stream is several times the last cache, a matrix product long enough to time
    "cpu": ProbeSizes(values=2**25, width=2048, heads=8, tokens=1024, side=1024),
    "cuda": ProbeSizes(values=2**29, width=8192, heads=32, tokens=8192, side=8192),
}


@dataclass(frozen=True)
class ProbePoint:
    """One operator, its work by rule, and the seconds it took."""

    name: str
    work: Work
    seconds: float

    @property
    def flops_per_s(self) -> float:
        return self.work.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.work.bytes / self.seconds

    def share_of(self, roof: Roof) -> float:
        """Which part of what the roof allows this point reaches: 1 is on the roof."""
        return roof.seconds(self.work) / self.seconds


@dataclass(frozen=True)
class MeasuredRoofline:
    """A measured roof, and the points measured with it."""

    roof: Roof
    points: dict[str, ProbePoint]


def default_format(device: str | None = None) -> str:
    """The number format to measure in: BF16 on a GPU that has it (FP16 before Ampere), FP32 on a CPU."""
    if usable(device).type == "cpu":
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp16"


def matrix_format(device: str | None = None) -> str:
    """The format in which this machine multiplies matrices fastest: 16 bits where it has units for them, else FP32."""
    if usable(device).type == "cuda":
        return default_format(device)
    units = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    if not any(getattr(torch.cpu, name, lambda: False)() for name in units):
        return "fp32"
    squares = {name: torch.ones(512, 512, dtype=DTYPES[name]) for name in ("fp32", "bf16")}
    products = {name: partial(torch.mm, square, square) for name, square in squares.items()}
    seconds = settle(products, "cpu", against="fp32")  # timed, for oneDNN may be kept from using what is there
    return min(seconds, key=lambda name: seconds[name])


def roofline(
    names: Iterable[str] | None = None, device: str | None = None, format_name: str | None = None
) -> MeasuredRoofline:
    """Measure the roof and, in the same passes, the operators in `names`: all of `probes_on` the device unless given.

    The roof is the fastest stream (read, copy, add; each writing elsewhere than it reads) and the fastest square
    matrix product. A point's share of the roof is the median over passes, each against the roof of the same pass, so
    that other work on the machine, which slows both, moves no point. Outputs are made beforehand: on a CPU, asking the
    system for fresh pages can cost more than the operator. Takes about five seconds. Raises WorkbookError.
    """
    setup = _probe_setup(device, format_name)
    known = probes_on(setup.device.type)
    wanted = [require_name("probe", name, known) for name in (known if names is None else names)]
    streams, products = _streams(setup), _products(setup)
    probes = {name: PROBES[name](setup) for name in wanted}
    prepared = {**streams, **products, **probes}
    with torch.inference_mode():
        passes = in_turns({name: run for name, (_, run) in prepared.items()}, setup.device)
    label = f"this {'GPU' if setup.device.type == 'cuda' else 'CPU'}, {setup.format_name}"
    roofs = []  # of each pass
    for seconds in passes:
        flops_per_s = max(counted.flops / seconds[name] for name, (counted, _) in products.items())
        bytes_per_s = max(counted.bytes / seconds[name] for name, (counted, _) in streams.items())
        roofs.append(Roof(flops_per_s, bytes_per_s, label))
    roof = Roof(max(one.flops_per_s for one in roofs), max(one.bytes_per_s for one in roofs), label)
    points = {}
    for name, (counted, _) in probes.items():
        share = median(one.seconds(counted) / seconds[name] for one, seconds in zip(roofs, passes, strict=True))
        points[name] = ProbePoint(name, counted, roof.seconds(counted) / share)
    return MeasuredRoofline(roof, points)


@dataclass(frozen=True)
class ProbeSetup:
    """Where and in which format, how large, and three streams of memory that the probes share."""

    device: torch.device
    dtype: torch.dtype
    format_name: str
    sizes: ProbeSizes
    x: torch.Tensor
    y: torch.Tensor
    z: torch.Tensor

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Input and output of an operator on rows: half of two streams, seen as matrices."""
        half = self.sizes.values // 2
        return self.x[:half].view(-1, self.sizes.width), self.y[:half].view(-1, self.sizes.width)


def _probe_setup(device: str | None, format_name: str | None) -> ProbeSetup:
    where = usable(device)
    name = require_name("number format that is timed here", format_name or default_format(where.type), DTYPES)
    if name == "fp16" and where.type == "cpu":
        raise WorkbookError("CPUs do not compute in FP16", "fp32 or bf16 on a CPU", "pass format_name='fp32'")
    sizes = SIZES[where.type]
    if where.type == "cuda":  # all of it takes four streams of 2-byte values: a small card gets shorter ones
        while 10 * sizes.values > torch.cuda.mem_get_info(where)[0]:
            sizes = replace(sizes, values=sizes.values // 2)
    streams = (torch.ones(sizes.values, dtype=DTYPES[name], device=where) for _ in range(3))
    return ProbeSetup(where, DTYPES[name], name, sizes, *streams)


def _streams(setup: ProbeSetup) -> dict[str, Prepared]:
    x, y, z, values, name = setup.x, setup.y, setup.z, setup.sizes.values, setup.format_name
    moved = work.copy(values, name)
    return {
        "read stream": (Work(values, moved.read_bytes, 0), x.sum),
        "copy stream": (moved, lambda: y.copy_(x)),
        "add stream": (work.pointwise(values, name, inputs=2), lambda: torch.add(x, z, out=y)),
    }


def _products(setup: ProbeSetup) -> dict[str, Prepared]:
    prepared: dict[str, Prepared] = {}
    for side in (setup.sizes.side // 2, setup.sizes.side, setup.sizes.side * 3 // 2):
        a, b, out = (setup.random(side, side) for _ in range(3))
        run = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)  # noqa: E731 - bound here, one per side
        prepared[f"product of {side}"] = work.matmul(side, side, side, setup.format_name), run
    return prepared


def _copy(setup: ProbeSetup) -> Prepared:
    x, y = setup.rows()
    return work.copy(x.numel(), setup.format_name), lambda: y.copy_(x)


def _layernorm(setup: ProbeSetup) -> Prepared:
    """Into a new tensor, for PyTorch 2.13 has no other layernorm: its `out=` makes a new tensor too, and copies it."""
    x, _ = setup.rows()
    width = x.shape[1]
    weight, bias = setup.random(width), setup.random(width)
    run = partial(functional.layer_norm, x, [width], weight, bias)
    return work.layernorm(len(x), width, setup.format_name), run


def _softmax(setup: ProbeSetup) -> Prepared:
    x, y = setup.rows()
    rows, width = x.shape
    return work.softmax(rows, width, setup.format_name), lambda: _aten._softmax.out(x, -1, False, out=y)


def _gemm(setup: ProbeSetup) -> Prepared:
    """A linear layer over many tokens."""
    m, n, k = setup.sizes.side // 2, setup.sizes.side * 2, setup.sizes.side
    x, weight, out = setup.random(m, k), setup.random(n, k), setup.random(m, n)
    return work.matmul(m, n, k, setup.format_name), lambda: torch.mm(x, weight.t(), out=out)


def _gemv(setup: ProbeSetup) -> Prepared:
    """A linear layer over one token, as a decode step has it; the weight is larger than any cache."""
    weight = setup.z.view(-1, setup.sizes.width)
    n, k = weight.shape
    x = setup.random(1, k)
    return work.matmul(1, n, k, setup.format_name), lambda: functional.linear(x, weight)


def _attention(setup: ProbeSetup) -> Prepared:
    """Every token attends to every token; the score matrix stays on the chip."""
    sizes = setup.sizes
    q, k, v = (setup.random(1, sizes.heads, sizes.tokens, HEAD_DIM) for _ in range(3))
    counted = work.attention(sizes.tokens, sizes.tokens, sizes.heads, HEAD_DIM, format_name=setup.format_name)
    return counted, lambda: functional.scaled_dot_product_attention(q, k, v)


PROBES: dict[str, Callable[[ProbeSetup], Prepared]] = {
    "copy": _copy,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "GEMV": _gemv,
    "attention": _attention,
    "GEMM": _gemm,
}


def probes_on(device_type: str) -> tuple[str, ...]:
    """Names of the operators that are timed there: all of them on a GPU, all but layernorm on a CPU.

    Layernorm makes its output anew. On a GPU that is the memory of the run before. On a CPU, an output of 64 MiB is
    16,385 fresh pages in each run (glibc 2.36), which would be timed with it.
    """
    return tuple(name for name in PROBES if device_type != "cpu" or name != "layernorm")
