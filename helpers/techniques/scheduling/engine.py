"""The scheduler with a model behind it: each step's plan is one packed forward over the pool of blocks. Greedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from transformers import PreTrainedModel

from ...catalog.errors import WorkbookError
from ..paging.attention import KVPool, SentCache
from ..paging.completions import Completion, refusal, token_ids
from .arrivals import Arrival, require_in_order
from .drafting import Drafter, agreed
from .packed import PackedRow, packed_forward
from .plan import MoveKind, Plan, Sequence
from .policy import Policy
from .scheduler import Scheduler


@dataclass(frozen=True)
class TimedPlan:
    """A step as it was computed."""

    plan: Plan
    seconds: float


class ScheduledEngine:
    """Serves `model` from `blocks` blocks of `block_size` tokens under `policy`; the tokens are those of `generate`.

    One thread at a time. `clock` gives seconds: `time.process_time` leaves out what else the machine does. `history`
    keeps the plan and the time of each step where `keep_history` is set. With a `draft` model and `policy.drafts` a
    step checks that many proposals for each sequence that decodes. `send` is called with each sequence that has its
    first token and the cache of its prompt: for an engine that prefills for another one, whose `receive` takes them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blocks: int,
        policy: Policy | None = None,
        block_size: int = 16,
        host_blocks: int = 0,
        prefix: bool = True,
        clock: Callable[[], float] = time.perf_counter,
        keep_history: bool = False,
        draft: PreTrainedModel | None = None,
        send: Callable[[Sequence, SentCache], object] | None = None,
    ) -> None:
        self.model, self.clock = model, clock
        self.scheduler = Scheduler(policy or Policy(), blocks, block_size, prefix, host_blocks)
        self.scheduler.more_to_come = False
        self.pool = KVPool(blocks, block_size, host_blocks)
        if (draft is None) != (self.scheduler.policy.drafts == 0):
            what = f"{self.scheduler.policy.drafts} drafts {'without' if draft is None else 'with'} a draft model"
            raise WorkbookError(what, "both or neither", "pass draft=small_model and Policy(drafts=4)")
        self.drafter = Drafter(draft, model, self.scheduler.manager, host_blocks) if draft is not None else None
        self.send = send
        self.forwards = 0
        self.keep_history = keep_history
        self.history: list[TimedPlan] = []
        self.started = clock()
        ends = model.generation_config.eos_token_id
        self.ends = frozenset(ends if isinstance(ends, list) else [] if ends is None else [ends])

    @property
    def now(self) -> float:
        """Seconds since the engine was made."""
        return self.clock() - self.started

    @property
    def pools(self) -> list[KVPool]:
        """The large model's keys and values, and a draft model's."""
        return [self.pool, self.drafter.pool] if self.drafter else [self.pool]

    @property
    def busy(self) -> bool:
        """Somebody waits or runs."""
        return bool(self.scheduler.waiting or self.scheduler.running)

    def submit(
        self, prompt: Iterable[int], new_tokens: int, user: str = "", priority: int = 0, at_s: float | None = None
    ) -> Sequence:
        """Queue a request. WorkbookError, with the reason, for one that this model or this pool could never answer."""
        ids = token_ids(list(prompt))
        asked = Completion(self.scheduler.submitted, 0, ids, new_tokens)
        refused = refusal(self.model, self.scheduler.manager, asked, samples=1)
        if refused is not None:
            raise refused
        return self.scheduler.submit(ids, new_tokens, self.now if at_s is None else at_s, user, priority)

    def receive(self, prefilled: Sequence, cache: SentCache, new_tokens: int) -> Sequence:
        """Queue a request whose prompt another engine has computed: `cache` goes to host blocks, its tokens go on here.

        OutOfBlocksError if `host_blocks` have no room for it.
        """
        sequence = self.scheduler.receive(prefilled, new_tokens)
        self.pool.receive(self.scheduler.manager.host_tables[sequence], cache)
        return sequence

    def cancel(self, sequence: Sequence) -> None:
        """Between two steps: its blocks are free at once."""
        self.scheduler.cancel(sequence)

    def step(self) -> list[Sequence]:
        """One plan, one forward. Returns the sequences that got a token; none if nobody may run yet."""
        plan = self.scheduler.schedule(self.now)
        for kind, copies in plan.moves:
            for pool in self.pools:
                (pool.swap_out if kind is MoveKind.SWAP_OUT else pool.swap_in)(list(copies))
        if not plan.chunks:
            return []
        before, generates = self.clock(), self.scheduler.generates(plan)
        best = self._forward(plan)
        if self.keep_history:
            self.history.append(TimedPlan(plan, self.clock() - before))
        manager = self.scheduler.manager
        first = {one: list(manager.tables[one]) for one in generates if self.send and not one.tokens}
        self.scheduler.complete(plan, {one: best[one] for one in generates}, self.now, self.ends)
        for sequence, table in first.items():  # whose blocks may be free by now, and nobody has written to them
            if self.send:
                self.send(sequence, self.pool.read(table, len(sequence.prompt)))
        return generates

    def run(self, arrivals: Iterable[Arrival], timed: bool = False) -> list[Sequence]:
        """Answer all, in the order of `arrivals`. `timed` waits for their times; otherwise all are there at once."""
        coming, made = list(arrivals), list[Sequence]()
        require_in_order(coming)
        start = self.now
        while len(made) < len(coming) or self.busy:
            while len(made) < len(coming) and (not timed or coming[len(made)].at_s <= self.now - start):
                arrival = coming[len(made)]
                at = start + arrival.at_s if timed else self.now
                who = arrival.user, arrival.priority
                made.append(self.submit(arrival.request.prompt, arrival.most_tokens, *who, at))
            self.scheduler.more_to_come = len(made) < len(coming)
            if not self.step() and not self.scheduler.running:
                time.sleep(0.0005)
        return made

    def _forward(self, plan: Plan) -> dict[Sequence, tuple[int, ...]]:
        """The next tokens after each chunk; of unfinished prompts nobody reads them."""
        proposed = self.drafter.propose(plan) if self.drafter else {}
        guesses = [proposed.get(chunk.sequence, ()) for chunk in plan.chunks]
        rows = []
        for chunk, guessed in zip(plan.chunks, guesses, strict=True):
            ids = (*chunk.sequence.ids, *guessed)[chunk.context - chunk.tokens : chunk.context]
            rows.append(PackedRow(chunk.sequence, ids, chunk.context, wanted=1 + chunk.drafts))
        self.forwards += 1
        best = packed_forward(self.model, self.pool, self.scheduler.manager, rows)
        answers = zip(plan.chunks, guesses, best, strict=True)
        return {chunk.sequence: agreed(guessed, tokens) for chunk, guessed, tokens in answers}
