"""A trace of requests through a memory policy, step by step and without a model; and the block map after each step.

In each step, whoever fits is admitted with the whole prompt, and everybody who runs gets one token. Three policies:
"contiguous" reserves the longest length for each request, "paged" takes blocks when they are needed, and "prefix"
also shares full blocks of equal prompts. No torch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from ...catalog.errors import WorkbookError, require_name, require_whole
from .blocks import BlockManager, ContiguousManager, OutOfBlocksError
from .prefix import Hits, PrefixCache
from .traces import RequestTrace

POLICIES = ("contiguous", "paged", "prefix")


class ReplayEventKind(Enum):
    """What can happen to a request in a step."""

    ADMITTED = auto()
    WAITS = auto()
    PREEMPTED = auto()
    DONE = auto()


@dataclass(frozen=True)
class ReplayEvent:
    """`request` is a place in the trace; `found_tokens` of an admitted one were in the prefix cache."""

    kind: ReplayEventKind
    request: int
    found_tokens: int = 0


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

    Out of blocks, the request that was admitted last gives its blocks back and is computed again later.
    """

    def __init__(self, trace: RequestTrace, policy: str, blocks: int, block_size: int = 16, users: int = 16) -> None:
        self.policy = require_name("policy", policy, POLICIES)
        self.trace, self.users = trace, require_whole("users", users)
        self.block_size, self.blocks = require_whole("block_size", block_size), require_whole("blocks", blocks)
        self.prefix: PrefixCache | None = None
        self.manager: BlockManager | ContiguousManager
        if policy == "contiguous":
            self.manager = ContiguousManager(blocks * block_size, trace.max_tokens)
        else:
            self.manager = BlockManager(blocks, block_size)
            self.prefix = PrefixCache(self.manager) if policy == "prefix" else None
        self.waiting, self.running = deque(range(len(trace.requests))), list[int]()
        self.made = [0] * len(trace.requests)  # tokens of each answer so far
        self.counted: set[int] = set()  # looked up in the prefix cache before: hits count once
        self.events: list[ReplayEvent] = []  # of the last step
        self.steps = self.preempted = 0
        self._refuse_too_long()

    @property
    def done(self) -> bool:
        return not (self.waiting or self.running)

    def step(self) -> None:
        """Admit, then one token each; those that are complete leave before the next step."""
        self.events = []
        for name in list(self.running):
            if self.made[name] >= self.trace.requests[name].new_tokens:
                self._release(name, ReplayEventKind.DONE)
        self._admit()
        for name in list(self.running):
            self._grow(name)
        self.steps += 1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.users:
            name = self.waiting[0]
            tokens = self._tokens(name)
            if not self._fits(tokens):
                self.events.append(ReplayEvent(ReplayEventKind.WAITS, name))
                return
            self.waiting.popleft()
            found = self.prefix.adopt(name, tokens, count=name not in self.counted) if self.prefix else 0
            self.counted.add(name)
            self.manager.append(name, len(tokens) - found)
            if self.prefix:
                self.prefix.insert(name, tokens)
            self.running.append(name)
            self.events.append(ReplayEvent(ReplayEventKind.ADMITTED, name, found))

    def _fits(self, tokens: tuple[int, ...]) -> bool:
        if isinstance(self.manager, ContiguousManager):
            return self.manager.fits()
        needed = self.prefix.needed(tokens) if self.prefix else self.manager.blocks_for(len(tokens))
        return self.manager.has(needed)

    def _grow(self, name: int) -> None:
        """One token more, unless `name` was preempted for another's, or is now for its own."""
        while name in self.running:
            try:
                self.manager.append(name, 1)
            except OutOfBlocksError:
                self._preempt(self.running[-1])
            else:
                self.made[name] += 1
                return

    def _preempt(self, name: int) -> None:
        self._release(name, ReplayEventKind.PREEMPTED)
        self.waiting.appendleft(name)
        self.preempted += 1

    def _release(self, name: int, why: ReplayEventKind) -> None:
        if self.prefix:
            self.prefix.insert(name, self._tokens(name))
        self.manager.release(name)
        self.running.remove(name)
        self.events.append(ReplayEvent(why, name))

    def _tokens(self, name: int) -> tuple[int, ...]:
        request = self.trace.requests[name]
        return request.prompt + request.answer[: self.made[name]]

    def _refuse_too_long(self) -> None:
        longest = max((request.tokens for request in self.trace.requests), default=0)
        room, needed = self.blocks * self.block_size, self.trace.max_tokens if self.policy == "contiguous" else longest
        if needed > room:
            do = f"pass blocks={-(-needed // self.block_size)} or more"
            raise WorkbookError(f"a pool of {room} tokens for a request of {needed}", f"at least {needed}", do)


def waste_of(
    trace: RequestTrace, policy: str, block_size: int = 16, users: int = 16, blocks: int | None = None
) -> Usage:
    """Replay the whole of `trace`; without `blocks`, in a pool where `users` requests of any length fit."""
    room = blocks or users * -(-trace.max_tokens // require_whole("block_size", block_size))
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


@dataclass(frozen=True)
class BlockCell:
    """One block of the pool. No owners and not `cached`: free. No owners and `cached`: kept for a later prompt.

    Contiguous memory is cut into cells of the same size; a region's last cell may be its only in part (`reserved`).
    """

    block: int
    owners: tuple[int, ...] = ()  # requests, by their place in the trace
    filled: int = 0  # tokens
    reserved: int = 0  # slots that are taken, filled or not
    cached: bool = False

    @property
    def shared(self) -> bool:
        return len(self.owners) > 1


@dataclass(frozen=True)
class BlockMapFrame:
    """The memory after one step. `tables` are the block tables of the running requests; contiguous memory has none."""

    step: int
    events: tuple[ReplayEvent, ...]
    cells: tuple[BlockCell, ...]
    tables: dict[int, tuple[int, ...]]
    lengths: dict[int, int]
    waiting: tuple[int, ...]
    block_size: int

    @property
    def reserved(self) -> int:
        """Slots that a request has taken; what only the prefix cache keeps is not counted."""
        return sum(cell.reserved for cell in self.cells)

    @property
    def filled(self) -> int:
        return sum(cell.filled for cell in self.cells if cell.owners)

    @property
    def waste(self) -> float:
        return 1 - self.filled / self.reserved if self.reserved else 0.0

    @property
    def shared(self) -> int:
        """Blocks that more than one request uses."""
        return sum(cell.shared for cell in self.cells)


def frames(
    trace: RequestTrace, policy: str, blocks: int, block_size: int = 16, users: int = 16, steps: int = 200
) -> tuple[BlockMapFrame, ...]:
    """The first `steps` frames of `trace` through a pool of `blocks` blocks; fewer if it ends before."""
    replay = Replay(trace, policy, blocks, block_size, users)
    made: list[BlockMapFrame] = []
    while not replay.done and len(made) < steps:
        replay.step()
        made.append(frame_of(replay))
    return tuple(made)


def frame_of(replay: Replay) -> BlockMapFrame:
    """What `replay` holds now."""
    manager, tables = replay.manager, dict[int, tuple[int, ...]]()
    if isinstance(manager, BlockManager):
        tables = {name: tuple(table) for name, table in cast("dict[int, list[int]]", manager.tables).items()}
        cells = _paged_cells(manager, tables)
    else:
        cells = _contiguous_cells(manager, replay.blocks, replay.block_size)
    lengths = dict(cast("dict[int, int]", manager.lengths))
    events, waiting = tuple(replay.events), tuple(replay.waiting)
    return BlockMapFrame(replay.steps, events, cells, tables, lengths, waiting, replay.block_size)


def _paged_cells(manager: BlockManager, tables: dict[int, tuple[int, ...]]) -> tuple[BlockCell, ...]:
    owners: list[list[int]] = [[] for _ in range(manager.blocks)]
    for name, table in tables.items():
        for block in table:
            owners[block].append(name)
    fills, size = manager.fills(), manager.block_size
    cells = []
    for block, references in enumerate(manager.references):
        filled, reserved = fills.get(block, size if references else 0), size if owners[block] else 0
        cells.append(BlockCell(block, tuple(owners[block]), filled, reserved, references > len(owners[block])))
    return tuple(cells)


def _contiguous_cells(manager: ContiguousManager, blocks: int, size: int) -> tuple[BlockCell, ...]:
    starts, cells = cast("dict[int, int]", manager.starts), []
    for block in range(blocks):
        here = range(block * size, (block + 1) * size)
        owners = {name: start for name, start in starts.items() if _overlap(here, start, manager.max_tokens)}
        filled = sum(_overlap(here, start, manager.lengths[name]) for name, start in owners.items())
        reserved = sum(_overlap(here, start, manager.max_tokens) for start in owners.values())
        cells.append(BlockCell(block, tuple(owners), filled, reserved))
    return tuple(cells)


def _overlap(here: range, start: int, length: int) -> int:
    return max(0, min(here.stop, start + length) - max(here.start, start))
