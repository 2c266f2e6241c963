"""The roofline calculator: the least time that an operator takes on a device, and what sets it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.devices import OFFERED, Device, device
from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format as named_format
from ...memory.work import COMPUTE, MEMORY, Roof, Work
from ...questions.parameter import Parameter, whole
from ...questions.parameters import GPU_WITH_RATES, POWERS
from ...questions.question import Question
from ...questions.setups import Values
from ..drawing.pictures import Card
from ..drawing.rooflines import chart
from ..units import percent, si, three_digits
from .answers import CalculatorAnswer
from .calculator import Calculator
from .operators import DEFAULTS, LARGEST, OPERATORS, SIZES, CountedOperator, checked_sizes, operator

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
    def question(self) -> Question:
        return ROOFLINE

    @property
    def asked(self) -> dict[str, Any]:
        return {"gpu": self.gpu, "op": self.op, "number_format": self.number_format, **self.sizes}

    def lines(self) -> Iterator[str]:
        """One line per figure, numbers substituted."""
        work, roof, rule = self.work, self.roof, operator(self.op)
        flops, read, written = rule.terms(self.number_format, **self.sizes)
        computed, moved = si(work.flops, "FLOP"), si(work.bytes, "B")
        rate, bandwidth = si(roof.flops_per_s, "FLOP/s"), si(roof.bytes_per_s, "B/s")
        whose = f"{self.number_format}, dense" if rule.matrix else "FP32, ordinary cores"
        lines = {
            "FLOPs": (computed, flops),
            "read": (si(work.read_bytes, "B"), read),
            "written": (si(work.written_bytes, "B"), written),
            "intensity": (f"{three_digits(work.intensity)} FLOP/B", f"{computed} / {moved}"),
            "ridge": (f"{three_digits(roof.ridge)} FLOP/B", f"{rate} ({whose}) / {bandwidth}"),
            "by memory": (si(work.bytes / roof.bytes_per_s, "s"), f"{moved} / {bandwidth}"),
            "by compute": (si(work.flops / roof.flops_per_s, "s"), f"{computed} / {rate}"),
        }
        return (f"{name:<12}{value:>14}   {text}" for name, (value, text) in lines.items())

    def sentences(self) -> Iterator[str]:
        """What the limit is, what changes nothing, what helps, and what no roof counts, where it matters."""
        work, roof = self.work, self.roof
        yield from (_memory_limit if roof.bound(work) == MEMORY else _compute_limit)(self)
        if roof.seconds(work) < LAUNCH_SECONDS:
            yield "Starting the kernel takes longer than this floor."
        if work.bytes > self.gpu.capacity_bytes:
            size = si(work.bytes, "B")
            yield f"These tensors, {size}, are larger than the device's memory: no single call could do it."

    @property
    def cards(self) -> tuple[Card, ...]:
        return (chart(self.title, self.roof, {self.op: (self.work, None)}, height=300, decades=True),)

    @property
    def seconds_by_limit(self) -> tuple[float, float]:
        """What memory alone needs, and what compute alone needs."""
        return self.work.bytes / self.roof.bytes_per_s, self.work.flops / self.roof.flops_per_s

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
    where, number = device(gpu), named_format(number_format).name
    roof = Roof.of(where, _rate_format(where, op, number))
    rule, full = operator(op), checked_sizes(op, sizes)
    work = rule.work(number, **full)
    return RooflineAnswer(op, where, number, full, work, roof, _tokens_at_ridge(rule, roof, number, full))


def _rate_format(where: Device, op: str, number: str) -> str:
    """The format whose rate bounds `op`: its own for a matrix product, else FP32. Refuses what cannot be run."""
    rule = operator(op)
    if number not in rule.formats:
        known = ", ".join(rule.formats)
        raise WorkbookError(f"{op} in {number} is not counted here", known, f"pick one of these for {op}")
    if not rule.matrix:
        return "fp32"
    if number in where.peak_flops or not where.peak_flops:
        return number
    able = [known for known in rule.formats if known in where.peak_flops]
    others = [entry.name for entry in OFFERED if number in entry.peak_flops]
    expected = f"on this device: {', '.join(able)}"
    do = f"pick one of these formats, or a device with {number}: {', '.join(others[:3])} …"
    raise WorkbookError(f"{where.title} has no rate for matrix products in {number}", expected, do)


def _tokens_at_ridge(rule: CountedOperator, roof: Roof, number: str, sizes: Mapping[str, int]) -> int | None:
    """The fewest tokens at which compute is the limit. More tokens never lower an intensity, so halving finds it."""

    def past_ridge(tokens: int) -> bool:
        return roof.bound(rule.work(number, **{**sizes, "tokens": tokens})) == COMPUTE

    fewest = 1 + bisect_left(range(1, LARGEST + 1), True, key=past_ridge)
    return fewest if fewest <= LARGEST else None


def _memory_limit(answer: RooflineAnswer) -> Iterator[str]:
    by_memory, by_compute, crossing = *answer.seconds_by_limit, answer.tokens_at_ridge
    yield f"Memory is the limit: computing fills {percent(by_compute / by_memory)} of that time."
    wider = si(max(by_memory / 2, by_compute), "s")
    yield f"A card that computes twice as fast changes nothing here; twice the bandwidth makes it {wider}."
    if crossing is not None:
        yield f"From {crossing:,} tokens at once compute is the limit."
    else:
        never = f"No number of tokens up to {LARGEST:,} reaches the ridge with these sizes."
        yield operator(answer.op).cure or never


def _compute_limit(answer: RooflineAnswer) -> Iterator[str]:
    by_memory, by_compute, crossing = *answer.seconds_by_limit, answer.tokens_at_ridge
    yield f"Compute is the limit: moving bytes fills {percent(by_memory / by_compute)} of that time."
    faster = si(max(by_memory, by_compute / 2), "s")
    yield f"Twice the bandwidth changes nothing here; twice the FLOP rate makes it {faster}."
    if crossing and crossing > 1:
        yield f"Below {crossing:,} tokens memory is the limit."


def roofline(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `roofline(gpu="t4", op="layernorm", number_format="fp16")`.

    It opens on one decode step through an MLP projection of Llama-3-8B. Sizes that the operator does not take are
    hidden.
    """
    return Calculator(ROOFLINE, start)


def _ask(gpu: str, op: str, number_format: str, **sizes: int | None) -> RooflineAnswer:
    given = {size: value for size, value in sizes.items() if value is not None}
    return roofline_answer(gpu, op, number_format, **given)


def _means(said: dict[str, Any]) -> dict[str, Any]:
    """Controls keep sizes that the operator does not take."""
    unused = SIZES.keys() - set(operator(said["op"]).sizes)
    return {name: value for name, value in said.items() if name not in unused}


def _used(values: Values) -> set[str]:
    return {"gpu", "op", "number_format", *operator(values["op"]).sizes}


_CONTROLS = {
    "tokens": ("tokens", POWERS),
    "width": ("width", (512, 1024, 2048, 4096, 5120, 8192, 16384)),
    "outputs": ("outputs", (512, 1024, 4096, 8192, 11008, 14336, 28672, 128256)),
    "context": ("context, tokens", tuple(512 * power for power in POWERS[:9])),
    "heads": ("heads", (8, 16, 32, 64, 128)),
    "kv_heads": ("KV heads", POWERS[:8]),
}
ROOFLINE = Question(
    "op",
    "one operator under a GPU's roof: the least time, and what sets it",
    _ask,
    (
        replace(GPU_WITH_RATES, required=True),
        Parameter("op", ", ".join(OPERATORS), required=True, label="operator", steps=tuple(OPERATORS), start="linear"),
        Parameter(
            "number_format",
            "number format of the tensors: fp32, tf32, bf16, fp16, fp8-e4m3 …",
            "bf16",
            flag="--format",
            always=True,
            label="number format",
            steps=("fp32", "tf32", "bf16", "fp16", "fp8-e4m3"),
        ),
        *(
            Parameter(size, f"{words} (default {DEFAULTS[size]})", type=whole, start=DEFAULTS[size]).with_control(
                *_CONTROLS[size], DEFAULTS[size]
            )
            for size, words in SIZES.items()
        ),
    ),
    units="bytes, FLOPs and seconds",
    title="Roofline",
    asks="Does bandwidth or arithmetic set this operator's time?",
    invites="Move tokens to the right until compute is the limit. Then the same on another GPU.",
    controls=("gpu", "op", "number_format", *SIZES),
    front=("gpu", "op", "number_format", "tokens", "context"),
    used=_used,
    means=_means,
)
