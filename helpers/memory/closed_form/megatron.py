"""Megatron-LM's training step in closed form: tensor, sequence and pipeline parallel, ZeRO-1. No torch.

    setup = MegatronSetup("llama-3-70b", tensor_parallel=8, pipeline=4, data_parallel=2, micro_batches=16)
    train(setup, "h100").peak_bytes, train(setup, "h100").stage

Its GPT model with Transformer Engine's layers, as Megatron runs it by default: BF16 weights, FP32 main gradients in one
buffer, FP32 master copies and Adam's states divided by the data-parallel ranks, sequence parallelism wherever tensors
are split, RMSNorm, SwiGLU and rotary positions fused, flash attention; with `recompute="full"` each layer keeps its
input alone. Of a sequence each context-parallel rank has its share. Shape letters, of one rank:
s = tokens of a micro-batch, h = hidden, f = FFN, q and k = heads x head_dim and KV heads x head_dim, t = tensor
parallel, each split tensor divided by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.hardware import cuda_of
from ...catalog.layers import Layer, Linear
from ...catalog.setup import MAX_COUNT, MAX_TOKENS, ModelField
from .breakdown import Breakdown, Moment, Moments, Part, Point

BF16, FP32 = 2, 4
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
    its input and is run again (--recompute-granularity full, uniform, one layer each). Raises WorkbookError.
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

    def __post_init__(self) -> None:
        degrees = ("tensor_parallel", "pipeline", "data_parallel", "context_parallel")
        for name in (*degrees, "micro_batches", "micro_batch"):
            require_whole(name, getattr(self, name), most=MAX_COUNT)
        require_name("recomputation", self.recompute, RECOMPUTED)
        require_whole("sequence", self.sequence, most=MAX_TOKENS)
        layers, attention = self.model.layers, self.model.layers[0].attention
        if not self.model.is_dense_decoder or not all(layer.mlp.gated for layer in layers):
            what, expected = f"{self.model.name} in Megatron's closed form", "a dense decoder with SwiGLU, as Llama"
            raise WorkbookError(what, expected, "experts and other MLPs are not known here")
        if len(layers) % self.pipeline:
            do = f"choose a number that divides {len(layers)}"
            raise WorkbookError(f"{len(layers)} layers in {self.pipeline} stages", "equal stages", do)
        if self.sequence % self.context_parallel:
            do = f"choose context_parallel that divides {self.sequence:,}"
            raise WorkbookError(
                f"{self.sequence:,} tokens over {self.context_parallel} context-parallel ranks", "equal shares", do
            )
        tokens = self.sequence // self.context_parallel
        for what, size in (("KV heads", attention.kv_heads), ("FFN", layers[0].mlp.ffn), ("tokens", tokens)):
            if size % self.tensor_parallel:
                do = f"choose tensor_parallel that divides {size:,}"
                raise WorkbookError(f"{size:,} {what} over {self.tensor_parallel} ranks", "equal shares", do)

    @property
    def layers_of_a_stage(self) -> int:
        return len(self.model.layers) // self.pipeline

    @property
    def vocab(self) -> int:
        """Rows of the embedding and the head, padded so that each rank has as many."""
        multiple = VOCAB_MULTIPLE * self.tensor_parallel
        return -(-self.model.vocab // multiple) * multiple


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


def train(setup: MegatronSetup, device: str | Device | None = None) -> MegatronBudget:
    """Predict a step's peak, in bytes a rank, on the stage that needs most; `device` adds the libraries' workspaces.

    Twelve layers of Llama-3-70B, 4,096 tokens, over 8 B200: 28.3 GiB with tensor parallel 8 (28.29 measured), 60.7 with
    2 (60.68), 66.8 with two stages (66.55).
    """
    cuda = cuda_of(device) if device is not None else None
    library = WORKSPACES * cuda.cublas_workspace_bytes if cuda else 0
    stages = [_Stage(setup, at, library).moments() for at in range(setup.pipeline)]
    peaks = tuple(max(moment.total for moment in moments) for moments in stages)
    most = max(range(setup.pipeline), key=peaks.__getitem__)
    return MegatronBudget(setup, most, stages[most], peaks)


class _Stage:
    """One rank of one pipeline stage."""

    def __init__(self, setup: MegatronSetup, at: int, library: int) -> None:
        self.setup, self.model, self.t = setup, setup.model, setup.tensor_parallel
        self.is_first, self.is_last = at == 0, at == setup.pipeline - 1
        begin = at * setup.layers_of_a_stage
        self.layers = self.model.layers[begin : begin + setup.layers_of_a_stage]
        self.last_layer = begin + setup.layers_of_a_stage - 1
        self.tokens = setup.micro_batch * setup.sequence // setup.context_parallel
        self.in_flight = min(setup.micro_batches, setup.pipeline - at)  # 1F1B: forwards that wait for their backward
        self.hidden = BF16 * self.tokens * self.model.hidden  # of all tokens; t ranks share them
        self.library = library

    def moments(self) -> tuple[Moment, ...]:
        layer, again = self.layers[-1], 0
        kept = self.in_flight * sum(map(self._kept, self.layers))
        if self.setup.recompute == "full":
            kept, again = self.in_flight * len(self.layers) * self.hidden // self.t, self._kept(layer)
        found = [self._moment(Point.LAYER, kept + again + self._in_mlp(layer), 0, 0, self.last_layer)]
        if self.is_last:
            logits = BF16 * self.tokens * self.setup.vocab // self.t
            outside = 2 * self.hidden // self.t + self.hidden  # the final norm's input and output, which is gathered
            # The fused loss works on FP32 logits, whose softmax it keeps (VocabParallelCrossEntropy)
            found.append(self._moment(Point.LOSS, kept + outside, 3 * logits, 0))
            # ColumnParallelLinear adds to the main gradient itself; autograd gets an empty one, as large as the weight
            weight = BF16 * self.setup.vocab * self.model.hidden // self.t
            found.append(self._moment(Point.LM_HEAD, kept + outside + self.hidden, logits, weight))
        return tuple(found)

    def _moment(self, at: Point, activations: int, logits: int, workspace: int, layer: int | None = None) -> Moment:
        parameters = self._parameters()
        sizes = {
            Part.PARAMETERS: BF16 * parameters,
            Part.GRADIENTS: FP32 * parameters,
            Part.OPTIMIZER: -(-STATES * parameters // (self.setup.data_parallel * self.setup.context_parallel)),
            Part.ACTIVATIONS: activations,
            Part.LOGITS: logits,
            Part.WORKSPACE: workspace + self._stand_ins() + self.library,
        }
        return Moment(at, Breakdown({part: size for part, size in sizes.items() if size}), layer)

    def _parameters(self) -> int:
        """Products are split by rows or columns, embedding and head by the vocabulary; norms are on every rank."""
        split = sum(linear.weights for layer in self.layers for linear in _linears(layer))
        tables = (self.is_first + self.is_last) * self.setup.vocab * self.model.hidden
        norms = sum(layer.norm_parameters for layer in self.layers) + self.is_last * self.model.final_norm_parameters
        return (split + tables) // self.t + norms

    def _kept(self, layer: Layer) -> int:
        """What a layer keeps for its backward: both norms' inputs and outputs, q, k, v, attention's output with its
        log-sum-exp, gate and up, and their product (LayerNormLinear, LayerNormMLP's parts, the fused SwiGLU)."""
        attention = layer.attention
        norms = 4 * self.hidden
        heads = 2 * attention.heads + 2 * attention.kv_heads  # q and the output; k and v
        attended = self.tokens * (BF16 * heads * attention.head_dim + FP32 * attention.heads)
        return (norms + attended + 3 * BF16 * self.tokens * layer.mlp.ffn) // self.t

    def _in_mlp(self, layer: Layer) -> int:
        """Inside the backward of SwiGLU: gradients of its three tensors, the product gone; and of the hidden states."""
        return 2 * BF16 * self.tokens * layer.mlp.ffn // self.t + 2 * self.hidden // self.t

    def _stand_ins(self) -> int:
        """Gradients that are none: a product adds to the main gradient itself, and autograd gets one empty tensor for
        each shape of weight, which stays (get_dummy_wgrad in transformer_engine/pytorch/module/base.py, from 2.3)."""
        shapes = {(outputs, inputs) for layer in self.layers for outputs, inputs in _fused_shapes(layer)}
        return sum(BF16 * outputs * inputs // self.t for outputs, inputs in shapes)


def _linears(layer: Layer) -> tuple[Linear, ...]:
    return layer.attention.linears + layer.mlp.linears


def _fused_shapes(layer: Layer) -> tuple[tuple[int, int], ...]:
    """The weights as Megatron holds them: q, k and v in one, and gate and up."""
    attention, hidden = layer.attention, layer.mlp.linears[-1].outputs
    q, kv = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    return (q + 2 * kv, hidden), (hidden, q), (2 * layer.mlp.ffn, hidden), (hidden, layer.mlp.ffn)
