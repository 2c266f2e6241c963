"""A training step in closed form on one rank of tensor parallelism, by the plan in Transformers' configs. No torch.

Heads, the MLP's columns and the tables' words are divided; hidden states, norms and the gathered logits are whole on
every rank. The embedding's gradient is whole as well, until a tied head's is added to it or the optimizer asks for the
share (DTensor reduces it no earlier). The plan is that of Transformers from 5.21 on: the trace follows the one that is
installed, and before an embedding that is not the head's too was whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....catalog.devices import Device
from ....catalog.errors import require_whole
from ....catalog.layers import Layer, Linear
from ....catalog.shape import ModelShape
from ....catalog.train_setup import TrainSetup
from ...breakdown import Moment, rounded
from ..decoders.linears import ROWS
from ..refusals import refuse
from ..step import TapedStep
from .stages import PRECISIONS

MAX_RANKS = 2**10
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # whose plans in Transformers are columns and rows, and no more


class TensorParallelStep(TapedStep):
    """The moments of a step on one of `ranks` that share each layer, with what that has of the model."""

    def __init__(self, mine: TrainSetup, ranks: int, card: Device | None = None) -> None:
        self.parts = ranks
        super().__init__(mine, card)

    def _weights(self) -> None:
        """An embedding of its own has its gradient whole, from when it is made until the optimizer has stepped."""
        super()._weights()
        self.whole = rounded(self.parts * self.model.vocab * self.model.hidden * self.new_bytes)
        if not self.model.tied:
            self.all_gradients += self.whole - self.table

    def _behind_layers(self) -> list[Moment]:
        """A tied table's gradient is whole, beside its share, the head's, and their sum."""
        if not self.model.tied:
            return self._at_embedding(self.residual + self._summing(), self.whole)
        return self._at_embedding(self.whole + 2 * self.table, self.table)

    def _updating(self) -> int:
        """The share of the embedding's gradient is made for each operator that reads it, and gone before copies are."""
        return max(super()._updating(), 0 if self.model.tied else self.table)


def of_rank(setup: TrainSetup, ranks: int) -> TrainSetup:
    """`setup` with the part of its model that one of `ranks` has."""
    require_whole("ranks", ranks, 2, MAX_RANKS, do="predict one rank by budget.train(setup)")
    what, do = f"{setup.precision} under tensor parallelism", "pass precision='bf16', or 'autocast-bf16'"
    refuse(setup.precision not in PRECISIONS, what, ", ".join(PRECISIONS), do)
    return replace(setup, model=rank_shape(setup.model, ranks))


def rank_shape(model: ModelShape, ranks: int) -> ModelShape:
    """What one of `ranks` has of `model`: of each layer the heads and columns, of the tables the words.

    WorkbookError where Transformers' plan is another one, or something cannot be divided.

    >>> from helpers.catalog import model
    >>> mine = rank_shape(model("llama-3-8b"), 4)
    >>> mine.heads, mine.kv_heads, mine.ffn, mine.vocab, mine.hidden
    (8, 2, 3584, 32064, 4096)
    """
    do = f"trace it: `workbook trace train --model {model.name} --tensor-parallel {ranks}`"
    what = f"{model.name} (family {model.family!r}) under tensor parallelism has no closed form here"
    refuse(model.family not in FAMILIES, what, f"a model of {', '.join(FAMILIES)}", do)
    shares = {layer: _share_of(layer, ranks) for layer in set(model.layers)}
    for what, size in (("KV heads", model.kv_heads), ("FFN", model.ffn), ("words", model.vocab)):
        do = f"choose tensor_parallel among the divisors of {size:,}"
        refuse(size % ranks, f"{size:,} {what} over {ranks} ranks", "as many for each rank", do)
    return replace(model, vocab=model.vocab // ranks, layers=tuple(shares[layer] for layer in model.layers))


def _share_of(layer: Layer, ranks: int) -> Layer:
    whole, mlp = layer.attention, layer.mlp
    heads, kv_heads = whole.heads // ranks, whole.kv_heads // ranks
    attention = replace(whole, heads=heads, kv_heads=kv_heads, linears=_shares(whole.linears, ranks))
    return replace(
        layer, attention=attention, mlp=replace(mlp, ffn=mlp.ffn // ranks, linears=_shares(mlp.linears, ranks))
    )


def _shares(linears: Sequence[Linear], ranks: int) -> tuple[Linear, ...]:
    sides = {one: "inputs" if one.name in ROWS else "outputs" for one in linears}
    return tuple(replace(one, **{side: getattr(one, side) // ranks}) for one, side in sides.items())
