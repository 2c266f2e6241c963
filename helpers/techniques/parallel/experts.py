"""Expert parallelism: experts live on different ranks, and tokens travel to them and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from .formula import capacity, require_experts
from .groups import part, require_agreement, require_same, whole_world
from .operators import Group, exchange
from .tensor import cut


@dataclass(frozen=True)
class RoutedTokens:
    """Where this rank's tokens go: row i of the sent buffer's `slots` holds the token of assignment i that was `kept`.

    An assignment is a token and one of its experts; a slot is one of an expert's `capacity` places for this rank.
    """

    kept: Tensor
    slots: Tensor
    capacity: int

    @property
    def dropped(self) -> int:
        return int((~self.kept).sum())


class ExpertParallel(nn.Module):
    """A Mixtral block of which each rank has some experts, and the whole router.

    Each rank brings its own tokens. An expert takes at most `capacity_factor` times an even share of a rank's
    assignments, rounded up; what comes later is dropped: that expert adds nothing to the token, which its residual
    carries on. `dropped` counts the last call's. With a factor of experts / experts per token nothing ever is.
    """

    def __init__(self, block: Any, group: Group | None = None, capacity_factor: float = 1.25) -> None:
        super().__init__()
        self.group, self.router, self.capacity_factor = whole_world(group), block.gate, capacity_factor
        self.experts, self.top_k = block.experts.num_experts, block.gate.top_k
        width, ffn = block.experts.hidden_dim, block.experts.intermediate_dim
        sizes = {"experts": self.experts, "hidden_size": width, "intermediate_size": ffn}
        require_agreement({**sizes, "capacity_factor": capacity_factor}, self.group)
        require_experts(self.experts, self.group.size())
        mine = part(self.experts, self.group)
        self.gate_up, self.down = cut(block.experts.gate_up_proj[mine]), cut(block.experts.down_proj[mine])
        self.dropped = 0

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        count = torch.tensor([len(tokens)], device=x.device)
        require_same("numbers of tokens", [count], self.group, "pad every rank's batch to the same length")
        _, weights, chosen = self.router(tokens)
        routed = route(chosen, self.experts, capacity(len(tokens), self.top_k, self.experts, self.capacity_factor))
        self.dropped = routed.dropped
        back = exchange(self.computed(exchange(self.dispatched(tokens, routed), self.group)), self.group)
        return self.combined(back, weights, routed).view(x.shape)

    def dispatched(self, tokens: Tensor, routed: RoutedTokens) -> Tensor:
        """(ranks, experts of a rank x capacity, width): row r is for rank r. Unused slots are zeros, and travel too."""
        sent = tokens.new_zeros(self.experts * routed.capacity, tokens.shape[-1])
        source = torch.arange(len(tokens), device=tokens.device).repeat_interleave(self.top_k)[routed.kept]
        return sent.index_copy(0, routed.slots, tokens[source]).view(self.group.size(), -1, tokens.shape[-1])

    def computed(self, received: Tensor) -> Tensor:
        """Each of this rank's experts, on what all ranks have sent to it."""
        ranks, _, width = received.shape
        by_expert = received.view(ranks, len(self.gate_up), -1, width).unbind(1)
        answers = [
            linear(swiglu(linear(tokens, gate_up)), down)
            for tokens, gate_up, down in zip(by_expert, self.gate_up, self.down, strict=True)
        ]
        return torch.stack(answers, 1).view(received.shape)

    def combined(self, back: Tensor, weights: Tensor, routed: RoutedTokens) -> Tensor:
        """Each token's answers, weighted by the router and added; nothing for an assignment that was dropped."""
        answers = back.new_zeros(len(routed.kept), back.shape[-1])
        answers[routed.kept] = back.flatten(0, 1)[routed.slots]
        weights = weights.to(back.dtype).unsqueeze(-1)
        return (answers.view(-1, self.top_k, back.shape[-1]) * weights).sum(1)


def route(chosen: Tensor, experts: int, capacity: int) -> RoutedTokens:
    """Slots for the experts that tokens have `chosen`, (tokens, top_k): first come, first served.

    >>> route(torch.tensor([[0], [1], [0], [0]]), experts=2, capacity=2).kept.tolist()
    [True, True, True, False]
    """
    flat = chosen.flatten()
    places = nn.functional.one_hot(flat, experts).cumsum(0).gather(1, flat.unsqueeze(1)).squeeze(1) - 1
    kept = places < capacity
    return RoutedTokens(kept, (flat * capacity + places)[kept], capacity)


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return silu(gate) * up


def average_expert_gradients(model: nn.Module, group: Group) -> None:
    """The gradients of the mean loss of all ranks, after each rank's backward from the mean loss of its own tokens.

    An expert's gradient has arrived with the tokens of every rank, as a sum: it is divided, and nothing is sent.
    Whatever every rank holds, routers among it, is averaged as in data parallelism.
    """
    experts = {p for m in model.modules() if isinstance(m, ExpertParallel) for p in (m.gate_up, m.down)}
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(group.size())
            if parameter not in experts:
                dist.all_reduce(parameter.grad, group=group)
