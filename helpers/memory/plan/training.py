"""One way to train on some of the cards: how the model lies on them, the bytes of the rank that needs most, its step.

Three engines have a closed form. `ZeRO` (data parallel, stages 0 to 3, offload, adapters) is `budget.train`, `FSDP2`
(PyTorch's shards of everything) has `fsdp` in its split, and Megatron (tensor, pipeline, context, expert and data
parallel) is `step.ranks.megatron`. A `Layout` names one way; nothing is decided here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ...catalog.adapters import Adapter
from ...catalog.devices import Device
from ...catalog.shape import ModelShape
from ...catalog.split import ONE_GPU, Split
from ...catalog.train_setup import TrainSetup
from .. import budget
from ..breakdown import Breakdown, TextEnum
from ..layer_work import attention_flops
from ..step.flops import FUSED_BACKWARD, StepFlops, step_flops
from ..step.ranks import megatron, zero
from ..step.ranks.megatron_layer import expert_weights
from ..step.refusals import attention_of
from ..work import matmul

BASES = {"lora": None, "qlora": "nf4-dq"}  # of adapters

SHARDED = 16  # bytes a parameter, FP32 all: weight, gradient and Adam's two states
TORCHTITAN = {  # the flavors of what its model registry calls "llama3"
    "llama-3-8b": "8B",
    "llama-3.1-8b": "8B",
    "llama-3-70b": "70B",
    "llama-3.1-70b": "70B",
    "llama-3.1-405b": "405B",
}


class StepEngine(TextEnum):
    """Whose step it is."""

    ZERO = "ZeRO"
    FSDP2 = "FSDP2"
    MEGATRON = "Megatron"


@dataclass(frozen=True)
class Layout:
    """How a step is divided. `ranks` is the product of the first four degrees; `expert` of those that share data have
    a layer's experts between them.

    A rank reads `micro_batches` of `micro_batch` sequences one after the other; `precision`, `optimizer`, `zero`,
    `offload` and `method` are ZeRO's, Megatron has its own (BF16 weights, FP32 masters, states divided by `data`).
    FSDP2 divides all by `data`, and `reduced` is the format in which it adds gradients over the ranks.
    """

    engine: StepEngine
    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    zero: int = 0
    precision: str = "megatron-bf16"
    optimizer: str = "adamw-fused"
    method: str = "full"
    offload: bool = False
    reduced: str = "fp32"
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
        if self.precision in ("bf16", "torchao-fp8") and self.method == "full":
            found.append("no FP32 copy of the weights, so small updates may round to nothing")
        if self.method != "full":
            found.append("adapters alone are trained")
        if self.method == "qlora":
            found.append("the frozen weights are in 4 bits")
        return tuple(found)

    def __str__(self) -> str:
        degrees = [("TP", self.tensor), ("PP", self.pipeline), ("CP", self.context), ("DP", self.data)]
        named = " x ".join(f"{name} {size}" for name, size in degrees if size > 1) or "one card"
        named += f", EP {self.expert}" if self.expert > 1 else ""
        if self.engine is StepEngine.MEGATRON:
            return f"{named}, ZeRO-1" if self.data > 1 else named
        if self.engine is StepEngine.FSDP2:
            return f"FSDP2 x {self.data}"
        name = f"ZeRO-{self.zero}" if self.zero else "DDP" if self.data > 1 else "one card"
        return f"{name} x {self.data}" if self.data > 1 else name


def adapter_of(method: str, model: ModelShape) -> Adapter | None:
    """Rank 16 on all linear layers; where experts are stacked, which peft takes for linear layers too, on attention's.

    None where every weight is trained.
    """
    if method not in BASES:
        return None
    names = tuple(linear.name for linear in model.layers[0].attention.linears)
    return Adapter("lora", rank=16, targets=names if model.has_experts else "all-linear", base=BASES[method])


def _split_of(layout: Layout) -> Split:
    if layout.engine is StepEngine.ZERO:
        return Split(layout.data, layout.zero)
    return Split(fsdp=layout.data, reduced=layout.reduced) if layout.engine is StepEngine.FSDP2 else ONE_GPU


def train_setup(layout: Layout, model: ModelShape, sequence: int) -> TrainSetup:
    """The ZeRO engine's setup, which `budget.train`, `trace.train` and `workbook estimate train` take as it is.

    Of Megatron it is the recipe and the model alone: `megatron_setup` has the ranks.
    """
    return TrainSetup(
        model,
        precision=layout.precision,
        optimizer=layout.optimizer,
        micro_batch=layout.micro_batch,
        sequence=sequence,
        checkpointing=layout.checkpointing,
        split=_split_of(layout),
        offload_optimizer="cpu" if layout.offload else "none",
        micro_batches=layout.micro_batches,
        adapter=adapter_of(layout.method, model),
        attention=attention_of(model),
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
        expert_parallel=layout.expert,
    )


@dataclass(frozen=True)
class Need:
    """What the rank that needs most holds at its peak: bytes by part, at which moment, on which stage, and the host."""

    parts: Breakdown
    moment: str
    stage: int = 0
    host: Breakdown = field(default_factory=Breakdown)

    @property
    def total(self) -> int:
        return self.parts.total


class Job:
    """A model and the length of its sequences, with what every layout asks about them computed once."""

    def __init__(self, model: ModelShape, sequence: int) -> None:
        self.model, self.sequence = model, sequence
        self.parameters = model.parameters
        self.experts = sum(map(expert_weights, model.layers))
        self._flops: dict[tuple[str, str, StepEngine], StepFlops] = {}
        self._held: dict[Layout, int] = {}

    def flops(self, layout: Layout) -> StepFlops:
        """FLOPs of one sequence, without those of pairs that a mask hides: fused kernels skip their blocks."""
        key = layout.checkpointing, layout.method, layout.engine
        if key not in self._flops:
            alone = Layout(StepEngine.ZERO, precision="bf16", checkpointing=layout.checkpointing, method=layout.method)
            setup = train_setup(alone, self.model, self.sequence)
            flops = step_flops(setup)
            masked = self._masked() if setup.attention == "sdpa" else 0
            backward = flops.backward - int(FUSED_BACKWARD * masked)
            again = self._again(flops, layout.engine) - masked if flops.recomputed else 0
            self._flops[key] = StepFlops(flops.forward - masked, backward, again)
        return self._flops[key]

    def _again(self, flops: StepFlops, engine: StepEngine) -> int:
        """Megatron runs a whole layer again; PyTorch stops before its last product, whose result nobody reads."""
        if engine is not StepEngine.MEGATRON:
            return flops.recomputed
        return flops.forward - matmul(self.sequence, self.model.vocab, self.model.embedding_width).flops

    def _masked(self) -> int:
        """What fused attention skips of all pairs in a forward: behind the causal mask, and outside of windows."""
        pairs = self.sequence * self.sequence
        layers = Counter(layer.attention for layer in self.model.layers if not layer.attention.delta)
        all_of_them = sum(
            2 * pairs * one.heads * (one.head_dim + one.value_width) * count for one, count in layers.items()
        )
        return all_of_them - sum(attention_flops(one, self.sequence) * count for one, count in layers.items())

    def held_bytes(self, layout: Layout) -> int:
        """Weights, gradients and states of a rank: no step of this layout needs less. Drops hopeless layouts early."""
        if layout.engine is StepEngine.MEGATRON:
            whole, states = megatron.BF16 + megatron.FP32, megatron.STATES
            return self.trained(layout) * whole + self.parameters * states // layout.ranks
        if layout.engine is StepEngine.FSDP2:
            return SHARDED * self.parameters // layout.data
        if layout.method != "full":
            return 0
        key = replace(layout, checkpointing="none", micro_batch=1, micro_batches=1)
        if key not in self._held:
            self._held[key] = zero.held(train_setup(key, self.model, 1)).device.total
        return self._held[key]

    def need(self, layout: Layout, device: Device) -> Need:
        """Bytes of the rank that needs most, from the closed form of its engine."""
        if layout.engine is StepEngine.MEGATRON:
            stages = megatron.train(megatron_setup(layout, self.model, self.sequence), device)
            return Need(stages.parts, stages.peak.name, stages.stage)
        setup = train_setup(layout, self.model, self.sequence)
        if layout.engine is StepEngine.FSDP2:
            found = budget.train(setup, device)
            return Need(found.parts, found.peak.name)
        step = budget.train(setup, device)
        return Need(step.parts, step.peak.name, host=zero.held(setup).host if layout.offload else Breakdown())

    def trained(self, layout: Layout) -> int:
        """Values that a rank's share of the model trains."""
        if layout.method != "full":
            adapter = adapter_of(layout.method, self.model)
            return adapter.parameters(self.model) if adapter else 0
        return sum(self.shares(layout))

    def shares(self, layout: Layout) -> tuple[int, int]:
        """Values of a rank: all but experts, which the ranks that share data have each; and experts."""
        divided = layout.tensor * layout.pipeline
        return (self.parameters - self.experts) // divided, self.experts // (divided * layout.expert)
