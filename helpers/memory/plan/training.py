"""One way to train on some of the cards: how the model lies on them, the bytes of the rank that needs most, its step.

Two engines have a closed form. `ZeRO` (data parallel, stages 0 to 3, offload, adapters) is `budget.train`, and Megatron
(tensor, pipeline, context and data parallel) is `closed_form.megatron`. A `Layout` names one way; nothing is decided
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...catalog.adapters import Adapter
from ...catalog.devices import Device
from ...catalog.setup import TrainSetup
from ...catalog.shape import ModelShape
from ..closed_form import budget, megatron, zero
from ..closed_form.breakdown import Breakdown, TextEnum
from ..closed_form.recompute import StepFlops, step_flops

ADAPTERS = {"lora": Adapter("lora", rank=16, targets="all-linear"), "qlora": Adapter("lora", rank=16, targets="all-linear", base="nf4-dq")}


class Engine(TextEnum):
    """Whose step it is."""

    ZERO = "ZeRO"
    MEGATRON = "Megatron"


@dataclass(frozen=True)
class Layout:
    """How a step is divided. `ranks` is the product of the four degrees.

    A rank reads `micro_batches` of `micro_batch` sequences one after the other; `precision`, `optimizer`, `zero`,
    `offload` and `method` are ZeRO's, Megatron has its own (BF16 weights, FP32 masters, states divided by `data`).
    """

    engine: Engine
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    zero: int = 0
    precision: str = "megatron-bf16"
    optimizer: str = "adamw-fused"
    method: str = "full"
    offload: bool = False
    checkpointing: str = "none"
    micro_batch: int = 1
    micro_batches: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def sequences(self) -> int:
        """Sequences of a batch."""
        return self.data * self.micro_batch * self.micro_batches

    @property
    def compromises(self) -> tuple[str, ...]:
        """What this way gives up in the result, for money or memory: the reader has to agree."""
        found = []
        if self.optimizer.startswith(("adamw-8bit", "lion-8bit")):
            found.append("optimizer states in 8 bits")
        if self.precision in ("bf16", "torchao-fp8"):
            found.append("no FP32 copy of the weights, so small updates may round to nothing")
        if self.method != "full":
            found.append("adapters alone are trained")
        if self.method == "qlora":
            found.append("the frozen weights are in 4 bits")
        return tuple(found)

    def __str__(self) -> str:
        degrees = [("TP", self.tensor), ("PP", self.pipeline), ("CP", self.context), ("DP", self.data)]
        named = " x ".join(f"{name} {size}" for name, size in degrees if size > 1) or "one card"
        if self.engine is Engine.MEGATRON:
            return f"{named}, ZeRO-1" if self.data > 1 else named
        name = f"ZeRO-{self.zero}" if self.zero else "DDP" if self.data > 1 else "one card"
        return f"{name} x {self.data}" if self.data > 1 else name


def train_setup(layout: Layout, model: ModelShape, sequence: int) -> TrainSetup:
    """The ZeRO engine's setup, which `budget.train`, `trace.train` and `workbook estimate train` take as it is."""
    return TrainSetup(
        model,
        precision=layout.precision,
        optimizer=layout.optimizer,
        micro_batch=layout.micro_batch,
        sequence=sequence,
        checkpointing=layout.checkpointing,
        zero=layout.zero,
        ranks=layout.data,
        offload_optimizer="cpu" if layout.offload else "none",
        micro_batches=layout.micro_batches,
        adapter=ADAPTERS.get(layout.method),
    )


def megatron_setup(layout: Layout, model: ModelShape, sequence: int) -> megatron.MegatronSetup:
    """Megatron's setup. Of a sequence each context-parallel rank has its share, and the states are divided by both."""
    return megatron.MegatronSetup(
        model,
        tensor_parallel=layout.tensor,
        pipeline=layout.pipeline,
        data_parallel=layout.data,
        context_parallel=layout.context,
        micro_batches=layout.micro_batches,
        micro_batch=layout.micro_batch,
        sequence=sequence,
        recompute=layout.checkpointing,
    )


@dataclass(frozen=True)
class Need:
    """What the rank that needs most holds at its peak: bytes by part, at which moment, on which stage, and the host."""

    parts: Breakdown
    moment: str
    stage: int = 0
    host: Breakdown = Breakdown()

    @property
    def total(self) -> int:
        return self.parts.total


def need(layout: Layout, model: ModelShape, sequence: int, device: Device) -> Need:
    """Bytes of the rank that needs most, from the closed form of its engine."""
    if layout.engine is Engine.MEGATRON:
        found = megatron.train(megatron_setup(layout, model, sequence), device)
        return Need(found.parts, found.peak.name, found.stage)
    setup = train_setup(layout, model, sequence)
    step = budget.train(setup, device)
    return Need(step.parts, step.peak.name, host=zero.held(setup).host if layout.offload else Breakdown())


@lru_cache(maxsize=4096)
def held_bytes(layout: Layout, model: ModelShape) -> int:
    """Weights, gradients and states of a rank: no step of this layout needs less. Quick, to drop hopeless layouts."""
    if layout.engine is Engine.MEGATRON:
        shared = layout.tensor * layout.pipeline
        per = megatron.BF16 + megatron.FP32
        return model.parameters * per // shared + model.parameters * megatron.STATES // (layout.ranks)
    if layout.method != "full":
        return 0
    held = zero.held(train_setup(layout, model, 1)).device
    return held.total


@lru_cache(maxsize=256)
def sequence_flops(model: ModelShape, sequence: int, checkpointing: str, method: str = "full") -> StepFlops:
    """FLOPs of one sequence, forward and backward. With adapters, frozen weights need no gradient of their own."""
    flops = step_flops(TrainSetup(model, precision="bf16", sequence=sequence, checkpointing=checkpointing))
    if method == "full":
        return flops
    return StepFlops(flops.forward, flops.backward - flops.forward, flops.recomputed)


def parameters_sent(layout: Layout, model: ModelShape) -> tuple[int, int]:
    """Bytes that a rank sends in a step for the weights and their gradients: (between steps, in every micro-batch).

    Gradients in the recipe's width and weights in theirs, on a ring, as `zero.traffic` counts them flat by flat.
    """
    recipe = train_setup(layout, model, 1).precision_recipe if layout.engine is Engine.ZERO else None
    weight, grad = (recipe.weight_bytes, recipe.grad_bytes) if recipe else (megatron.BF16, megatron.FP32)
    group = layout.data * layout.context
    values = model.parameters // (layout.tensor * layout.pipeline)
    if layout.method != "full":
        values = ADAPTERS[layout.method].parameters(model)
    ring = (group - 1) / group
    if layout.zero == 0 and layout.engine is Engine.ZERO:
        return int(2 * values * grad * ring), 0
    if layout.zero == 2:
        return int(values * weight * ring), int(values * grad * ring)
    if layout.zero == 3:
        return 0, int(values * (2 * weight + grad) * ring)
    return int(values * (weight + grad) * ring), 0
