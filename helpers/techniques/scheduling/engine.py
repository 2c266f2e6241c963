"""The scheduler with a model behind it: each step's plan is one packed forward over the pool of blocks. Greedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..paging.attention import KVPool, PagedInputs, paged_model
from ..paging.completions import Completion, refusal, token_ids
from .arrivals import Arrival, require_in_order
from .packed import PackedTables, packed
from .policy import Policy
from .scheduler import MoveKind, Plan, Scheduler, Sequence


@dataclass(frozen=True)
class TimedPlan:
    """A step as it was computed."""

    plan: Plan
    seconds: float


class ScheduledEngine:
    """Serves `model` from `blocks` blocks of `block_size` tokens under `policy`; the tokens are those of `generate`.

    One thread at a time. `clock` gives seconds: `time.process_time` leaves out what else the machine does. `history`
    keeps the plan and the time of each step where `keep_history` is set.
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
    ) -> None:
        self.model, self.clock = model, clock
        self.scheduler = Scheduler(policy or Policy(), blocks, block_size, prefix, host_blocks)
        self.scheduler.more_to_come = False
        self.pool = KVPool(blocks, block_size, host_blocks)
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

    def cancel(self, sequence: Sequence) -> None:
        """Between two steps: its blocks are free at once."""
        self.scheduler.cancel(sequence)

    def step(self) -> list[Sequence]:
        """One plan, one forward. Returns the sequences that got a token; none if nobody may run yet."""
        plan = self.scheduler.schedule(self.now)
        for kind, copies in plan.moves:
            (self.pool.swap_out if kind is MoveKind.SWAP_OUT else self.pool.swap_in)(list(copies))
        if not plan.chunks:
            return []
        before, generates = self.clock(), self.scheduler.generates(plan)
        best = self._forward(plan)
        if self.keep_history:
            self.history.append(TimedPlan(plan, self.clock() - before))
        self.scheduler.complete(plan, {one: best[one] for one in generates}, self.now, self.ends)
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

    @torch.no_grad()
    def _forward(self, plan: Plan) -> dict[Sequence, int]:
        """The best next token after each chunk; of unfinished prompts nobody reads it."""
        chunks, manager = plan.chunks, self.scheduler.manager
        where = PackedTables(
            tuple(tuple(manager.tables[chunk.sequence]) for chunk in chunks),
            tuple(chunk.context for chunk in chunks),
            tuple(chunk.tokens for chunk in chunks),
            manager.block_size,
            self.model.device,
        )
        ids = [token for c in chunks for token in c.sequence.ids[c.context - c.tokens : c.context]]
        self.forwards += 1
        with paged_model(self.model):
            logits = self.model(
                input_ids=torch.tensor([ids], device=self.model.device),
                position_ids=where.positions(len(ids)),
                use_cache=False,
                logits_to_keep=where.last,
                paged=PagedInputs(self.pool, where, packed),
            ).logits[0]
        best = logits.argmax(-1).tolist()
        return {chunk.sequence: token for chunk, token in zip(chunks, best, strict=True)}
