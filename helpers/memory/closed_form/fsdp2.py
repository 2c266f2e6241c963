"""A training step of PyTorch's FSDP2 in closed form, for one rank: shards that stay, and what is gathered for a while.

`fully_shard` on each decoder layer, then on the rest, which is called the root here. Its mixed precision takes the
place of autocast: FP32 shards, BF16 where it computes, FP32 or BF16 where gradients are reduced. What lives when is in
torch/distributed/fsdp/_fully_shard (`_fsdp_param_group.py`, `_fsdp_collectives.py`). No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.setup import TrainSetup
from ...catalog.split import REDUCED
from .activations import Owner, Role, Saved, total_bytes
from .breakdown import Moment, Part, Point, rounded
from .moments import Shapes, StepMoments, tensors_bytes, update_bytes
from .sharded import more

MAX_RANKS = 2**17
WIDTHS = {"autocast-bf16": (4, 2, 4), "bf16": (2, 2, 2), "fp32": (4, 4, 4)}  # of shards; gathered; reduced


def widths(precision: str, reduced: str) -> tuple[int, int, int]:
    """Bytes of a value in shards, gathered, and where gradients are reduced: one precision's throughout, or mixed.

    >>> widths("autocast-bf16", "bf16"), widths("bf16", "fp32")
    ((4, 2, 2), (2, 2, 2))
    """
    require_name("format that gradients are reduced in", reduced, REDUCED)
    shards, gathered, mixed = WIDTHS[precision]
    return shards, gathered, gathered if reduced == "bf16" else mixed


class FullyShardedMoments(StepMoments):
    """The moments of a step on one of `ranks`, with `reshard_after_forward` left on."""

    def __init__(
        self, setup: TrainSetup, ranks: int, cublas_bytes: int, on_cuda: bool = False, reduced: str = "fp32"
    ) -> None:
        if setup.precision not in WIDTHS:
            do = "pass precision='autocast-bf16' for FP32 shards, or 'bf16'"
            raise WorkbookError(f"{setup.precision} under FSDP2", ", ".join(WIDTHS), do)
        if any(part.parts for segment in setup.segments for part in segment.parts):
            what = f"checkpointing {setup.checkpointing!r} under FSDP2 has no closed form here"
            expected = "segments of layers, or one more level of segments in them"
            do = "choose nested:K, or trace it: trace.train(setup, split=Split(fsdp=...))"
            raise WorkbookError(what, expected, do)
        self.ranks = require_whole("ranks", ranks, 2, MAX_RANKS, do="predict one rank by budget.train(setup)")
        self.shard_width, self.gathered_width, self.reduced_width = widths(setup.precision, reduced)
        computes = "bf16" if self.gathered_width == 2 else "fp32"
        super().__init__(replace(setup, precision=computes, zero=0, ranks=1), cublas_bytes, on_cuda)
        layers = [shape for shapes in self.layer_tensors for shape in shapes]
        self.root_tensors = list((self.tensors - Counter(layers)).elements())
        self.root, self.layer = self._gathered(self.root_tensors), max(map(self._gathered, self.layer_tensors))
        self.parameter_bytes = self._shards(self.tensors)
        self.optimizer_bytes = self._states()

    def _mine(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Rows of a tensor on this rank, those of the first, to which storages are padded."""
        return (-(-shape[0] // self.ranks), *shape[1:])

    def _shards(self, shapes: Shapes) -> int:
        return tensors_bytes(map(self._mine, _each(shapes)), self.shard_width)

    def _states(self) -> int:
        made = (self.rule.state_bytes(self._mine(shape), self.shard_width, role) for shape, role in self.trained)
        return sum(map(rounded, made))

    def _gathered(self, shapes: Shapes) -> int:
        return tensors_bytes(_each(shapes), self.gathered_width)

    def _flat(self, shapes: Shapes) -> int:
        """What is reduce-scattered: one buffer for all gradients of a unit."""
        return rounded(sum(map(prod, _each(shapes))) * self.reduced_width)

    def _gradients(self, shapes: Shapes) -> int:
        """Shards of layers alone: the root's are reduced after all others."""
        if self.accumulates:
            return self._shards(self.tensors)
        root = set(self.root_tensors)
        return self._shards([shape for shape in _each(shapes) if shape not in root])

    def _to_be_added(self, shapes: Shapes) -> int:
        return 0

    def _copies(self) -> int:
        mine = [(self._mine(shape), role) for shape, role in self.trained]
        return update_bytes(self.rule, mine, self.shard_width)

    def end_of_forward(self) -> Moment:
        return more(super().end_of_forward(), workspace=self.root + self.layer)

    def backward_of_loss(self) -> Moment:
        return more(super().backward_of_loss(), workspace=self.root + self.layer)

    def backward_of_lm_head(self) -> Moment:
        made = self._gathered(self.head)
        return more(super().backward_of_lm_head(), workspace=self.root + self.layer + made)

    def backward_of_final_norm(self) -> Moment:
        made = self._gathered(self.head)
        return more(super().backward_of_final_norm(), workspace=self.root + self.layer + made)

    def candidate_peak_layers(self) -> list[int]:
        """Also the layer before the last and the end of the segment before the last, in whose backward the gradients
        of what is behind them are still on their way; and the layer after the first, beside which that is gathered."""
        layers, ends = len(self.model.layers), [segment.stop - 1 for segment in self.setup.segments]
        beside = {max(0, layers - 2), min(1, layers - 1), *ends[-2:]}
        return sorted({*super().candidate_peak_layers(), *beside}, reverse=True)

    def backward_of_layer(self, at: int) -> Moment:
        """Three spots: in the MLP, in the norm before it, and in the norm before attention."""
        whole, layer, saved = self._whole_beside(at), self.model.layers[at], self.kept.tensors[at]
        kept = self.kept.live_bytes(at) + self._rotary_tables()
        left = kept - total_bytes(one for one in saved if _used_up(one, Owner.MLP, Owner.MLP_NORM))
        entry = [one for one in saved if one.owner is Owner.ATTENTION_NORM]
        first = total_bytes(one for one in entry if not _used_up(one, Owner.ATTENTION, Owner.ATTENTION_NORM))
        behind = max(0, kept - self.kept.layer_bytes[at]) + first
        mlp = [shape for linear in layer.mlp.linears for shape in linear.tensors()]
        down = self._gathered(layer.mlp.linears[-1].tensors())
        norm = 2 * self.residual if self.model.norm == "layernorm" else 5 * self.hidden_fp32 + self.residual
        spots = (
            more(super().backward_of_layer(at), workspace=whole + down),
            self._spot(at, left, whole + self._gathered(mlp) + norm),
            self._spot(at, behind, whole + self._gathered(self.layer_tensors[at]) + norm),
        )
        return max(spots, key=lambda moment: moment.total)

    def _whole_beside(self, at: int) -> int:
        """Not divided while layer `at` runs backward: the root and its head's gradient, this layer and the next to come
        in, and the flat of the layer behind, which is held until this one's is made.

        A segment that is run again leaves none of its layers divided: each stays whole until its own backward is over.
        """
        segment = next(one for one in self.setup.segments if one.start <= at < one.stop)
        layers = max(at - segment.start + 1, 2 if at else 1) * self.layer
        behind = self.layer_tensors[at + 1 : at + 2]
        return self.root + self._gathered(self.head) + layers + sum(map(self._flat, behind))

    def _spot(self, at: int, saved: int, workspace: int) -> Moment:
        return self._moment(Point.LAYER, self._made_above(at), saved, 0, workspace, at)

    def backward_of_embedding(self) -> Moment:
        """The embedding's gradient comes, the root's weights still there; or all are copied into the root's flat; or
        that is reduced into shards, in its own format and then theirs, while autograd still holds one gradient.

        A tied table's two gradients and their sum are there together.
        """
        layers = [shape for shapes in self.layer_tensors for shape in shapes]
        coming = self.root + self._tables_coming() + self._flat(self.layer_tensors[0])
        sent = self._gathered(self.root_tensors) + self._flat(self.root_tensors)
        cast = self.shard_width if self.reduced_width != self.shard_width else 0
        shards = tensors_bytes(map(self._mine, _each(self.root_tensors)), self.reduced_width + cast)
        reduced = self._flat(self.root_tensors) + self._gathered(self.head) + shards
        return self._moment(Point.EMBEDDING, layers, 0, 0, max(coming, sent, reduced))

    def _tables_coming(self) -> int:
        """The head's gradient and the embedding's, and of a tied table their sum, beside the hidden states'."""
        return self._gathered(self.head) * (3 if self.model.tied else 2) + self.residual

    def optimizer_step(self) -> Moment:
        stepping = super().optimizer_step()
        return more(stepping, gradients=self._shards(self.tensors) - stepping.parts.get(Part.GRADIENTS, 0))


def _each(shapes: Shapes) -> Iterable[tuple[int, ...]]:
    return shapes.elements() if hasattr(shapes, "elements") else shapes  # a Counter's, as often as it counts


def _used_up(saved: Saved, part: Owner, norm: Owner) -> bool:
    """Whether the backward needs this tensor of `part` and its `norm` no more when it comes to that norm."""
    return saved.owner is part or (saved.owner is norm and saved.role in (Role.OUTPUT, Role.NORMALISED))
