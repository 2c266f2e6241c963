"""The roofline calculator: the least time that an operator takes on a device, and what sets it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...catalog.devices import DEVICES, Device, device
from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format as named_format
from ...memory.closed_form.work import COMPUTE, MEMORY, Roof, Work
from ..drawing.pictures import Card
from ..drawing.rooflines import chart
from ..units import percent, si, three_digits
from .calculator import Calculator, CalculatorAnswer, Values
from .operators import DEFAULTS, LARGEST, OPERATORS, Operator, checked_sizes, operator

LAUNCH_SECONDS = 1e-6  # below it no kernel ends: CUDA takes microseconds to start one


@dataclass(frozen=True)
class RooflineAnswer(CalculatorAnswer):
    """An operator under a roof; `tokens_at_ridge` are the fewest that compute limits, None if none up to LARGEST."""

    op: str
    gpu: Device
    number_format: str
    sizes: Mapping[str, int]
    work: Work
    roof: Roof
    tokens_at_ridge: int | None

    @property
    def title(self) -> str:
        seconds = si(self.roof.seconds(self.work), "s")
        return f"{self.op}, {self.gpu.title}: {seconds} at least, {self.roof.bound(self.work)}-bound"

    @property
    def formula(self) -> tuple[str, ...]:
        return tuple(_formula(operator(self.op), self.roof, self.work, self.number_format, self.sizes))

    @property
    def sentence(self) -> str:
        limit = _sentence(operator(self.op), self.roof, self.work, self.tokens_at_ridge)
        return " ".join((limit, *_limits(self.gpu, self.roof, self.work)))

    @property
    def cards(self) -> tuple[Card, ...]:
        return (chart(self.title, self.roof, {self.op: (self.work, None)}, height=300, decades=True),)

    @property
    def figures(self) -> dict[str, Any]:
        work, roof = self.work, self.roof
        return {
            "flops": work.flops,
            "read_bytes": work.read_bytes,
            "written_bytes": work.written_bytes,
            "intensity": work.intensity,
            "ridge": roof.ridge,
            "seconds": roof.seconds(work),
            "bound": roof.bound(work),
            "tokens_at_ridge": self.tokens_at_ridge,
        }


def roofline_answer(gpu: str | Device, op: str, number_format: str = "bf16", **sizes: int) -> RooflineAnswer:
    """The floor of `op` on `gpu`: nothing is in a cache, every rate is the datasheet's, a launch costs nothing.

    `sizes` are those that the operator takes (`operators.OPERATORS`); those left out are Llama-3-8B's. Matrix products
    run at the device's rate for `number_format`; all else computes at its FP32 rate and moves bytes of the format.
    WorkbookError for an unknown name, a size the operator does not take, a format it or the device cannot run in.

    >>> answer = roofline_answer("h100", "linear", "bf16", tokens=1, width=4096, outputs=4096)
    >>> round(answer.figures["seconds"] * 1e6, 1), answer.figures["bound"], answer.tokens_at_ridge
    (10.0, 'memory', 346)
    """
    where, rule, number = device(gpu), operator(op), named_format(number_format).name
    roof = Roof.of(where, _rate_format(where, op, number))
    full = checked_sizes(op, sizes)
    work = rule.work(number, **full)
    return RooflineAnswer(op, where, number, full, work, roof, _tokens_at_ridge(rule, roof, number, full))


def _rate_format(where: Device, op: str, number: str) -> str:
    """The format whose rate bounds `op`: its own for a matrix product, else FP32. Refuses what cannot be run."""
    rule = operator(op)
    if number not in rule.formats:
        raise WorkbookError(
            f"{op} in {number} is not counted here", ", ".join(rule.formats), f"pick one of these for {op}"
        )
    if not rule.matrix or number in where.peak_flops or not where.peak_flops:
        return number if rule.matrix else "fp32"
    able = [known for known in rule.formats if known in where.peak_flops]
    others = [entry.name for entry in DEVICES.values() if number in entry.peak_flops]
    raise WorkbookError(
        f"{where.title} has no rate for matrix products in {number}",
        f"on this device: {', '.join(able)}",
        f"pick one of these formats, or a device with {number}: {', '.join(others[:3])} …",
    )


def _tokens_at_ridge(rule: Operator, roof: Roof, number: str, sizes: Mapping[str, int]) -> int | None:
    """The fewest tokens at which compute is the limit. More tokens never lower an intensity, so halving finds it."""

    def past_ridge(tokens: int) -> bool:
        return roof.bound(rule.work(number, **{**sizes, "tokens": tokens})) == COMPUTE

    candidates = range(1, LARGEST + 1)
    at = bisect_left(candidates, True, key=past_ridge)
    return candidates[at] if at < len(candidates) else None


def _formula(rule: Operator, roof: Roof, work: Work, number: str, sizes: Mapping[str, int]) -> Iterator[str]:
    """One line per figure, numbers substituted."""
    flops, read, written = rule.terms(number, **sizes)
    rate, bandwidth = si(roof.flops_per_s, "FLOP/s"), si(roof.bytes_per_s, "B/s")
    whose = f"{number}, dense" if rule.matrix else "FP32, ordinary cores"
    lines = {
        "FLOPs": (si(work.flops, "FLOP"), flops),
        "read": (si(work.read_bytes, "B"), read),
        "written": (si(work.written_bytes, "B"), written),
        "intensity": (f"{three_digits(work.intensity)} FLOP/B", f"{si(work.flops, 'FLOP')} / {si(work.bytes, 'B')}"),
        "ridge": (f"{three_digits(roof.ridge)} FLOP/B", f"{rate} ({whose}) / {bandwidth}"),
        "by memory": (si(work.bytes / roof.bytes_per_s, "s"), f"{si(work.bytes, 'B')} / {bandwidth}"),
        "by compute": (si(work.flops / roof.flops_per_s, "s"), f"{si(work.flops, 'FLOP')} / {rate}"),
    }
    return (f"{name:<12}{value:>14}   {text}" for name, (value, text) in lines.items())


def _sentence(rule: Operator, roof: Roof, work: Work, crossing: int | None) -> str:
    """What the limit is, what changes nothing, and what helps."""
    by_memory, by_compute = work.bytes / roof.bytes_per_s, work.flops / roof.flops_per_s
    if roof.bound(work) == MEMORY:
        wider = si(max(by_memory / 2, by_compute), "s")
        limit = (
            f"Memory is the limit: computing fills {percent(by_compute / by_memory)} of that time. A card that "
            f"computes twice as fast changes nothing here; twice the bandwidth makes it {wider}."
        )
        more = rule.cure if crossing is None and rule.cure else _more_tokens(crossing)
    else:
        faster = si(max(by_memory, by_compute / 2), "s")
        limit = (
            f"Compute is the limit: moving bytes fills {percent(by_memory / by_compute)} of that time. Twice the "
            f"bandwidth changes nothing here; twice the FLOP rate makes it {faster}."
        )
        more = f"Below {crossing:,} tokens memory is the limit." if crossing and crossing > 1 else ""
    return f"{limit} {more}".rstrip()


def _limits(where: Device, roof: Roof, work: Work) -> Iterator[str]:
    """What no roof counts, where it matters."""
    if roof.seconds(work) < LAUNCH_SECONDS:
        yield "Starting the kernel takes longer than this floor."
    if work.bytes > where.capacity_bytes:
        yield f"These tensors, {si(work.bytes, 'B')}, are larger than the device's memory: no single call could do it."


def _more_tokens(crossing: int | None) -> str:
    if crossing is None:
        return f"No number of tokens up to {LARGEST:,} reaches the ridge with these sizes."
    return f"From {crossing:,} tokens at once compute is the limit."


def roofline(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `roofline(gpu="t4", op="layernorm", number_format="fp16")`.

    It opens on one decode step through an MLP projection of Llama-3-8B. Sizes that the operator does not take are
    hidden.
    """
    powers = [2**power for power in range(17)]
    options = {
        "gpu": ("GPU", tuple(name for name, entry in DEVICES.items() if entry.peak_flops)),
        "op": ("operator", list(OPERATORS)),
        "number_format": ("number format", ["fp32", "tf32", "bf16", "fp16", "fp8-e4m3"]),
        "tokens": ("tokens", powers),
        "width": ("width", [512, 1024, 2048, 4096, 5120, 8192, 16384]),
        "outputs": ("outputs", [512, 1024, 4096, 8192, 11008, 14336, 28672, 128256]),
        "context": ("context", [512 * power for power in powers[:9]]),
        "heads": ("heads", [8, 16, 32, 64, 128]),
        "kv_heads": ("KV heads", powers[:8]),
    }
    first = {"gpu": "h100-80gb", "op": "linear", "number_format": "bf16", **DEFAULTS, **start}
    return Calculator(_compute, options, first, _used)


def _used(values: Values) -> set[str]:
    return {"gpu", "op", "number_format", *operator(values["op"]).sizes}


def _compute(gpu: str, op: str, number_format: str, **sizes: int) -> RooflineAnswer:
    takes = operator(op).sizes
    return roofline_answer(gpu, op, number_format, **{size: sizes[size] for size in takes})
