"""A training step in closed form on one rank of tensor parallelism, by the plan in Transformers' configs. No torch.

Heads, the MLP's columns and the tables' words are divided; hidden states, norms and the gathered logits are whole on
every rank. The embedding's gradient is whole as well, until a tied head's is added to it or the optimizer asks for the
share (DTensor reduces it no earlier). The plan is that of Transformers from 5.21 on: the trace follows the one that is
installed, and before an embedding that is not the head's too was whole.
"""

from __future__ import annotations

from dataclasses import replace

from ...catalog.errors import WorkbookError, require_whole
from ...catalog.layers import Attention, Layer, Linear, Mlp
from ...catalog.setup import TrainSetup
from ...catalog.shape import ModelShape
from .breakdown import Moment, Point, rounded
from .moments import Shapes, StepMoments, tensors_bytes
from .sharded import more
from .split import ROWS

MAX_RANKS = 2**10
PRECISIONS = ("fp32", "bf16", "autocast-bf16")


class TensorParallelMoments(StepMoments):
    """The moments of a step on one of `ranks` that share each layer."""

    def __init__(self, setup: TrainSetup, ranks: int, cublas_bytes: int, on_cuda: bool = False) -> None:
        self.ranks = ranks
        super().__init__(of_rank(setup, ranks), cublas_bytes, on_cuda)
        logits = setup.tokens * setup.model.vocab
        self.logits, self.logits_fp32 = rounded(logits * self.width.compute), rounded(4 * logits)
        self.table = tensors_bytes([(setup.model.vocab, setup.model.hidden)], self.recipe.grad_bytes)
        self.share = tensors_bytes(self.head, self.recipe.grad_bytes)

    def _gradients(self, shapes: Shapes) -> int:
        """An embedding of its own has its gradient whole, from when it is made until the optimizer has stepped."""
        whole = not self.model.tied and (self.accumulates or shapes is self.tensors)
        return super()._gradients(shapes) + whole * (self.table - self.share)

    def end_of_forward(self) -> Moment:
        """In the loss; or earlier, when logits are gathered: a rank's, all of them by rank, and again by word."""
        made = super().end_of_forward()
        gathering = 2 * self.logits + self.logits // self.ranks
        saved = self.stored_bytes + self.outside_bytes
        gathered = self._moment(Point.END_OF_FORWARD, (), saved, gathering)
        return max(made, gathered, key=lambda moment: moment.total)

    def backward_of_embedding(self) -> Moment:
        """A tied table's gradient is whole, beside its share, the head's, and their sum."""
        if not self.model.tied:
            return super().backward_of_embedding()
        workspace = self.table + 2 * self.share + self._to_be_added(self.head)
        return self._moment(Point.EMBEDDING, self.tensors, 0, 0, workspace)

    def optimizer_step(self) -> Moment:
        """The share of the embedding's gradient is made for each operator that reads it, and gone before copies are."""
        beyond = 0 if self.model.tied else max(0, self.share - self._copies())
        return more(super().optimizer_step(), workspace=beyond)


def of_rank(setup: TrainSetup, ranks: int) -> TrainSetup:
    """`setup` with the part of its model that one of `ranks` has."""
    require_whole("ranks", ranks, 2, MAX_RANKS, do="predict one rank by budget.train(setup)")
    if setup.precision not in PRECISIONS:
        do = "pass precision='bf16', or 'autocast-bf16'"
        raise WorkbookError(f"{setup.precision} under tensor parallelism", ", ".join(PRECISIONS), do)
    return replace(setup, model=rank_shape(setup.model, ranks))


def rank_shape(model: ModelShape, ranks: int) -> ModelShape:
    """What one of `ranks` has of `model`: of each layer the heads and columns, of the tables the words.

    WorkbookError where Transformers' plan is another one, or something cannot be divided.

    >>> from helpers.catalog import model
    >>> mine = rank_shape(model("llama-3-8b"), 4)
    >>> mine.heads, mine.kv_heads, mine.ffn, mine.vocab, mine.hidden
    (8, 2, 3584, 32064, 4096)
    """
    shares = {layer: _share_of(layer, ranks) for layer in set(model.layers)}
    if not model.is_dense_decoder or model.learned_positions or model.norm != "rmsnorm":
        do = "trace it: trace.train(setup, split=Split(tensor_parallel=...))"
        raise WorkbookError(f"{model.name} under tensor parallelism has no closed form here", "a Llama or Qwen", do)
    for what, size in (("KV heads", model.kv_heads), ("FFN", model.ffn), ("words", model.vocab)):
        if size % ranks:
            do = f"choose tensor_parallel among the divisors of {size:,}"
            raise WorkbookError(f"{size:,} {what} over {ranks} ranks", "as many for each rank", do)
    return replace(model, vocab=model.vocab // ranks, layers=tuple(shares[layer] for layer in model.layers))


def _share_of(layer: Layer, ranks: int) -> Layer:
    whole, mlp = layer.attention, layer.mlp
    heads, kv_heads = whole.heads // ranks, whole.kv_heads // ranks
    attention = replace(whole, heads=heads, kv_heads=kv_heads, linears=_shares(whole, ranks))
    return replace(layer, attention=attention, mlp=replace(mlp, ffn=mlp.ffn // ranks, linears=_shares(mlp, ranks)))


def _shares(part: Attention | Mlp, ranks: int) -> tuple[Linear, ...]:
    return tuple(
        replace(one, inputs=one.inputs // ranks) if one.name in ROWS else replace(one, outputs=one.outputs // ranks)
        for one in part.linears
    )
