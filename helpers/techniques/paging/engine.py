"""A small engine over the block manager: continuous batching, shared prefixes, forks, preemption. Greedy.

One rule drives it: a sequence feeds the model what the pool does not hold yet. That is the whole prompt at first, what
is left of it after a prefix was found, everything again after a preemption by recompute, and one token from then on.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...catalog.errors import WorkbookError, unknown_name
from .attention import ATTENTIONS, BlockTables
from .blocks import BlockManager
from .errors import OutOfBlocksError, positive
from .kv_pool import KVPool, Step, paged_model
from .prefix import PrefixCache

PREEMPTIONS = ("recompute", "swap")


@dataclass(eq=False)
class Answer:
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


class Engine:
    """Decodes requests with `model` in `blocks` blocks of `block_size` tokens, at most `max_running` at a time.

    Out of blocks, the sequence that was admitted last makes room: `preempt="recompute"` forgets its keys and values,
    "swap" moves them to `host_blocks` blocks of host memory, and forgets them when those are full. Layers with a window
    see no further than that, but hold on to the blocks behind it.
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
    ) -> None:
        for kind, name, names in (("preemption", preempt, PREEMPTIONS), ("attention", attention, ATTENTIONS)):
            if name not in names:
                raise unknown_name(kind, name, names)
        self.model, self.max_running = model, positive("max_running", max_running)
        self.preempt, self.attention, self.keep_logits = preempt, attention, keep_logits
        self.manager = BlockManager(blocks, block_size, host_blocks)
        self.prefix = PrefixCache(self.manager) if prefix else None
        self.pool = KVPool(blocks, block_size, host_blocks)
        self.waiting: deque[Answer] = deque()
        self.running: list[Answer] = []  # in order of admission
        self.answers: list[Answer] = []
        self.to_fork: dict[int, list[Answer]] = {}  # by request: the samples that start when its first is prefilled
        self.why_waiting = ""
        self.forwards = 0
        ends = model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def run(self, requests: Iterable[tuple[Sequence[int], int]], samples: int = 1) -> list[Answer]:
        """Answer all (prompt ids, new tokens); one Answer for each sample, in order. Refused ones say so."""
        first = len(self.answers)
        for prompt, new_tokens in requests:
            self.submit(prompt, new_tokens, samples)
        while self.waiting or self.running:
            self.step()
        return self.answers[first:]

    def submit(self, prompt: Sequence[int], new_tokens: int, samples: int = 1) -> list[Answer]:
        """Queue a request, or refuse it: then its answers carry the reason, and no other request notices."""
        number = self.answers[-1].request + 1 if self.answers else 0
        made = [Answer(number, k, _token_ids(prompt), new_tokens) for k in range(positive("samples", samples))]
        self.answers += made
        refused = self._refusal(made[0], samples)
        for answer in made:
            answer.refused = refused
        if refused is None:
            self.waiting.append(made[0])
            self.to_fork[number] = made[1:]
        return made

    def users_that_fit(self, tokens: int) -> int:
        """How many sequences of `tokens` tokens the whole pool holds, nothing shared."""
        return self.manager.blocks // self.manager.blocks_for(positive("tokens", tokens))

    @torch.no_grad()
    def step(self) -> None:
        """Admit and prefill whoever fits, then one token for everybody who runs."""
        with paged_model(self.model):
            while self.waiting and len(self.running) < self.max_running and self._fits(self.waiting[0]):
                self._admit(self.waiting.popleft())
            for answer in list(self.running):
                if answer in self.running:  # not preempted for another's token
                    self._make_room(answer)
            if self.running:
                self._take(self.running, self._forward(self.running, 1))
        self._leave()

    def _fits(self, answer: Answer) -> bool:
        """Whether there is room for what it feeds first; if not, `why_waiting` says what there is."""
        if self.prefix and not answer.swapped:
            needed = self.prefix.needed(answer.ids)
        else:
            needed = self.manager.blocks_for(len(answer.ids))
        available, tokens = self.manager.available, len(answer.prompt) + answer.new_tokens
        fits = needed <= available
        self.why_waiting = ""
        if not fits:
            self.why_waiting = (
                f"request {answer.request} waits: it needs {needed} blocks, and {available} of {self.manager.blocks} "
                f"are available; {self.users_that_fit(tokens)} users of {tokens} tokens fit"
            )
        return fits

    def _admit(self, answer: Answer) -> None:
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

    def _fork(self, answer: Answer, logits: Tensor) -> None:
        """Its other samples start from the same blocks, with another first token; past `max_running` if need be."""
        for child in self.to_fork.pop(answer.request, []):
            self.manager.fork(answer, child)
            child.prefix_tokens = len(answer.prompt)
            self.running.append(child)
            self._take([child], logits)

    def _make_room(self, answer: Answer) -> None:
        """A slot for the token it feeds next; the last admitted give way, and at worst it is the last itself."""
        while answer in self.running:
            try:
                self.pool.copy(self.manager.append(answer, 1))
                return
            except OutOfBlocksError:
                self._preempt(self.running.pop())

    def _preempt(self, answer: Answer) -> None:
        answer.preempted += 1
        self.waiting.appendleft(answer)
        if self.preempt == "swap" and len(self.manager.tables[answer]) <= len(self.manager.host_free):
            self.pool.swap_out(self.manager.swap_out(answer))
            answer.swapped = True
        else:
            self.manager.release(answer)

    def _forward(self, answers: list[Answer], new: int) -> Tensor:
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
            paged=Step(self.pool, where, self.attention),
        ).logits[:, -1]

    def _take(self, answers: list[Answer], logits: Tensor) -> None:
        """The best token of each row; a further sample's first is the next best."""
        best = logits.argmax(-1).tolist()
        for row, answer in enumerate(answers):
            first_of_sample = answer.sample and not answer.tokens
            token = logits[row].topk(answer.sample + 1).indices[-1].item() if first_of_sample else best[row]
            answer.tokens.append(token)
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

    def _refusal(self, answer: Answer, samples: int) -> WorkbookError | None:
        """Why this request can never run, if so."""
        vocabulary = self.model.config.get_text_config().vocab_size
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        tokens, room = len(answer.prompt) + answer.new_tokens, self.manager.blocks * self.manager.block_size
        if not answer.prompt or not all(0 <= token < vocabulary for token in answer.prompt):
            return WorkbookError(
                f"the prompt of request {answer.request}: {list(answer.prompt[:8])}",
                f"at least one token id, each from 0 to {vocabulary - 1}",
                "tokenize it first",
            )
        if samples > vocabulary:
            return WorkbookError(
                f"{samples} samples of request {answer.request}",
                f"at most {vocabulary}, one for each first token",
                "ask for fewer",
            )
        if isinstance(answer.new_tokens, bool) or not isinstance(answer.new_tokens, int) or answer.new_tokens < 1:
            return WorkbookError(
                f"{answer.new_tokens!r} new tokens in request {answer.request}",
                "a whole number from 1 up",
                "ask for at least one",
            )
        if limit is not None and tokens > limit:
            return WorkbookError(
                f"request {answer.request} comes to {tokens} tokens",
                f"at most {limit}, the model's context",
                "shorten the prompt or the answer",
            )
        if tokens > room:
            return WorkbookError(
                f"request {answer.request} comes to {tokens} tokens: 0 such users fit in the pool",
                f"at most {room} tokens, {self.manager.blocks} blocks of {self.manager.block_size}",
                f"give the engine {self.manager.blocks_for(tokens)} blocks or more",
            )
        return None


def _token_ids(prompt: Sequence[int]) -> tuple[int, ...]:
    """Plain integers, which compare and hash alike whatever they came as; none if these are not token ids."""
    try:
        return tuple(map(operator.index, prompt))
    except TypeError:
        return ()
