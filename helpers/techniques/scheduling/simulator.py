"""A discrete simulator: the scheduler, a clock, and a step time in place of a model. No torch.

Seconds are as good as the step time. Counts are exact: which step admits whom, how many steps there are, who is
preempted, how many blocks are taken.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Row
from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from .arrivals import Arrival, require_in_order
from .plan import Plan, Sequence
from .policy import Policy
from .scheduler import Scheduler
from .step_time import StepTime


@dataclass(frozen=True)
class Served:
    """One request, as its user saw it. Seconds."""

    number: int
    user: str
    priority: int
    at_s: float
    first_token_s: float  # the moment
    last_token_s: float  # the moment
    new_tokens: int
    longest_gap_s: float  # between two of its tokens
    preempted: int

    @property
    def ttft_s(self) -> float:
        """Time to first token, waiting included."""
        return self.first_token_s - self.at_s

    @property
    def itl_s(self) -> float:
        """Inter-token latency: the mean gap between its tokens; 0 for one token."""
        return (self.last_token_s - self.first_token_s) / max(self.new_tokens - 1, 1)

    @classmethod
    def of(cls, sequence: Sequence) -> Served:
        times = sequence.times
        gap = max((after - before for before, after in itertools.pairwise(times)), default=0.0)
        who = sequence.number, sequence.user, sequence.priority, sequence.at_s
        return cls(*who, times[0], times[-1], len(times), gap, sequence.preempted)


@dataclass(frozen=True)
class Outcome:
    """What became of a trace. `served` are in the order of their end."""

    served: tuple[Served, ...]
    steps: int
    seconds: float
    computed_tokens: int  # with what was computed again
    peak_blocks: int
    peak_running: int
    proposed: int = 0  # tokens of a small model that were checked
    accepted: int = 0

    @property
    def new_tokens(self) -> int:
        return sum(one.new_tokens for one in self.served)

    @property
    def tokens_per_s(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def preemptions(self) -> int:
        return sum(one.preempted for one in self.served)

    @property
    def running(self) -> float:
        """Sequences that decode at a time, on average: Little's law, throughput x inter-token latency."""
        return sum(one.last_token_s - one.first_token_s for one in self.served) / self.seconds if self.seconds else 0.0

    def of_user(self, user: str) -> tuple[Served, ...]:
        return tuple(one for one in self.served if one.user == user)


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed. share=0.99 of 50 values: the largest.

    >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.51)
    (2, 3)
    """
    ordered = sorted(values)
    if not ordered or not 0 < share <= 1:
        raise WorkbookError(
            f"the {share:g} quantile of {len(ordered)} values", "values, and a share up to 1", "pass 0.99"
        )
    return ordered[math.ceil(share * len(ordered) - 1e-9) - 1]


class Server:
    """One simulated replica: a scheduler, and the time on its clock. `run(until)` serves what comes before.

    A step that has begun is finished, so the clock may stand behind `until` afterwards. Where `policy.drafts` are
    checked, each is right with probability `acceptance`, drawn by `seed`; behind the first wrong one none counts.
    """

    def __init__(
        self,
        policy: Policy,
        step_time: StepTime,
        blocks: int,
        block_size: int = 16,
        prefix: bool = False,
        host_blocks: int = 0,
        acceptance: float = 0.0,
        seed: int = 0,
    ) -> None:
        if not 0 <= acceptance <= 1:
            raise WorkbookError(f"acceptance is {acceptance!r}", "a share from 0 to 1", "pass acceptance=0.7")
        self.acceptance, self.dice = acceptance, random.Random(seed)
        self.scheduler = Scheduler(policy, blocks, block_size, prefix, host_blocks)
        self.step_time = step_time
        self.now = 0.0
        self.open: dict[Sequence, int] = {}  # submitted and not done: tokens of its answer, which nobody knows yet
        self.served: list[Served] = []
        self.steps = self.computed_tokens = self.peak_blocks = self.peak_running = 0

    def submit(self, arrival: Arrival, at_s: float) -> Sequence:
        """The request is there from `at_s` on."""
        if not self.open:
            self.now = max(self.now, at_s)
        request = arrival.request
        new = self.scheduler.submit(request.prompt, arrival.most_tokens, at_s, arrival.user, arrival.priority)
        self.open[new] = request.new_tokens
        return new

    def receive(self, prefilled: Sequence, answer: int, at_s: float) -> Sequence:
        """A request that another instance has prefilled is there from `at_s` on."""
        if not self.open:
            self.now = max(self.now, at_s)
        new = self.scheduler.receive(prefilled, answer)
        self.open[new] = answer
        return new

    def wakes_at(self) -> float | None:
        """When somebody who cannot begin now may; None if that needs somebody else to come."""
        return self.scheduler.wakes_at()

    def run(self, until: float = math.inf) -> None:
        while self.open and self.now < until:
            if not self.step():  # nothing can begin before somebody comes, or a batch's patience ends
                wakes = self.wakes_at()
                then = until if wakes is None else min(wakes, until)
                if then == math.inf:
                    return
                self.now = max(self.now, then)

    def step(self) -> bool:
        """One step of the clock; False if nobody may run yet."""
        plan = self.scheduler.schedule(self.now)
        if not plan.chunks and not plan.moves:
            return False
        self.now += self.step_time.seconds(plan)
        self.computed(plan)
        self.peak_blocks = max(self.peak_blocks, self.scheduler.manager.blocks - len(self.scheduler.manager.free))
        drafts = {chunk.sequence: chunk.drafts for chunk in plan.chunks}
        tokens = {one: self._tokens(one, drafts[one]) for one in self.scheduler.generates(plan)}
        self.scheduler.complete(plan, tokens, self.now, ends=frozenset({1}))
        self.steps, self.computed_tokens = self.steps + 1, self.computed_tokens + plan.new_tokens
        self.peak_running = max(self.peak_running, len(plan.chunks))
        self.served += [Served.of(sequence) for sequence in self.open if sequence.done]
        self.open = {sequence: answer for sequence, answer in self.open.items() if not sequence.done}
        return True

    def computed(self, plan: Plan) -> None:
        """`plan` was computed by `now`, and nobody has been told yet."""

    def _tokens(self, sequence: Sequence, drafts: int) -> tuple[int, ...]:
        """As many as are accepted and one more: 1 where the answer ends, else 0."""
        right = next((at for at in range(drafts) if self.dice.random() >= self.acceptance), drafts)
        left = self.open[sequence] - len(sequence.tokens)
        return tuple(int(at == left) for at in range(1, right + 2))

    def outcome(self) -> Outcome:
        peaks = self.peak_blocks, self.peak_running
        guessed = self.scheduler.proposed, self.scheduler.accepted
        return Outcome(tuple(self.served), self.steps, self.now, self.computed_tokens, *peaks, *guessed)


def simulate(
    arrivals: Row[Arrival],
    policy: Policy,
    step_time: StepTime,
    blocks: int,
    block_size: int = 16,
    prefix: bool = False,
    host_blocks: int = 0,
    concurrency: int | None = None,
    acceptance: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Serve `arrivals`, as `Server` does.

    With `concurrency` their times are ignored: so many clients each wait for their last answer.
    """
    require_in_order(arrivals)
    server = Server(policy, step_time, blocks, block_size, prefix, host_blocks, acceptance, seed)
    if concurrency is not None:
        return _closed_loop(arrivals, server, require_whole("concurrency", concurrency))
    for arrival in arrivals:
        server.run(arrival.at_s)
        server.submit(arrival, arrival.at_s)
    server.scheduler.more_to_come = False
    server.run()
    return server.outcome()


def _closed_loop(arrivals: Row[Arrival], server: Server, concurrency: int) -> Outcome:
    coming = deque(arrivals)
    server.scheduler.more_to_come = False
    while coming or server.open:
        while coming and len(server.open) < concurrency:
            server.submit(coming.popleft(), server.now)
        server.step()
    return server.outcome()
