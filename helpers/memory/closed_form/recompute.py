"""What a checkpointing policy keeps to the end of forward, and what is there again when a layer's backward begins.

A policy is segments (`setup.segments`). A segment that the backward has not reached holds what it stored; the one at
work has been run again, and inside it the same holds for its parts. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...catalog.errors import WorkbookError
from ...catalog.layers import Attention, Layer, Mlp
from ...catalog.policies import Segment
from ...catalog.setup import TrainSetup
from . import activations
from .breakdown import Breakdown, rounded

SELECTIVE = {
    "selective": ("matmuls", "attention"),
    "selective:matmuls": ("matmuls",),
    "selective:attention": ("attention",),
}
BOTH = ("attention", "mlp")


def require_closed_form(setup: TrainSetup) -> None:
    """Refuse the policies whose peak has no closed form here: what an offload brings back depends on who asks when."""
    if setup.checkpointing == "offload":
        raise WorkbookError(
            "checkpointing is 'offload', whose peak has no closed form",
            "a policy that recomputes, or offload:inputs",
            "trace it with helpers.techniques.checkpointing.apply: helpers.memory.trace.train(setup, apply=apply)",
        )


def runs_products_again(setup: TrainSetup) -> bool:
    """Whether the backward runs some linear layer of the forward again."""
    return setup.checkpointing not in ("none", "offload", "selective", "selective:matmuls")


class SavedActivations:
    """Bytes of the decoder layers' activations under the policy of `setup`: as forward leaves, as backward finds them.

    Llama-2-7B, 2048 tokens, BF16: "none" stores 11.39 GiB, "full" 0.50, "selective" 6.20.
    """

    def __init__(self, setup: TrainSetup) -> None:
        require_closed_form(setup)
        self.setup, self.layers = setup, setup.model.layers
        rows = {layer: activations.saved_by_layer(setup, layer) for layer in set(self.layers)}
        self.saved = [rows[layer] for layer in self.layers]
        self._totals = [saved.total for saved in self.saved]
        self._sizes: dict[tuple[int, str], int] = {}
        self.boundary = activations.boundary_bytes(setup)
        self._shared = self.boundary if activations.shares_boundary(setup) else 0
        self._segments = setup.segments
        self._values = setup.micro_batch * setup.sequence * setup.model.hidden
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
            return self._totals[segment.start]
        if how == "module:attention":
            dropped = self._dropped(layer.attention, activations.attention_internals(self.setup, layer))
            return self._totals[segment.start] - dropped
        if how == "module:mlp":
            dropped = self._dropped(layer.mlp, activations.mlp_internals(self.setup, layer))
            return self._totals[segment.start] - dropped
        if how == "offload:inputs":
            return 0
        return self.boundary + selected(self.setup, layer, how).total

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
        how, again = segment.how, sum(self._totals[segment.start : at + 1])
        if how == "module:attention" and not attention:
            return self._stored_by(segment)
        if how.startswith("module:"):
            return again + self._fp32_input
        if how in ("none", "offload:inputs"):  # an input that came back is gone when nobody saved it again
            return again
        if segment.parts:  # the first part keeps the very tensor that the segment does
            return self._live(segment.parts, at, attention)
        return self.boundary - self._shared + again + self._never_asked_for(segment)

    def _never_asked_for(self, segment: Segment) -> int:
        """A selective policy keeps the layer's last product, and the recomputation stops before it needs it."""
        layer = self.layers[segment.start]
        return (
            0
            if reads_last_product(layer)
            else selected(self.setup, layer, segment.how).get(activations.last_product(layer), 0)
        )

    def _dropped(self, part: Attention | Mlp, internals: Breakdown) -> int:
        """What a checkpoint around a part of a layer spares, less the input that it keeps where nobody else does.

        Under autocast that is FP32, in place of a BF16 copy for each of the products that read it.
        """
        if not self._fp32_input:
            return internals.total
        weights = sum(rounded(2 * linear.weights) for linear in part.linears)
        casts = (len(part.linears) - 1) * rounded(2 * self._values)
        return internals.total + weights + casts - self._fp32_input

    def _copies_unsaved(self, segment: Segment) -> int:
        inside = {"none": (), "module:attention": ("attention",), "module:mlp": ("mlp",)}.get(segment.how, BOTH)
        linears = (
            linear
            for layer in self.layers[segment.start : segment.stop]
            for part in inside
            for linear in getattr(layer, part).linears
        )
        return sum(rounded(2 * linear.weights) for linear in linears)

    def _masks(self, layers: int) -> int:
        """Eager attention's additive masks, B x T x T: a checkpoint around attention keeps them as its arguments.

        There is one for each window that the first `layers` layers have.
        """
        if self.setup.attention == "sdpa" or not self.holds_arguments:
            return 0
        windows = {layer.attention.window for layer in self.layers[:layers]}
        tokens, sequence = self.setup.micro_batch * self.setup.sequence, self.setup.sequence
        return len(windows) * rounded(tokens * sequence * activations.Widths.of(self.setup).residual)


def selected(setup: TrainSetup, layer: Layer, how: str) -> Breakdown:
    """The outputs that a selective policy keeps of one layer, besides its input; nothing for the other policies."""
    written = activations.products_by_layer(setup, layer) if how in SELECTIVE else {}
    kept = {name: size for kind in SELECTIVE.get(how, ()) for name, size in written[kind].items()}
    return Breakdown(kept)


def reads_last_product(layer: Layer) -> bool:
    """Gemma-2 norms the output of its MLP, and saves it for that: then a recomputation runs the last product too."""
    return layer.norms == 4
