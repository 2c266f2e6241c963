"""How long a step takes: a roofline with its efficiencies said aloud, or a line fitted to measured steps. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...catalog import ModelShape, ServeSetup, device
from ...catalog.devices import Device
from ...catalog.errors import WorkbookError, require_number
from ...catalog.formats import number_format
from ...memory.layer_work import weights_used
from ...memory.serve.rank_weights import rank_read_bytes, rank_shape
from .plan import Plan


class StepTime(Protocol):
    def seconds(self, plan: Plan) -> float: ...


class Load(Protocol):
    """What a roofline reads of a step: a `Plan`, or the mean of many."""

    @property
    def new_tokens(self) -> float: ...
    @property
    def context_tokens(self) -> float: ...
    @property
    def pairs(self) -> float: ...
    @property
    def moved_blocks(self) -> int: ...


@dataclass(frozen=True)
class Roofline:
    """Seconds of a step: overhead + the slower of bytes and FLOPs, each at a share of what the datasheet promises.

    Bytes: the weights once, and keys and values of every token that is read. FLOPs: 2 for each weight and token, 4 for
    each query-key pair and channel. With several ranks each does its part. The efficiencies are inputs: nothing in a
    datasheet tells them, and a run that was measured does (`nim.fitted`).
    """

    weight_bytes: int
    kv_bytes_per_token: int
    flops_per_token: int
    flops_per_pair: int
    bytes_per_s: float
    flops_per_s: float
    overhead_s: float = 0.0
    block_move_s: float = 0.0  # for each block that is swapped

    @classmethod
    def of(
        cls,
        setup: ServeSetup,
        gpu: str | Device,
        ranks: int = 1,
        memory_efficiency: float = 0.7,
        compute_efficiency: float = 0.5,
        overhead_s: float = 0.0,
    ) -> Roofline:
        """The roofline of one rank of `ranks`. The defaults are round numbers, not measurements.

        >>> roof = Roofline.of(ServeSetup("llama-3-8b"), "h100", memory_efficiency=1.0)
        >>> round(roof.weight_bytes / roof.bytes_per_s * 1000, 2)  # ms, the floor of a decode step
        4.48
        """
        for name, share in (("memory_efficiency", memory_efficiency), ("compute_efficiency", compute_efficiency)):
            require_number(name, share, below=1.000001, expected="a share above 0, at most 1", do=f"pass {name}=0.5")
        card, model = device(gpu), setup.model
        compute = setup.weights if number_format(setup.weights).name.startswith("fp8") else "bf16"
        return cls(
            rank_read_bytes(setup, ranks),
            setup.kv_format.storage_bytes(kv_values_per_token(rank_shape(model, ranks))),
            2 * weights_used(model) // ranks,
            sum(4 * layer.attention.heads * layer.attention.head_dim for layer in model.layers) // ranks,
            card.memory_bytes_per_s * memory_efficiency,
            card.flops_per_s(compute) * compute_efficiency,
            overhead_s,
        )

    def seconds(self, plan: Load) -> float:
        computing = max(self.read_seconds(plan), self.compute_seconds(plan))
        return self.overhead_s + computing + plan.moved_blocks * self.block_move_s

    def read_seconds(self, plan: Load) -> float:
        return (self.weight_bytes + plan.context_tokens * self.kv_bytes_per_token) / self.bytes_per_s

    def compute_seconds(self, plan: Load) -> float:
        return (plan.new_tokens * self.flops_per_token + plan.pairs * self.flops_per_pair) / self.flops_per_s


@dataclass(frozen=True)
class SpeculativeStep:
    """`target` checks what `draft` proposed: the small model's forwards come first, one for each proposal."""

    target: StepTime
    draft: StepTime

    def seconds(self, plan: Plan) -> float:
        """The small model reads every prompt, too: it has keys and values of its own."""
        return self.target.seconds(plan) + sum(map(self.draft.seconds, plan.drafting()))


def kv_values_per_token(model: ModelShape) -> int:
    """Values that one token adds to the cache, over all layers. Llama-3-8B: 65,536."""
    return sum(layer.attention.kv_values_per_token for layer in model.layers)


@dataclass(frozen=True)
class FittedStep:
    """Seconds = a step + each forward's rows + each token + each token of context, as measured steps had them."""

    a_step_s: float
    a_row_s: float
    a_token_s: float
    a_context_token_s: float

    @classmethod
    def of(cls, plans: Sequence[Plan], seconds: Sequence[float]) -> FittedStep:
        """Least squares without negative terms, relative to each step's time, so that short steps count as well."""
        if len(plans) != len(seconds) or len(plans) < 8:
            what = f"{len(plans)} steps with {len(seconds)} times"
            raise WorkbookError(what, "a time for each of eight steps or more", "run a longer trace")
        rows = [(1.0, len(p.chunks), p.new_tokens, p.context_tokens) for p in plans]
        return cls(*_non_negative(rows, seconds))

    def seconds(self, plan: Plan) -> float:
        terms = (1, len(plan.chunks), plan.new_tokens, plan.context_tokens)
        rates = (self.a_step_s, self.a_row_s, self.a_token_s, self.a_context_token_s)
        return sum(count * rate for count, rate in zip(terms, rates, strict=True))


def _non_negative(rows: Sequence[tuple[float, ...]], seconds: Sequence[float]) -> list[float]:
    """Drop the most negative term and solve again, until none is negative."""
    import numpy as np

    matrix, target = np.array(rows), np.array(seconds)
    weights = 1 / np.sqrt(target)
    kept = list(range(matrix.shape[1]))
    while True:
        solved, *_ = np.linalg.lstsq(matrix[:, kept] * weights[:, None], target * weights, rcond=None)
        if (solved >= 0).all():
            break
        kept.pop(int(solved.argmin()))
    rates = dict(zip(kept, map(float, solved), strict=True))
    return [rates.get(term, 0.0) for term in range(matrix.shape[1])]
