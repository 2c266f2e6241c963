"""What a checkpointing policy keeps to the end of forward, what is there again when a layer's backward begins, and the
FLOPs that this takes. No torch.

A policy is segments (`setup.segments`). A segment that the backward has not reached holds what it stored; the one at
work has been run again, and inside it the same holds for its parts.

FLOPs are counted as PyTorch's `torch.utils.flop_counter` counts: matrix products and attention, a multiply and an add
each, nothing taken off for a causal mask. A recomputation stops at the last tensor that the backward needs, so the
product that ends a segment is not run again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ...catalog.layers import Attention, Layer, Linear, Mlp
from ...catalog.policies import Segment
from ...catalog.setup import TrainSetup
from . import activations, work
from .breakdown import rounded

KEEPS_MATMULS = ("selective", "selective:matmuls")
EVERY_SECOND = "selective:every-second"
KEEPS_ATTENTION = ("selective", "selective:attention", EVERY_SECOND)
# What the backward of fused attention multiplies for each product of its forward: it makes the scores again, 5 for 2.
FUSED_BACKWARD = 5 / 2


def runs_products_again(setup: TrainSetup) -> bool:
    """Whether the backward runs some linear layer of the forward again."""
    return setup.checkpointing not in ("none", "offload", "selective", "selective:matmuls")


class SavedActivations:
    """Bytes of the decoder layers' activations under the policy of `setup`: as forward leaves, as backward finds them.

    What the owners in `without` keep is left out.

    Llama-2-7B, 2048 tokens, BF16: "none" stores 11.39 GiB, "full" 0.50, "selective" 6.20.
    """

    def __init__(self, setup: TrainSetup, without: Collection[activations.Owner] = ()) -> None:
        require_recomputing(setup)
        self.setup, self.layers = setup, setup.model.layers
        every = {layer: activations.layer_tensors(setup, layer) for layer in set(self.layers)}
        tensors = {layer: tuple(one for one in saved if one.owner not in without) for layer, saved in every.items()}
        self.tensors = [tensors[layer] for layer in self.layers]
        self.layer_bytes = [activations.total_bytes(saved) for saved in self.tensors]
        self._sizes: dict[tuple[int, str], int] = {}
        self.boundary = activations.boundary_bytes(setup)
        self._shared = self.boundary if activations.shares_boundary(setup) else 0
        self._segments = setup.segments
        self._values = setup.tokens * setup.model.hidden
        self._fp32_input = rounded(4 * self._values) if activations.Widths.of(setup).autocast else 0

    @property
    def holds_arguments(self) -> bool:
        """Whether a checkpoint holds what attention is called with: the mask, the position ids."""
        return any(segment.how not in ("none", "module:mlp") for segment in self._segments)

    def stored_bytes(self) -> int:
        """Alive at the end of forward."""
        return self._stored(self._segments) + self._masks(len(self.layers))

    def unsaved_copies(self) -> int:
        """Autocast's BF16 copies of the weights that nothing but its cache holds when forward ends."""
        return sum(self._copies_unsaved(segment) for segment in self._segments)

    def live_bytes(self, at: int, attention: bool = False) -> int:
        """Alive when the backward of layer `at` begins in its MLP, the segments around it having been run again.

        `attention=True` is for the backward of its attention, with all that the MLP had still counted.
        """
        return self._live(self._segments, at, attention) + self._masks(at + 1)

    def _stored(self, segments: Sequence[Segment]) -> int:
        return sum(map(self._stored_by, segments))

    def _stored_by(self, segment: Segment) -> int:
        """What one segment holds until the backward reaches it."""
        key = segment.start, segment.how
        if key not in self._sizes:
            self._sizes[key] = self._size(segment)
        return self._sizes[key]

    def _size(self, segment: Segment) -> int:
        layer, how = self.layers[segment.start], segment.how
        if how == "none":
            return self.layer_bytes[segment.start]
        if how == "module:attention":
            return self.layer_bytes[segment.start] - self._dropped(layer, "attention")
        if how == "module:mlp":
            return self.layer_bytes[segment.start] - self._dropped(layer, "mlp")
        if how == "offload:inputs":
            return 0
        return self.boundary + selected_bytes(self.setup, layer, how)

    def _live(self, segments: Sequence[Segment], at: int, attention: bool) -> int:
        stored = 0
        for segment in segments:
            if segment.stop > at:
                return stored + self._opened(segment, at, attention)
            stored += self._stored_by(segment)
        raise IndexError(f"layer {at} is in no segment")

    def _opened(self, segment: Segment, at: int, attention: bool) -> int:
        """What a segment holds, and has made again, when the backward of its layer `at` begins.

        The MLP's backward comes first: of a layer whose attention is recomputed, that is not there yet.
        """
        how, again = segment.how, sum(self.layer_bytes[segment.start : at + 1])
        if how == "module:attention" and not attention:
            return self._stored_by(segment)
        if how in ("module:attention", "module:mlp"):
            return again + self._fp32_input
        if how in ("none", "offload:inputs"):  # an input that came back is gone when nobody saved it again
            return again
        if segment.parts:  # the first part keeps the very tensor that the segment does
            return self._live(segment.parts, at, attention)
        return self.boundary - self._shared + again + self._never_asked_for(segment)

    def _never_asked_for(self, segment: Segment) -> int:
        """A selective policy keeps the layer's last product, and the recomputation stops before it needs it.

        Of every second product the last is kept where there is an odd number of them, as in Llama.
        """
        layer = self.layers[segment.start]
        linears = activations.written_by_layer(self.setup, layer).linears
        keeps = segment.how in KEEPS_MATMULS or (segment.how == EVERY_SECOND and len(linears) % 2 == 1)
        return linears[-1] if keeps and not reads_last_product(self.setup, layer) else 0

    def _dropped(self, layer: Layer, module: str) -> int:
        """What a checkpoint around a part of a layer spares, less the input that it keeps where nobody else does.

        Under autocast that is FP32, in place of a BF16 copy for each of the products that read it.
        """
        internals = activations.internals_bytes(self.setup, layer, module)
        if not self._fp32_input:
            return internals
        part: Attention | Mlp = layer.attention if module == "attention" else layer.mlp
        casts = (len(part.linears) - 1) * rounded(2 * self._values)
        return internals + _bf16_copies(part) + casts - self._fp32_input

    def _copies_unsaved(self, segment: Segment) -> int:
        copies = 0
        for layer in self.layers[segment.start : segment.stop]:
            if segment.how not in ("none", "module:mlp"):
                copies += _bf16_copies(layer.attention)
            if segment.how not in ("none", "module:attention"):
                copies += _bf16_copies(layer.mlp)
        return copies

    def _masks(self, layers: int) -> int:
        """Eager attention's additive masks, B x T x T: a checkpoint around attention keeps them as its arguments.

        There is one for each window that the first `layers` layers have.
        """
        if self.setup.attention == "sdpa" or not self.holds_arguments:
            return 0
        windows = {layer.attention.window for layer in self.layers[:layers]}
        scores = self.setup.tokens * self.setup.sequence
        return len(windows) * rounded(scores * activations.Widths.of(self.setup).residual)


def _bf16_copies(part: Attention | Mlp) -> int:
    return sum(rounded(2 * linear.weights) for linear in part.linears)


def selected_bytes(setup: TrainSetup, layer: Layer, how: str) -> int:
    """The outputs that a selective policy keeps of one layer, besides its input; 0 for the other policies."""
    written = activations.written_by_layer(setup, layer)
    products = written.every_second if how == EVERY_SECOND else (how in KEEPS_MATMULS) * written.matmuls
    return products + (how in KEEPS_ATTENTION) * written.attention


def reads_last_product(setup: TrainSetup, layer: Layer) -> bool:
    """Whether a recomputation runs a layer's last product too.

    Gemma-2 norms the output of its MLP, and saves it for that. A product in FP8 saves its operands when it is done.
    """
    return layer.norms == 4 or bool(setup.precision_recipe.linear_format)


def require_recomputing(setup: TrainSetup) -> None:
    """Refuse the policy whose peak has no closed form here: what an offload brings back depends on who asks when."""
    if setup.checkpointing == "offload":
        expected = "a policy that recomputes, or offload:inputs"
        do = "trace it with helpers.techniques.checkpointing.apply: helpers.memory.trace.train(setup, apply=apply)"
        raise WorkbookError("checkpointing is 'offload', whose peak has no closed form", expected, do)


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step; `recomputed` is the bill of the policy.

    >>> StepFlops(forward=100, backward=200, recomputed=99).ratio
    1.33
    """

    forward: int
    backward: int
    recomputed: int

    @property
    def total(self) -> int:
        return self.forward + self.backward + self.recomputed

    @property
    def ratio(self) -> float:
        """FLOPs of the step for each FLOP without the policy: 4/3 is the folklore's one extra forward."""
        return self.total / (self.forward + self.backward)


def step_flops(setup: TrainSetup) -> StepFlops:
    """FLOPs of one rank's step, all its micro-batches, without the optimizer's.

    Raises WorkbookError for routed experts and latent attention.

    Llama-2-7B, 2048 tokens, "full": 29.3 TFLOP forward, 22.8 of them again: a step costs 1.26 times as much, not 1.33.
    """
    if not setup.model.is_dense_decoder:
        what = f"{setup.model.name}'s FLOPs have no closed form here"
        do = "count them: helpers.techniques.checkpointing.flops_of"
        raise WorkbookError(what, "a dense decoder: routed experts and latent attention are not counted here", do)
    if setup.adapter:
        expected = "a step that trains all: a frozen weight needs no gradient, which is not counted here"
        raise WorkbookError(f"the FLOPs of {setup.adapter}", expected, "pass replace(setup, adapter=None)")
    each = {layer: LayerFlops.of(setup, layer) for layer in set(setup.model.layers)}
    tokens, passes = setup.tokens, setup.micro_batches
    layers = [each[layer] for layer in setup.model.layers]
    head = work.matmul(tokens, setup.model.vocab, setup.model.embedding_width).flops
    head += sum(_product(tokens, projection) for projection in setup.model.projections)
    forward = head + sum(layer.forward for layer in layers)
    backward = 2 * head + sum(layer.backward for layer in layers)
    recomputed = sum(_again(segment, layers) for segment in setup.segments)
    return StepFlops(passes * forward, passes * backward, passes * recomputed)


@dataclass(frozen=True)
class LayerFlops:
    """One decoder layer's forward by what a policy tells apart. `last` are the products that end attention and MLP.

    `second` are the linear layers at even places that a recomputation comes to: torchtitan's policy keeps the others.
    """

    attention_products: int
    attention_last: int
    kernel: int
    fused: bool
    mlp_products: int
    mlp_last: int
    second: int
    runs_last: bool

    @classmethod
    def of(cls, setup: TrainSetup, layer: Layer) -> LayerFlops:
        tokens, attention = setup.tokens, layer.attention
        kernel = work.attention(
            setup.sequence, setup.sequence, attention.heads, attention.head_dim, batch=setup.micro_batch
        )
        *reads, writes = (_product(tokens, linear) for linear in attention.linears)
        *wide, down = (_product(tokens, linear) for linear in layer.mlp.linears)
        runs_last = reads_last_product(setup, layer)
        return cls(
            sum(reads),
            writes,
            kernel.flops,
            setup.attention == "sdpa",
            sum(wide),
            down,
            sum([*reads, writes, *wide, *([down] if runs_last else [])][1::2]),
            runs_last,
        )

    @property
    def products(self) -> int:
        return self.attention_products + self.attention_last + self.mlp_products + self.mlp_last

    @property
    def forward(self) -> int:
        return self.products + self.kernel

    @property
    def backward(self) -> int:
        """Two products for each: the gradient of the input and that of the weight, or of both operands."""
        return 2 * self.products + int(self.kernel * (FUSED_BACKWARD if self.fused else 2))

    def again(self, how: str) -> int:
        """FLOPs that run again in the backward of this layer alone under `how`."""
        fused, stop = self.kernel if self.fused else 0, 0 if self.runs_last else self.mlp_last
        return {
            "none": 0,
            "offload": 0,
            "full": self.forward - stop,
            "offload:inputs": self.forward - stop,
            "selective": 0,
            "selective:matmuls": fused,
            "selective:attention": self.forward - stop - fused,
            EVERY_SECOND: self.second + self.kernel - fused,
            "module:attention": self.attention_products + self.kernel,
            "module:mlp": self.mlp_products,
        }[how]


def _product(tokens: int, linear: Linear) -> int:
    return work.matmul(tokens, linear.outputs, linear.inputs).flops


def _again(segment: Segment, layers: Sequence[LayerFlops]) -> int:
    """A segment runs again up to its last layer's last saved tensor; one with parts, up to its last part's input."""
    if segment.parts:
        before = layers[segment.start : segment.parts[-1].start]
        return sum(layer.forward for layer in before) + sum(_again(part, layers) for part in segment.parts)
    *before, last = layers[segment.start : segment.stop]
    return sum(layer.forward for layer in before) + last.again(segment.how)
