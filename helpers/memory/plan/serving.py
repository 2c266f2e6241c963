"""One replica on some of the cards: bytes of a rank, how many users it holds, seconds to the first token and between
tokens.

Tensor parallel ranks divide heads and columns as vLLM does (`serve.tensor_parallel`), stages divide the layers.
A stage is counted with embedding and head, so of the middle ones a little too much. Prefill takes at most
`goal.prefill_tokens` in one forward, whose activations are counted whole on every rank. Two all-reduces in a layer add
up the hidden states of all tokens in a step; nothing is computed meanwhile. What stages hand over is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...catalog.devices import Device
from ...catalog.serve_setup import ServeSetup
from ...catalog.setup_fields import MAX_COUNT
from ...catalog.shape import ModelShape
from ...catalog.shipped import SHIPPED
from .. import budget
from ..breakdown import Breakdown, Part
from ..layer_work import attention_flops, weights_used
from ..serve import rank_weights
from .goal import ServeGoal
from .machine import Cards
from .seconds import NOTHING, Efficiency, Seconds, added, at

COLLECTIVES = 2  # all-reduces in a layer: behind attention and behind the MLP
HIDDEN_BYTES = 2  # of a value that an all-reduce adds up: 16 bits, whatever the weights are in
SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class ReplicaLayout:
    """How a replica lies on cards, and its formats."""

    tensor: int = 1
    pipeline: int = 1
    weights: str = "bf16"
    kv: str = "bf16"
    shipped: str = field(default="", repr=False)  # the format of the checkpoint

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline

    @property
    def served(self) -> str:
        """`weights` for a ServeSetup: of the checkpoint's own format with what it leaves out."""
        return SHIPPED if self.weights == self.shipped else self.weights

    @property
    def compromises(self) -> tuple[str, ...]:
        """What the formats give up of the checkpoint's quality: the reader has to agree."""
        weights = () if self.weights in (*SIXTEEN_BITS, self.shipped) else (f"weights in {self.weights}",)
        return weights + (() if self.kv in SIXTEEN_BITS else (f"KV cache in {self.kv}",))

    def __str__(self) -> str:
        degrees = " x ".join(f"{name} {n}" for name, n in (("TP", self.tensor), ("PP", self.pipeline)) if n > 1)
        return degrees or "one card"


class Replica:
    """A goal's model on `layout` of `cards`, with what is asked of it for several numbers of users computed once.

    `transient` holds what is known already of transients, by users (`_transients`): for layouts that differ in `tensor`
    alone it is the same.
    """

    def __init__(
        self,
        goal: ServeGoal,
        layout: ReplicaLayout,
        cards: Cards,
        rates: Efficiency,
        transient: dict[int, tuple[int, int, int]] | None = None,
    ) -> None:
        self.goal, self.layout, self.cards, self.rates = goal, layout, cards, rates
        self._read: dict[int, int] = {}
        self._transient = {} if transient is None else transient
        self._work: dict[int, float] = {}
        self.setup = ServeSetup(
            stage_of(goal.model, layout.pipeline),
            weights=layout.served,
            kv=layout.kv,
            context=goal.context,
            prompt=goal.prompt_tokens,
            prefill_tokens=goal.prefill_tokens,
        )

    @cached_property
    def weight_bytes(self) -> int:
        """On one rank."""
        return rank_weights.rank_weight_bytes(self.setup, self.layout.tensor)

    @cached_property
    def kv_bytes(self) -> int:
        """K and V, and states, of one user on one rank, with a full context."""
        shape = rank_weights.rank_shape(self.setup.model, self.layout.tensor)
        return self.setup.cache_bytes(model=shape)

    @property
    def room_bytes(self) -> int:
        """What a rank may take of its card."""
        return self.cards.room_of(self.layout.ranks).for_tensors_bytes

    def transient_bytes(self, users: int) -> int:
        """What the largest forward makes beside so many users' caches, with the libraries' workspaces.

        K and V of a piece that windows drop after it are divided over the ranks as the cache is.
        """
        if users not in self._transient:
            self._transient[users] = self._transients(users)
        prefill, decode, dropped = self._transient[users]
        return max(prefill + dropped // max(1, self._kv_shares), decode)

    @cached_property
    def _kv_shares(self) -> int:
        """Ranks that the KV heads are divided over; of a layer that has some, since LFM2's first has none."""
        whole = self.setup.model
        one = max(range(len(whole.layers)), key=lambda layer: whole.layers[layer].attention.kv_heads)
        mine = rank_weights.rank_shape(whole, self.layout.tensor).layers[one].attention.kv_heads
        return whole.layers[one].attention.kv_heads // max(1, mine)

    def _transients(self, users: int) -> tuple[int, int, int]:
        """Of prefill without what windows drop, of decoding, and what windows drop."""
        budgeted = budget.serve(replace(self.setup, users=users), self.cards.device)
        kept = (Part.PARAMETERS, Part.KV_CACHE)
        prefill, decode = (
            sum(size for part, size in one.parts.items() if part not in kept) for one in budgeted.moments
        )
        return prefill - budgeted.dropped_bytes, decode, budgeted.dropped_bytes

    @cached_property
    def most_users(self) -> int:
        """That the memory of a rank has room for: 0 where it has none for one, and no more than a setup can name."""
        room = self.room_bytes
        upper = min(MAX_COUNT, (room - self.weight_bytes) // self.kv_bytes)
        if upper < 1 or self.parts(1).total > room:
            return 0
        return largest(lambda users: self.parts(users).total <= room, upper)

    def parts(self, users: int) -> Breakdown:
        """Bytes of a rank with `users` full contexts."""
        kv = users * self.kv_bytes
        return Breakdown(parameters=self.weight_bytes, kv_cache=kv, workspace=self.transient_bytes(users))

    def between_tokens(self, users: int) -> Seconds:
        """Seconds from one token of a user to the next, while others' prompts are computed in the same steps.

        In a steady state a step takes `users * prompt / new` prompt tokens beside a token of each user. All stages are
        passed one after the other; each works on its share of the users meanwhile.
        """
        rates, device, stages = self.rates, self.cards.device, self.layout.pipeline
        at_once = max(1, -(-users // stages))
        memory = at(self._read_bytes(at_once) + at_once * self.kv_bytes, device.memory_bytes_per_s, rates.bandwidth)
        prefilled = at_once * self.goal.prompt_tokens / self.goal.new_tokens
        flops = at_once * self._flops(1) + prefilled * self._flops(self.goal.prompt_tokens) / self.goal.prompt_tokens
        products = at(flops / self.layout.ranks, flops_rate(device, self.layout.weights), rates.serving_flops)
        links = self._collectives(at_once + prefilled)
        step = added(memory, products, links, rates.overhead_s.times(1 / stages))
        return step.times(stages)

    def first_token(self, users: int) -> Seconds:
        """Seconds from a request to its first token where nobody waits before it: its prompt, and a step for others."""
        flops = self._flops(self.goal.prompt_tokens)
        peak = flops_rate(self.cards.device, self.layout.weights)
        prompt = at(flops / self.layout.tensor, peak, self.rates.serving_flops)
        links = self._sent(self.goal.prompt_tokens).times(self.layout.pipeline)
        return added(prompt, links, self.between_tokens(users))

    @cached_property
    def _reads_all(self) -> int:
        """Users whose tokens choose every expert; one where there are none."""
        enough = (-(-one.mlp.experts // max(1, one.mlp.experts_per_token)) for one in self.setup.model.layers)
        return max(1, *enough)

    def _read_bytes(self, users: int) -> int:
        """Weights that a rank reads for a token of each user: more users choose more experts, until all are chosen."""
        counted = min(users, self._reads_all)
        if counted not in self._read:
            setup = replace(self.setup, users=counted)
            self._read[counted] = rank_weights.rank_read_bytes(setup, self.layout.tensor)
        return self._read[counted]

    def _flops(self, tokens: int) -> float:
        """Of the whole model for so many tokens of one sequence."""
        if tokens not in self._work:
            self._work[tokens] = self._counted_flops(tokens)
        return self._work[tokens]

    def _counted_flops(self, tokens: int) -> float:
        model = self.goal.model
        head = model.vocab * model.embedding_width
        products = 2 * tokens * weights_used(model) + 2 * head
        if tokens == 1:  # which looks back on the whole context
            seen = self.goal.context
            scores = sum(
                attention_flops(one.attention, seen + 1) - attention_flops(one.attention, seen) for one in model.layers
            )
            return products + scores
        return products + sum(attention_flops(one.attention, tokens) for one in model.layers)

    def _collectives(self, tokens: float) -> Seconds:
        """The all-reduces of one stage in one step over so many tokens: a latency for each call, and its bytes."""
        if self.layout.tensor == 1:
            return NOTHING
        calls = COLLECTIVES * len(self.setup.model.layers)
        slow = 1 if self.layout.tensor <= self.cards.node else 4
        return added(self.rates.collective_s.times(calls * slow), self._sent(tokens))

    def _sent(self, tokens: float) -> Seconds:
        """Seconds for the bytes of one stage's all-reduces; none where the catalogue knows no link of the card.

        A ring sends each hidden state nearly twice: 2 * (ranks - 1) / ranks of it, over the link in one direction.
        """
        ranks = self.layout.tensor
        if ranks == 1 or not self.cards.device.links:
            return NOTHING
        states = COLLECTIVES * len(self.setup.model.layers) * tokens * self.setup.model.hidden * HIDDEN_BYTES
        return at(2 * (ranks - 1) / ranks * states, self.cards.link_bytes_per_s(ranks), self.rates.link)


def largest(allowed: Callable[[int], bool], upper: int) -> int:
    """The largest number of users from 1 to `upper` that is allowed, where fewer always are if more are.

    >>> largest(lambda users: users * users <= 50, 100)
    7
    """
    low, high = 1, upper
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle - 1)
    return low


def stage_of(model: ModelShape, stages: int) -> ModelShape:
    """The heaviest of `stages` parts with equally many layers, with embedding and head.

    The first layers of a mixture of experts may be dense, so the first stage need not be the heaviest.
    """
    if stages == 1:
        return model
    each = -(-len(model.layers) // stages)
    sizes = {layer: layer.parameters for layer in set(model.layers)}
    parts = (model.layers[start : start + each] for start in range(0, len(model.layers), each))
    return replace(model, layers=max(parts, key=lambda layers: sum(sizes[layer] for layer in layers)))


def flops_rate(device: Device, weights: str) -> int:
    """The rate of products: FP8's where the weights are in FP8 and the card multiplies them, else that of 16 bits."""
    if weights.startswith("fp8") and weights in device.peak_flops:
        return device.flops_per_s(weights)
    return device.flops_per_s("bf16" if "bf16" in device.peak_flops else "fp16")
