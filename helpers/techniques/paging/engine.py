"""A small engine over the block manager: continuous batching, shared prefixes, forks, preemption. Greedy.

One rule drives it: a sequence feeds the model what the pool does not hold yet. That is the whole prompt at first, what
is left of it after a prefix was found, everything again after a preemption by recompute, and one token from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...catalog.errors import require_name, require_whole
from .attention import ATTENTIONS, BlockTables, KVPool, PagedInputs, paged_model
from .blocks import BlockManager, OutOfBlocksError
from .completions import Completion, Shortage, refusal, token_ids
from .prefix import PrefixCache
from .tiers import HostTier

PREEMPTIONS = ("recompute", "swap")


class Engine:
    """Decodes requests with `model` in `blocks` blocks of `block_size` tokens, at most `max_running` at a time.

    Out of blocks, the sequence that was admitted last makes room: `preempt="recompute"` forgets its keys and values,
    "swap" moves them to `host_blocks` blocks of host memory, and forgets them when those are full. With `tier` blocks
    that the prefix cache evicts stay on the host, and are fetched again. Layers with a window see no further than that,
    but hold on to the blocks behind it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blocks: int,
        block_size: int = 16,
        max_running: int = 8,
        prefix: bool = True,
        preempt: str = "recompute",
        host_blocks: int = 0,
        attention: str = "gathered",
        keep_logits: bool = False,
        tier: bool = False,
    ) -> None:
        self.preempt = require_name("preemption", preempt, PREEMPTIONS)
        self.attention = require_name("attention", attention, ATTENTIONS)
        self.max_running = require_whole("max_running", max_running)
        self.model, self.keep_logits = model, keep_logits
        self.manager = BlockManager(blocks, block_size, host_blocks)
        self.pool = KVPool(blocks, block_size, host_blocks)
        self.prefix = HostTier(self.manager, self.pool) if tier else PrefixCache(self.manager) if prefix else None
        self.waiting: deque[Completion] = deque()
        self.running: list[Completion] = []  # in order of admission
        self.answers: list[Completion] = []
        self.to_fork: dict[int, list[Completion]] = {}  # by request: the samples that start when its first is prefilled
        self.shortage: Shortage | None = None  # why the first who waits was not admitted; None if not for blocks
        self.forwards = 0
        ends = model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def run(self, requests: Iterable[tuple[Sequence[int], int]], samples: int = 1) -> list[Completion]:
        """Answer all (prompt ids, new tokens); one Completion for each sample, in order. Refused ones say so."""
        first = len(self.answers)
        for prompt, new_tokens in requests:
            self.submit(prompt, new_tokens, samples)
        while self.waiting or self.running:
            self.step()
        return self.answers[first:]

    def submit(self, prompt: Sequence[int], new_tokens: int, samples: int = 1) -> list[Completion]:
        """Queue a request, or refuse it: then its answers carry the reason, and no other request notices."""
        number = self.answers[-1].request + 1 if self.answers else 0
        made = [Completion(number, k, token_ids(prompt), new_tokens) for k in range(require_whole("samples", samples))]
        self.answers += made
        refused = refusal(self.model, self.manager, made[0], samples)
        for answer in made:
            answer.refused = refused
        if refused is None:
            self.waiting.append(made[0])
            self.to_fork[number] = made[1:]
        return made

    def users_that_fit(self, tokens: int) -> int:
        """How many sequences of `tokens` tokens the whole pool holds, nothing shared."""
        return self.manager.blocks // self.manager.blocks_for(require_whole("tokens", tokens))

    @torch.no_grad()
    def step(self) -> None:
        """Admit and prefill whoever fits, then one token for everybody who runs."""
        with paged_model(self.model):
            while self.waiting and len(self.running) < self.max_running:
                self.shortage = self._shortage(self.waiting[0])
                if self.shortage:
                    break
                self._admit(self.waiting.popleft())
            for answer in list(self.running):
                self._make_room(answer)
            if self.running:
                self._take(self.running, self._forward(self.running, 1))
        self._leave()

    def _shortage(self, first: Completion) -> Shortage | None:
        """What is missing for what it feeds first; None if there is room."""
        if self.prefix and not first.swapped:
            needed = self.prefix.needed(first.ids)
        else:
            needed = self.manager.blocks_for(len(first.ids))
        if self.manager.has(needed):
            return None
        tokens = len(first.prompt) + first.new_tokens
        users = self.users_that_fit(tokens)
        return Shortage(first.request, needed, self.manager.available, self.manager.blocks, users, tokens)

    def _admit(self, answer: Completion) -> None:
        self.running.append(answer)
        if answer.swapped:
            self.pool.swap_in(self.manager.swap_in(answer))
            answer.swapped = False
            return
        again = bool(answer.tokens)
        found = self.prefix.adopt(answer, answer.ids, count=not again) if self.prefix else 0
        answer.prefix_tokens = answer.prefix_tokens if again else found
        new = len(answer.ids) - found
        self.manager.append(answer, new)
        logits = self._forward([answer], new)
        if self.prefix:
            self.prefix.insert(answer, answer.ids)
        self._fork(answer, logits)
        self._take([answer], logits)
        self._leave()

    def _fork(self, answer: Completion, logits: Tensor) -> None:
        """Its other samples start from the same blocks, with another first token; past `max_running` if need be."""
        for child in self.to_fork.pop(answer.request, []):
            self.manager.fork(answer, child)
            child.prefix_tokens = len(answer.prompt)
            self.running.append(child)
            self._take([child], logits)

    def _make_room(self, answer: Completion) -> None:
        """A slot for the token it feeds next, if it still runs; the last admitted give way, and at worst that is it."""
        while answer in self.running:
            try:
                self.pool.copy(self.manager.append(answer, 1))
                return
            except OutOfBlocksError:
                self._preempt(self.running.pop())

    def _preempt(self, answer: Completion) -> None:
        answer.preempted += 1
        self.waiting.appendleft(answer)
        if self.preempt == "swap" and len(self.manager.tables[answer]) <= len(self.manager.host_free):
            self.pool.swap_out(self.manager.swap_out(answer))
            answer.swapped = True
        else:
            self.manager.release(answer)

    def _forward(self, answers: list[Completion], new: int) -> Tensor:
        """Logits [rows, vocabulary] after the last of `new` tokens of each; the manager has room for them already."""
        device = self.model.device
        tables = [self.manager.tables[answer] for answer in answers]
        longest = max(map(len, tables))
        lengths = torch.tensor([self.manager.lengths[answer] for answer in answers], device=device)
        padded = torch.tensor([table + [0] * (longest - len(table)) for table in tables], device=device)
        where = BlockTables(padded, lengths, self.manager.block_size)
        ids = torch.tensor([answer.ids[-new:] for answer in answers], device=device)
        self.forwards += 1
        return self.model(
            input_ids=ids,
            position_ids=where.positions(new),
            use_cache=False,
            logits_to_keep=1,
            paged=PagedInputs(self.pool, where, ATTENTIONS[self.attention]),
        ).logits[:, -1]

    def _take(self, answers: list[Completion], logits: Tensor) -> None:
        """The best token of each row; a further sample's first is the next best."""
        best = logits.argmax(-1).tolist()
        for row, answer in enumerate(answers):
            first_of_sample = answer.sample and not answer.tokens
            answer.tokens.append(int(logits[row].topk(answer.sample + 1).indices[-1]) if first_of_sample else best[row])
            if self.keep_logits:
                answer.logits.append(logits[row])

    def _leave(self) -> None:
        """Complete ones give their blocks back; the prefix cache keeps the full ones."""
        for answer in list(self.running):
            if len(answer.tokens) >= answer.new_tokens or answer.tokens[-1] in self.ends:
                self.running.remove(answer)
                if self.prefix:
                    self.prefix.insert(answer, answer.ids[: self.manager.lengths[answer]])
                self.manager.release(answer)
