"""A model as a chain of layers with costs, and what any choice of segments costs on it: bytes and FLOPs. No torch.

    price(layers, layout("sqrt-n", len(layers)))        # ChainCost(peak_bytes=…, stored_bytes=…, recompute_flops=…)

The model. After the forward pass each segment has *stored* something. The backward pass takes the last segment first;
while it works on one, alive are what the segments before it have stored, and what this one needs: its stored bytes,
what it computes again, and working tensors. So peak = max over segments (stored before it + its own need), or, between
forward and backward, all that is stored + `head_bytes` (logits and loss). Parameters, their gradients and the
optimizer's states are not in it: subtract them from the memory you have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...catalog.errors import WorkbookError, require_name
from ...catalog.policies import PolicySegment


@dataclass(frozen=True)
class LayerChoice:
    """One layer by itself under one policy.

    `stored_bytes` stay after its forward, `backward_bytes` (those included) is the most alive while its backward runs.
    """

    stored_bytes: int
    backward_bytes: int
    recompute_flops: int = 0


@dataclass(frozen=True)
class LayerCost:
    """What a layer costs under each policy of single layers, and inside a longer segment that is recomputed.

    `saved_bytes` are those a plain forward keeps for backward, its input of `input_bytes` among them if `keeps_input`.
    A recomputation ends with the last tensor that backward needs: `forward_flops` runs all of the layer, the
    `recompute_flops` of the choice "full" may be fewer. `choices` must have "none" and "full".
    """

    input_bytes: int
    saved_bytes: int
    keeps_input: bool
    forward_flops: int
    choices: dict[str, LayerChoice] = field(hash=False)

    def __post_init__(self) -> None:
        missing = {"none", "full"} - set(self.choices)
        sizes = (self.input_bytes, self.saved_bytes, self.forward_flops)
        if missing or min(sizes) < 0 or (self.keeps_input and self.saved_bytes < self.input_bytes):
            what = f"a layer with the choices {', '.join(self.choices) or '-'} and costs {sizes}"
            expected = "choices for 'none' and 'full', no cost below zero, and a kept input among the saved"
            raise WorkbookError(what, expected, "measure the layers: layer_costs(model, run)")

    @property
    def working_bytes(self) -> int:
        """Alive in the backward of a recomputed layer beside its input and saved tensors: gradients, temporaries."""
        beside_input = self.saved_bytes - (self.input_bytes if self.keeps_input else 0)
        return max(0, self.choices["full"].backward_bytes - self.input_bytes - beside_input)


@dataclass(frozen=True)
class ChainCost:
    """What a chain costs: the most bytes alive at once, bytes stored after forward, FLOPs done a second time."""

    peak_bytes: int
    stored_bytes: int
    recompute_flops: int


def price(layers: Sequence[LayerCost], segments: Sequence[PolicySegment], head_bytes: int = 0) -> ChainCost:
    """What `segments` cost on this chain. Raises WorkbookError for a policy of which the layers have no cost."""
    stored = flops = peak = 0
    for segment in segments:
        choice = price_segment(layers, segment)
        peak = max(peak, stored + choice.backward_bytes)
        stored += choice.stored_bytes
        flops += choice.recompute_flops
    return ChainCost(max(peak, stored + head_bytes), stored, flops)


def price_segment(layers: Sequence[LayerCost], segment: PolicySegment) -> LayerChoice:
    """One segment by itself, as if it were one layer."""
    if segment.parts:
        return _nested(layers, segment)
    if segment.stop - segment.start == 1:
        choices = layers[segment.start].choices
        return choices[require_name("measured policy", segment.how, choices)]
    return _recomputed(layers[segment.start : segment.stop])


def _recomputed(chain: Sequence[LayerCost]) -> LayerChoice:
    """Layers under one checkpoint: the first input stored; all they save alive again until each has gone backward."""
    alive, most = 0 if chain[0].keeps_input else chain[0].input_bytes, 0
    for layer in chain:
        alive += layer.saved_bytes
        most = max(most, alive + layer.working_bytes)
    flops = sum(layer.forward_flops for layer in chain[:-1]) + chain[-1].choices["full"].recompute_flops
    return LayerChoice(chain[0].input_bytes, most, flops)


def _nested(layers: Sequence[LayerCost], segment: PolicySegment) -> LayerChoice:
    """Checkpoints within a checkpoint: it runs again until the input of its last part is there, then each part does."""
    parts = [price_segment(layers, part) for part in segment.parts]
    stored = most = 0
    for part in parts:
        most = max(most, stored + part.backward_bytes)
        stored += part.stored_bytes
    first_run = sum(layer.forward_flops for layer in layers[segment.start : segment.parts[-1].start])
    return LayerChoice(parts[0].stored_bytes, most, first_run + sum(part.recompute_flops for part in parts))
