"""The scheduler: before every step it says who computes how many tokens. It moves block numbers, no tensors; no torch.

It is vLLM V1's in small: there is no prefill phase and no decode phase. A sequence has tokens, and some of them have
their keys and values in the pool; a step computes some of the rest. That is a chunk of the prompt, the one token that
was generated last, or everything again after a preemption.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ...catalog.errors import WorkbookError, require_whole
from ..paging.blocks import BlockManager, Copy, OutOfBlocksError
from ..paging.prefix import PrefixCache
from .plan import MoveKind, Plan, Sequence, TokenChunk
from .policy import Policy


class Scheduler:
    """`policy` over `blocks` blocks of `block_size` tokens. Call `submit`, then `schedule` and `complete` in turn.

    >>> scheduler = Scheduler(Policy(token_budget=8), blocks=10, block_size=4)
    >>> long, short = scheduler.submit(range(10), 2), scheduler.submit(range(3), 2)
    >>> [(chunk.sequence.number, chunk.tokens) for chunk in scheduler.schedule(now=0.0).chunks]
    [(0, 8)]
    """

    def __init__(
        self, policy: Policy, blocks: int, block_size: int = 16, prefix: bool = False, host_blocks: int = 0
    ) -> None:
        self.policy = policy
        self.manager = BlockManager(blocks, block_size, host_blocks)
        self.prefix = PrefixCache(self.manager) if prefix else None
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.served: Counter[str] = Counter()  # tokens computed for each user, where the order is "fair"
        self.more_to_come = True  # a static batch waits to be full; set to False when nobody else will come
        self._moves: list[tuple[MoveKind, tuple[Copy, ...]]] = []
        self.submitted = 0
        self.proposed = self.accepted = 0  # tokens of a smaller model: checked, and found right

    def submit(
        self, prompt: Iterable[int], new_tokens: int, at_s: float = 0.0, user: str = "", priority: int = 0
    ) -> Sequence:
        """Queue a request. WorkbookError if it could never run, with the blocks that it would take."""
        sequence = Sequence(
            self.submitted, tuple(prompt), require_whole("new_tokens", new_tokens), at_s, user, priority
        )
        if not sequence.prompt:
            raise WorkbookError("an empty prompt", "at least one token id", "begin with the tokenizer's first token")
        needed = self.manager.blocks_for(sequence.longest)
        if needed > self.manager.blocks:
            what = f"a request of {sequence.longest} tokens, {needed} blocks of {self.manager.block_size}"
            raise WorkbookError(
                what, f"at most {self.manager.blocks} blocks, the whole pool", "give the pool more blocks"
            )
        self.submitted += 1
        self.waiting.append(sequence)
        return sequence

    def receive(self, prefilled: Sequence, new_tokens: int) -> Sequence:
        """Queue a request that another instance has prefilled: its keys and values are in host blocks of this one now.

        It waits for room on the device as one that was swapped out, and goes on with its second token.
        """
        who = prefilled.at_s, prefilled.user, prefilled.priority
        sequence = self.submit(prefilled.prompt, new_tokens, *who)
        sequence.tokens, sequence.times = list(prefilled.tokens), list(prefilled.times)
        sequence.computed, sequence.swapped = len(sequence.prompt), True
        self.manager.receive(sequence, sequence.computed)
        return sequence

    def schedule(self, now: float) -> Plan:
        """Who computes what in the step that begins at `now`. Takes the blocks for it, and preempts for them."""
        self._moves = []
        chunks: list[TokenChunk] = []
        if self.policy.token_budget is None:  # prompts whole, before anybody decodes
            chunks = self._admit(now, None) or self._continue(now, None)
        else:
            chunks = self._continue(now, self.policy.token_budget)
            chunks += self._admit(now, self.policy.token_budget - sum(chunk.tokens for chunk in chunks))
        return Plan(tuple(chunks), tuple(self._moves), self.manager.block_size)

    def complete(
        self,
        plan: Plan,
        tokens: Mapping[Sequence, int | tuple[int, ...]],
        now: float,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """`plan` was computed by `now`, and gave `tokens` to the sequences of which nothing was left to compute.

        One token, or the proposals that were right and the one after them. What is behind the answer's end is dropped.
        """
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.done:  # cancelled meanwhile
                continue
            sequence.computed = chunk.context - chunk.drafts
            if self.policy.order == "fair":  # a count for each user who ever asked
                self.served[sequence.user] += chunk.tokens
            if self.prefix and chunk.tokens - chunk.drafts > 1:
                self.prefix.insert(sequence, sequence.ids[: sequence.computed])
            if sequence in tokens:
                given = tokens[sequence]
                self._take(chunk, given if isinstance(given, tuple) else (given,), now, ends)

    def _take(self, chunk: TokenChunk, given: tuple[int, ...], now: float, ends: frozenset[int]) -> None:
        """Up to the answer's end; blocks that only wrong proposals filled are given back."""
        sequence = chunk.sequence
        self.proposed, self.accepted = self.proposed + chunk.drafts, self.accepted + len(given) - 1
        for token in given:
            sequence.tokens.append(token)
            sequence.times.append(now)
            if len(sequence.tokens) == sequence.new_tokens or token in ends:
                sequence.computed = sequence.known - 1
                self._finish(sequence)
                return
        sequence.computed = sequence.known - 1
        if chunk.drafts:
            self.manager.truncate(sequence, sequence.computed)

    def generates(self, plan: Plan) -> list[Sequence]:
        """The sequences that `plan` gives a token: after it nothing of them is left to compute."""
        return [c.sequence for c in plan.chunks if c.context - c.drafts == c.sequence.known]

    def cancel(self, sequence: Sequence) -> None:
        """Nobody wants the answer any more: its blocks are free at once. Nothing happens to one that is done."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            if sequence.swapped:
                self.manager.release(sequence)
            sequence.done = True
        elif sequence in self.running:
            self._finish(sequence)

    def wakes_at(self) -> float | None:
        """When a batch that waits to be full begins all the same; None if nobody waits for that."""
        if self.policy.batching != "dynamic" or self.running or not self.waiting:
            return None
        return min(sequence.at_s for sequence in self.waiting) + self.policy.max_wait_s

    def urgency(self, sequence: Sequence, now: float) -> tuple[float, float, int]:
        """The order of service, smallest first; the last in it is the first to be preempted."""
        arrival = sequence.at_s, sequence.number
        if self.policy.order == "priority":
            aged = (now - sequence.at_s) / self.policy.aging_s if self.policy.aging_s else 0.0
            return (sequence.priority - aged, *arrival)
        if self.policy.order == "shortest":
            return (sequence.longest, *arrival)
        return (self.served[sequence.user] if self.policy.order == "fair" else 0, *arrival)

    def _continue(self, now: float, budget: int | None) -> list[TokenChunk]:
        """The next tokens of those who run, the most urgent first, so that nobody is preempted who has his chunk."""
        chunks, left, behind = [], budget, len(self.running)
        for sequence in sorted(self.running, key=lambda running: self.urgency(running, now)):
            tokens, behind = sequence.uncomputed if left is None else min(sequence.uncomputed, left), behind - 1
            drafts = self._drafts(sequence, None if left is None else left - tokens - behind) if tokens else 0
            tokens += drafts
            if tokens and self._make_room(sequence, tokens, now):
                chunks.append(TokenChunk(sequence, tokens, sequence.computed + tokens, drafts))
                left = None if left is None else left - tokens
        return chunks

    def _drafts(self, sequence: Sequence, left: int | None) -> int:
        """Proposals to check beside its one token, as far as its answer can use them; nobody is preempted for them."""
        if not self.policy.drafts or sequence.uncomputed != 1:
            return 0
        useful = sequence.new_tokens - len(sequence.tokens) - 1
        drafts = max(0, min(self.policy.drafts, useful, useful if left is None else left))
        return drafts if self.manager.has(self.manager.needed(sequence, 1 + drafts)) else 0

    def _make_room(self, sequence: Sequence, tokens: int, now: float) -> bool:
        """Take the blocks for `tokens` more; the least urgent give way, and at worst that is `sequence` itself."""
        while sequence in self.running:
            try:
                self.manager.append(sequence, tokens)
                return True
            except OutOfBlocksError:
                self._preempt(max(self.running, key=lambda running: self.urgency(running, now)))
        return False

    def _preempt(self, sequence: Sequence) -> None:
        sequence.preempted += 1
        self.running.remove(sequence)
        self.waiting.append(sequence)
        if self.policy.preemption == "swap" and len(self.manager.tables[sequence]) <= len(self.manager.host_free):
            self._moves.append((MoveKind.SWAP_OUT, tuple(self.manager.swap_out(sequence))))
            sequence.swapped = True
        else:
            self._release(sequence)
            sequence.computed = 0

    def _admit(self, now: float, budget: int | None) -> list[TokenChunk]:
        """Who begins, or begins again, in this step; nobody overtakes the most urgent one that does not fit."""
        chunks: list[TokenChunk] = []
        if not self._batch_may_begin(now) or any(kind is MoveKind.SWAP_OUT for kind, _ in self._moves):
            return chunks
        left = budget
        for sequence in sorted(self.waiting, key=lambda waiting: self.urgency(waiting, now)):
            if len(self.running) >= self.policy.rows or left == 0 or not self._fits(sequence):
                break
            if budget is None and chunks and self._too_many(chunks, sequence):
                break
            self._begin(sequence)
            tokens = sequence.uncomputed if left is None else min(sequence.uncomputed, left)
            self.manager.append(sequence, tokens)
            chunks.append(TokenChunk(sequence, tokens, sequence.computed + tokens))
            left = None if left is None else left - tokens
        return chunks

    def _too_many(self, chunks: list[TokenChunk], sequence: Sequence) -> bool:
        """Whether whole prompts would be more than one step may compute; a single one may always be."""
        tokens = sum(chunk.tokens for chunk in chunks) + sequence.uncomputed
        return self.policy.max_prefill_tokens is not None and tokens > self.policy.max_prefill_tokens

    def _batch_may_begin(self, now: float) -> bool:
        if self.policy.batching == "continuous":
            return True
        if self.running or not self.waiting:
            return False
        deadline = self.wakes_at()
        full = len(self.waiting) >= self.policy.rows or not self.more_to_come
        return full or (deadline is not None and now >= deadline)

    def _begin(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        if sequence.swapped:
            self._moves.append((MoveKind.SWAP_IN, tuple(self.manager.swap_in(sequence))))
            sequence.swapped = False
        elif self.prefix:
            first = not (sequence.preempted or sequence.tokens)
            sequence.computed = self.prefix.adopt(sequence, sequence.ids, count=first)
            sequence.prefix_tokens = sequence.computed if first else sequence.prefix_tokens

    def _fits(self, sequence: Sequence) -> bool:
        """Whether the blocks are there for what is known of it, or, "to-the-end", for its longest answer."""
        if sequence.swapped:
            needed = self.manager.blocks_for(sequence.known)
        elif self.prefix:
            needed = self.prefix.needed(sequence.ids)
        else:
            needed = self.manager.blocks_for(sequence.known)
        if self.policy.admission == "to-the-end":
            needed += self._to_the_end(sequence) - self.manager.blocks_for(sequence.known)
            needed += sum(self._to_the_end(other) - len(self.manager.tables[other]) for other in self.running)
        return self.manager.has(needed)

    def _to_the_end(self, sequence: Sequence) -> int:
        return self.manager.blocks_for(sequence.longest - 1)  # the last token is never computed

    def _finish(self, sequence: Sequence) -> None:
        sequence.done = True
        self.running.remove(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        if self.prefix:
            self.prefix.insert(sequence, sequence.ids[: sequence.computed])
        self.manager.release(sequence)
