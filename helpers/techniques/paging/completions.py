"""A request inside the engine: its completion, why it was refused, and why it has to wait."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor
from transformers import PreTrainedModel

from ...catalog.errors import WorkbookError
from .blocks import BlockManager


@dataclass(eq=False)
class Completion:
    """One sequence while it runs, and what became of it. `tokens` are the new ones; `refused` says why there are none.

    Sample 0 is the greedy answer; sample k begins with the k-th next best token instead, and is greedy from there.
    """

    request: int
    sample: int
    prompt: tuple[int, ...]
    new_tokens: int
    tokens: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # [vocabulary] of each token, where the engine keeps them
    prefix_tokens: int = 0  # of the prompt, found in the prefix cache
    preempted: int = 0
    refused: WorkbookError | None = None
    swapped: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.tokens)


@dataclass(frozen=True)
class Shortage:
    """Why `request` waits: it needs more blocks than are available of the pool's `blocks`.

    `users` such requests, of `tokens` tokens with their answers, fit in the whole pool.
    """

    request: int
    needed: int
    available: int
    blocks: int
    users: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"request {self.request} waits: it needs {self.needed} blocks, and {self.available} of {self.blocks} "
            f"are available; {self.users} users of {self.tokens} tokens fit"
        )


def token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """Plain integers, which compare and hash alike whatever they came as; none if these are not token ids."""
    try:
        return tuple(map(operator.index, prompt))
    except TypeError:
        return ()


def refusal(model: PreTrainedModel, manager: BlockManager, asked: Completion, samples: int) -> WorkbookError | None:
    """Why this request can never run, if so."""
    config = model.config.get_text_config()
    vocabulary, limit = config.vocab_size, getattr(config, "max_position_embeddings", None)
    named, new = f"request {asked.request}", asked.new_tokens
    if not asked.prompt or not all(0 <= token < vocabulary for token in asked.prompt):
        found, allowed = list(asked.prompt[:8]), f"at least one token id, each from 0 to {vocabulary - 1}"
        return WorkbookError(f"the prompt of {named}: {found}", allowed, "tokenize it first")
    if samples > vocabulary:
        allowed = f"at most {vocabulary}, one for each first token"
        return WorkbookError(f"{samples} samples of {named}", allowed, "ask for fewer")
    if isinstance(new, bool) or not isinstance(new, int) or new < 1:
        return WorkbookError(f"{new!r} new tokens in {named}", "a whole number from 1 up", "ask for at least one")
    tokens, room = len(asked.prompt) + new, manager.blocks * manager.block_size
    if limit is not None and tokens > limit:
        allowed = f"at most {limit}, the model's context"
        return WorkbookError(f"{named} comes to {tokens} tokens", allowed, "shorten the prompt or the answer")
    if tokens > room:
        expected = f"at most {room} tokens, {manager.blocks} blocks of {manager.block_size}"
        do = f"give the engine {manager.blocks_for(tokens)} blocks or more"
        return WorkbookError(f"{named} comes to {tokens} tokens: 0 such users fit in the pool", expected, do)
    return None
