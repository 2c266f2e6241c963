"""Megatron-LM's training step in closed form: tensor, sequence, pipeline and expert parallel, ZeRO-1. No torch.

    setup = MegatronSetup("llama-3-70b", tensor_parallel=8, pipeline=4, data_parallel=2, micro_batches=16)
    train(setup, "h100").peak_bytes, train(setup, "h100").stage

Its GPT model with Transformer Engine's layers, as Megatron runs it by default: BF16 weights, FP32 main gradients in one
buffer, FP32 master copies and Adam's states divided by the data-parallel ranks, sequence parallelism wherever tensors
are split, RMSNorm, SwiGLU and rotary positions fused, flash attention; with `recompute="full"` each layer keeps its
input alone. Of a sequence each context-parallel rank has its share. What one layer holds is in `megatron_layer`. Shape
letters, of one rank: s = tokens of a micro-batch, h = hidden, f = FFN, q and k = heads x head_dim and KV heads x
head_dim, t = tensor parallel, each split tensor divided by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....catalog.devices import Device
from ....catalog.errors import WorkbookError, require_name, require_whole
from ....catalog.hardware import cuda_of
from ....catalog.setup_fields import MAX_COUNT, MAX_TOKENS, ModelField
from ....catalog.shape import ModelShape
from ...breakdown import Breakdown, Moment, Moments, Part, Point
from ..refusals import refuse
from .megatron_layer import BF16, FP32, RankLayer

STATES = 12  # FP32 master copy and Adam's two states: DistributedOptimizer in megatron/core/optimizer
VOCAB_MULTIPLE = 128  # --make-vocab-size-divisible-by, times tensor parallel (vocab_size_with_padding)
# cuBLAS' of the two threads, and Transformer Engine's own (get_workspace in transformer_engine/pytorch)
WORKSPACES = 3
RECOMPUTED = ("none", "full")


@dataclass(frozen=True)
class MegatronSetup:
    """How a model lies on `tensor_parallel` x `pipeline` x `data_parallel` ranks, and what each step reads.

    `micro_batches` of `micro_batch` sequences follow each other through the pipeline (1F1B). `context_parallel` ranks
    share each sequence and, with the data-parallel ones, the states. `recompute` is "none", or "full": each layer keeps
    its input and is run again (--recompute-granularity full, uniform, one layer each). Of the ranks that share data,
    `expert_parallel` share the experts of a layer, and the others the states of an expert. Raises WorkbookError.
    """

    model: ModelField = ModelField()  # noqa: RUF009 - a descriptor, and no default
    tensor_parallel: int = 1
    pipeline: int = 1
    data_parallel: int = 1
    micro_batches: int = 8
    micro_batch: int = 1
    sequence: int = 4096
    context_parallel: int = 1
    recompute: str = "none"
    expert_parallel: int = 1

    def __post_init__(self) -> None:
        degrees = ("tensor_parallel", "pipeline", "data_parallel", "context_parallel", "expert_parallel")
        for name in (*degrees, "micro_batches", "micro_batch"):
            require_whole(name, getattr(self, name), most=MAX_COUNT)
        require_name("recomputation", self.recompute, RECOMPUTED)
        require_whole("sequence", self.sequence, most=MAX_TOKENS)
        layers, attention = self.model.layers, self.model.layers[0].attention
        known = "a decoder with SwiGLU, as Llama, Mixtral, DeepSeek"
        do = "other MLPs, more norms and attention with sinks are not known here"
        refuse(not is_known(self.model), f"{self.model.name} in Megatron's closed form", known, do)
        stage_layers(len(layers), self.pipeline)
        self._require_shares(self.sequence, "tokens", "context_parallel", "context-parallel ranks")
        self._require_experts()
        tokens = self.sequence // self.context_parallel
        for what, size in (("KV heads", attention.kv_heads), ("FFN", layers[-1].mlp.ffn), ("tokens", tokens)):
            self._require_shares(size, what, "tensor_parallel")

    def _require_shares(self, size: int, what: str, name: str, ranks: str = "ranks") -> None:
        over, do = getattr(self, name), f"choose {name} that divides {size:,}"
        refuse(size % over, f"{size:,} {what} over {over} {ranks}", "equal shares", do)

    def _require_experts(self) -> None:
        """Ranks of experts are among those that share data, and get equally many."""
        experts, ranks, group = most_experts(self.model), self.expert_parallel, self.group
        what = f"experts of {self.model.name}, which has none"
        refuse(ranks > 1 and not experts, what, "equal shares", "leave expert_parallel at 1")
        self._require_shares(experts, "experts", "expert_parallel")
        what = f"{ranks} ranks of experts among {group} that share data"
        refuse(group % ranks, what, "a divisor of them", f"choose data_parallel as a multiple of {ranks}")

    @property
    def group(self) -> int:
        """Ranks that share data and states."""
        return self.data_parallel * self.context_parallel

    @property
    def vocab(self) -> int:
        """Rows of the embedding and the head, padded so that each rank has as many."""
        multiple = VOCAB_MULTIPLE * self.tensor_parallel
        return -(-self.model.vocab // multiple) * multiple


def is_known(model: ModelShape) -> bool:
    """Whether each layer is one that `megatron_layer` counts: two norms, a gated MLP, dense or of experts; no
    sinks, and no delta rule."""
    kinds = set(model.layers)
    return model.counted is None and all(
        layer.norms == 2 and layer.mlp.gated and not (layer.attention.sinks or layer.attention.delta) for layer in kinds
    )


def most_experts(model: ModelShape) -> int:
    """Routed experts of a layer that has them; 0 for a dense model."""
    return max(layer.mlp.experts for layer in model.layers)


@dataclass(frozen=True)
class MegatronBudget(Moments):
    """The stage that needs most, counted from 0: its moments, and the peaks of all stages."""

    setup: MegatronSetup
    stage: int
    moments: tuple[Moment, ...]
    stage_peaks_bytes: tuple[int, ...] = field(repr=False)

    @property
    def peak_bytes(self) -> int:
        return self.peak.total


def train(setup: MegatronSetup, gpu: str | Device | None = None) -> MegatronBudget:
    """Predict a step's peak, in bytes a rank, on the stage that needs most; `gpu` adds the libraries' workspaces.

    Twelve layers of Llama-3-70B, 4,096 tokens, over 8 B200: 28.3 GiB with tensor parallel 8 (28.29 measured), 60.7 with
    2 (60.68), 66.8 with two stages (66.55).
    """
    cuda = cuda_of(gpu) if gpu is not None else None
    library = WORKSPACES * cuda.cublas_workspace_bytes if cuda else 0
    stages = [_Stage(setup, at, library).moments() for at in range(setup.pipeline)]
    peaks = tuple(max(moment.total for moment in moments) for moments in stages)
    most = max(range(setup.pipeline), key=peaks.__getitem__)
    return MegatronBudget(setup, most, stages[most], peaks)


class _Stage:
    """One rank of one pipeline stage."""

    def __init__(self, setup: MegatronSetup, at: int, library: int) -> None:
        self.setup, self.t, self.library, model = setup, setup.tensor_parallel, library, setup.model
        self.tokens = setup.micro_batch * setup.sequence // setup.context_parallel
        self.at, self.is_first, self.is_last = at, at == 0, at == setup.pipeline - 1
        sizes = stage_layers(len(model.layers), setup.pipeline)
        begin = sum(sizes[:at])
        mine = self.t, setup.expert_parallel
        made = {layer: RankLayer(layer, model.hidden, self.tokens, *mine) for layer in set(model.layers)}
        self.layers = [made[layer] for layer in model.layers[begin : begin + sizes[at]]]
        self.last_layer = begin + sizes[at] - 1
        self.table = setup.vocab * model.hidden // self.t  # values of the embedding or the head, split by words

    def moments(self) -> tuple[Moment, ...]:
        layer, again = self.layers[-1], 0
        hidden = BF16 * self.tokens * self.setup.model.hidden  # of all tokens; t ranks share them
        in_flight = min(self.setup.micro_batches, self.setup.pipeline - self.at)  # 1F1B: forwards that wait
        kept = in_flight * sum(one.kept for one in self.layers)
        if self.setup.recompute == "full":
            kept, again = in_flight * len(self.layers) * hidden // self.t, layer.kept
        found = [self._moment(Point.LAYER, kept + again + layer.in_mlp, 0, 0, self.last_layer)]
        if self.is_last:
            logits = BF16 * self.tokens * self.setup.vocab // self.t
            outside = 2 * hidden // self.t + hidden  # the final norm's input and output, which is gathered
            # The fused loss works on FP32 logits, whose softmax it keeps (VocabParallelCrossEntropy)
            found.append(self._moment(Point.LOSS, kept + outside, 3 * logits, 0))
            # ColumnParallelLinear adds to the main gradient itself; autograd gets an empty one, as large as the weight
            found.append(self._moment(Point.LM_HEAD, kept + outside + hidden, logits, BF16 * self.table))
        return tuple(found)

    def _moment(self, at: Point, activations: int, logits: int, workspace: int, layer: int | None = None) -> Moment:
        dense, experts = self._parameters()
        group = self.setup.group
        states = -(-STATES * dense // group) - (-STATES * experts * self.setup.expert_parallel // group)
        sizes = {
            Part.PARAMETERS: BF16 * (dense + experts),
            Part.GRADIENTS: FP32 * (dense + experts),
            Part.OPTIMIZER: states,
            Part.ACTIVATIONS: activations,
            Part.LOGITS: logits,
            Part.WORKSPACE: workspace + self._stand_ins() + self.library,
        }
        return Moment(at, Breakdown({part: size for part, size in sizes.items() if size}), layer)

    def _parameters(self) -> tuple[int, int]:
        """Of a rank: all but experts, and experts. Norms are whole on each."""
        outside = (self.is_first + self.is_last) * self.table + self.is_last * self.setup.model.final_norm_parameters
        dense, experts = (sum(getattr(one, of) for one in self.layers) for of in ("parameters", "expert_parameters"))
        return outside + dense, experts

    def _stand_ins(self) -> int:
        """Gradients that are none: a product adds to the main gradient itself, and autograd gets one empty tensor for
        each shape of weight, which stays (get_dummy_wgrad in transformer_engine/pytorch/module/base.py, from 2.3)."""
        shapes = {shape for one in self.layers for shape in one.fused_shapes}
        return sum(BF16 * outputs * inputs // self.t for outputs, inputs in shapes)


def stage_layers(layers: int, pipeline: int) -> tuple[int, ...]:
    """Layers of each stage. Where they do not divide, the first and the last have fewer (Megatron's flags
    --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers), as embedding and head are there.

    >>> stage_layers(126, 16)[0], stage_layers(126, 16)[1], stage_layers(61, 4)
    (7, 8, (15, 16, 16, 14))
    """
    most = -(-layers // pipeline)
    short = most * pipeline - layers
    first, last = most - short // 2, most - (short - short // 2)
    if pipeline == 1:
        first = last = layers
    if min(first, last) < 1:
        able = [count for count in range(1, min(layers, 64) + 1) if -(-layers // count) * count - layers < 2]
        do = f"choose a number of stages among {', '.join(map(str, able))}"
        raise WorkbookError(f"{layers} layers in {pipeline} stages", "a layer for each stage", do)
    return (first, *[most] * (pipeline - 2), last) if pipeline > 1 else (layers,)
