"""A trace of requests through a memory policy, step by step and without a model. No torch.

In each step, whoever fits is admitted with the whole prompt, and everybody who runs gets one token. Three policies:
"contiguous" reserves the longest length for each request, "paged" takes blocks when they are needed, and "prefix"
also shares full blocks of equal prompts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...catalog.errors import WorkbookError, unknown_name
from .blocks import BlockManager
from .contiguous import ContiguousManager
from .errors import OutOfBlocksError, positive
from .prefix import Hits, PrefixCache
from .traces import Request, Trace

POLICIES = ("contiguous", "paged", "prefix")


@dataclass(frozen=True)
class Usage:
    """A whole replay, summed over its steps. `tokens` are those of running requests, a shared one for each of them."""

    policy: str
    steps: int
    reserved: int  # slot-steps
    filled: int  # slot-steps
    tokens: int  # token-steps
    peak_slots: int
    preempted: int
    hits: Hits

    @property
    def waste(self) -> float:
        """Share of the reserved slots that hold no token, averaged over the steps."""
        return 1 - self.filled / self.reserved if self.reserved else 0.0

    @property
    def slots_per_token(self) -> float:
        """Slots reserved for each token that a request can see: under 1 when sharing saves more than rounding costs."""
        return self.reserved / self.tokens if self.tokens else 0.0


class Replay:
    """`trace` through `blocks` blocks under `policy`, at most `users` requests at a time; `step()` until `done`.

    Out of blocks, the request that was admitted last gives its blocks back and starts again later with the tokens that
    it has (preemption by recompute).
    """

    def __init__(self, trace: Trace, policy: str, blocks: int, block_size: int = 16, users: int = 16) -> None:
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)
        self.trace, self.policy, self.users = trace, policy, positive("users", users)
        self.block_size, self.blocks = positive("block_size", block_size), positive("blocks", blocks)
        paged = policy != "contiguous"
        self.manager = (
            BlockManager(blocks, block_size) if paged else ContiguousManager(blocks * block_size, trace.max_tokens)
        )
        self.prefix = PrefixCache(self.manager) if policy == "prefix" else None
        self.waiting, self.running = deque(range(len(trace.requests))), []
        self.made = [0] * len(trace.requests)  # tokens of each answer so far
        self.counted: set[int] = set()  # looked up in the prefix cache before: hits count once
        self.events: list[str] = []  # of the last step
        self.steps = self.preempted = 0
        self._refuse_too_long()

    @property
    def done(self) -> bool:
        return not (self.waiting or self.running)

    def step(self) -> None:
        """Admit, then one token each; those that are complete leave before the next step."""
        self.events = []
        self._leave()
        self._admit()
        for name in list(self.running):
            if name in self.running:  # not preempted for another's token
                self._grow(name)
        self.steps += 1

    def _leave(self) -> None:
        for name in [name for name in self.running if self.made[name] >= self._request(name).new_tokens]:
            self._release(name, f"{name} done")

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.users:
            name = self.waiting[0]
            tokens = self._tokens(name)
            if not self._fits(tokens):
                self.events.append(f"{name} waits")
                return
            self.waiting.popleft()
            found = self.prefix.adopt(name, tokens, count=name not in self.counted) if self.prefix else 0
            self.counted.add(name)
            self.manager.append(name, len(tokens) - found)
            if self.prefix:
                self.prefix.insert(name, tokens)
            self.running.append(name)
            self.events.append(f"{name} admitted" + (f", {found} tokens found" if found else ""))

    def _fits(self, tokens: tuple[int, ...]) -> bool:
        if self.policy == "contiguous":
            return self.manager.fits()
        needed = self.prefix.needed(tokens) if self.prefix else self.manager.blocks_for(len(tokens))
        return needed <= self.manager.available

    def _grow(self, name: int) -> None:
        while name in self.running:
            try:
                self.manager.append(name, 1)
            except OutOfBlocksError:
                self._preempt(self.running[-1])
            else:
                self.made[name] += 1
                return

    def _preempt(self, name: int) -> None:
        self._release(name, f"{name} preempted")
        self.waiting.appendleft(name)
        self.preempted += 1

    def _release(self, name: int, event: str) -> None:
        if self.prefix:
            self.prefix.insert(name, self._tokens(name))
        self.manager.release(name)
        self.running.remove(name)
        self.events.append(event)

    def _request(self, name: int) -> Request:
        return self.trace.requests[name]

    def _tokens(self, name: int) -> tuple[int, ...]:
        return self._request(name).prompt + self._request(name).answer[: self.made[name]]

    def _refuse_too_long(self) -> None:
        longest = max((request.tokens for request in self.trace.requests), default=0)
        room, needed = self.blocks * self.block_size, self.trace.max_tokens if self.policy == "contiguous" else longest
        if needed > room:
            raise WorkbookError(
                f"a pool of {room} tokens for a request of {needed}",
                f"at least {needed}",
                f"pass blocks={-(-needed // self.block_size)} or more",
            )


def waste_of(trace: Trace, policy: str, block_size: int = 16, users: int = 16, blocks: int | None = None) -> Usage:
    """Replay the whole of `trace`; without `blocks`, in a pool where `users` requests of any length fit."""
    room = blocks or users * -(-trace.max_tokens // positive("block_size", block_size))
    replay = Replay(trace, policy, room, block_size, users)
    reserved = filled = tokens = peak = 0
    while not replay.done:
        replay.step()
        now = replay.manager.reserved_slots
        reserved, peak = reserved + now, max(peak, now)
        filled += replay.manager.filled_slots
        tokens += sum(replay.manager.lengths.values())
    hits = replay.prefix.hits if replay.prefix else Hits()
    return Usage(policy, replay.steps, reserved, filled, tokens, peak, replay.preempted, hits)
