"""The block map calculator: requests through a pool of KV blocks, one decoding step at a time.

The traces are those of `techniques.paging` with lengths about a tenth of theirs, so that they can be followed: a block
of 4 tokens wastes here what one of 32 to 64 does there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...questions.parameter import Parameter, whole
from ...questions.question import Question
from ...questions.setups import Values
from ...techniques import paging
from ...techniques.paging import POLICIES, BlockMapFrame, Hits, ReplayEventKind, RequestTrace, Usage
from ..drawing import block_maps
from ..drawing.block_maps import share, slots
from ..drawing.pictures import Card
from .answers import CalculatorAnswer
from .calculator import STEP, Calculator

LONGEST, USERS, MOST_BLOCKS = 256, 16, 2048  # tokens that a request may have; requests that may run at a time
TRACES: dict[str, dict[str, Any]] = {
    "chat": {"requests": 24, "system": 32, "message": 8, "answer": 19},
    "documents": {"requests": 24, "document": 75, "answer": 12, "instruction": 4},
    "code": {"requests": 24, "file": 60, "typed": 2, "answer": 5},
}  # name -> what differs from the trace of that name in techniques.paging
BLOCK_SIZES, POOLS = (1, 4, 8, 16, 32, 64, 128, 256), (512, 768, 1024)
NAMED = 5  # requests named in a list before it only counts them


@dataclass(frozen=True)
class Scene:
    """What is replayed, whichever step of it is asked for."""

    trace: str
    policy: str
    block_size: int
    pool_tokens: int

    @property
    def blocks(self) -> int:
        return self.pool_tokens // self.block_size

    def replay(self) -> paging.Replay:
        return paging.Replay(small(self.trace), self.policy, self.blocks, self.block_size, USERS)


@dataclass(frozen=True)
class BlockMapAnswer(CalculatorAnswer):
    """The pool after a step: `frame` is what it holds, `before` what it held, `whole` the sums over all steps."""

    scene: Scene
    before: BlockMapFrame | None
    frame: BlockMapFrame
    hits: Hits  # so far
    whole: Usage

    @property
    def title(self) -> str:
        frame, scene = self.frame, self.scene
        wasted = f"{share(frame.waste)} of the reserved slots hold nothing"
        state = wasted if frame.reserved else "everybody has finished"
        return f"step {frame.step} of {self.whole.steps}, {scene.trace}, {scene.policy}: {state}"

    @property
    def question(self) -> Question:
        return BLOCKS

    @property
    def asked(self) -> dict[str, Any]:
        scene = self.scene
        said = {"trace": scene.trace, "policy": scene.policy, "block_size": scene.block_size}
        return said | {"pool_tokens": scene.pool_tokens, "step": self.frame.step}

    def lines(self) -> Iterator[str]:
        scene, frame, hits, whole = self.scene, self.frame, self.hits, self.whole
        size, running, tokens = scene.block_size, len(frame.lengths), sum(frame.lengths.values())
        taken, kept, blocks = frame.reserved // size, slots(frame)["kept"] // size, len(frame.cells)
        how = f"{running} regions × {LONGEST}" if scene.policy == "contiguous" else f"{taken:,} blocks × {size}"
        yield f"running    {running:>7}   of at most {USERS}; waiting: {len(frame.waiting)}"
        yield f"reserved   {frame.reserved:>7,}   slots = {how}"
        once = f" = {tokens:,} in the tables − {tokens - frame.filled:,} that are shared" if frame.shared else ""
        yield f"filled     {frame.filled:>7,}   slots{once}"
        empty = f"= 1 − {frame.filled:,} / {frame.reserved:,}" if frame.reserved else "nothing is reserved"
        yield f"waste      {share(frame.waste):>7}   {empty}"
        cached = f" − {kept:,} kept for later prompts" if scene.policy == "prefix" else ""
        yield f"free       {blocks - taken - kept:>7,}   = {blocks:,} blocks − {taken:,} taken{cached}"
        if scene.policy == "prefix":
            yield f"hit rate   {share(hits.rate):>7}   = {hits.found:,} / {hits.asked:,} tokens of the prompts so far"
        again = f"; preempted: {whole.preempted}" if whole.preempted else ""
        yield f"all steps  {share(whole.waste):>7}   wasted, of at most {whole.peak_slots:,} slots reserved{again}"

    def sentences(self) -> Iterator[str]:
        """What happened; at the last step also what the three policies make of the whole trace."""
        yield happened(self.before, self.frame)
        if self.frame.step == self.whole.steps:
            usages = (_whole(replace(self.scene, policy=policy)) for policy in POLICIES)
            wasted = (
                f"{one.policy} wastes {share(one.waste)} of at most {one.peak_slots:,} slots in {one.steps} steps"
                for one in usages
            )
            yield f"Over the whole trace, {', '.join(wasted)}."

    @property
    def cards(self) -> tuple[Card, ...]:
        return (block_maps.block_map(self.title, self.frame, new_blocks(self.before, self.frame)),)

    @property
    def figures(self) -> dict[str, Any]:
        """Every number of the answer by name, for JSON. Slots in tokens."""
        frame, whole, part = self.frame, self.whole, slots(self.frame)
        return {
            "step": frame.step,
            "steps": whole.steps,
            "running": len(frame.lengths),
            "waiting": len(frame.waiting),
            "reserved": frame.reserved,
            "filled": frame.filled,
            "waste": frame.waste,
            "kept": part["kept"],
            "free": part["free"],
            "shared_blocks": frame.shared,
            "hit_rate": self.hits.rate,
            "whole_waste": whole.waste,
            "whole_peak": whole.peak_slots,
            "whole_preempted": whole.preempted,
        }


def block_map_answer(
    trace: str, policy: str = "paged", block_size: int = 4, pool_tokens: int = 1024, step: int = 1
) -> BlockMapAnswer:
    """A pool of `pool_tokens` slots after decoding step `step` (from 1) of the small `trace` under `policy`.

    In contiguous memory `block_size` is only what the pool is drawn in. A step past the end shows the last one, after
    which nobody runs. WorkbookError for unknown names, block sizes that engines do not have, a pool that the longest
    request does not fit and one that is not whole blocks, and a step below 1.

    >>> chat = block_map_answer("chat", "contiguous", step=20), block_map_answer("chat", "paged", step=20)
    >>> [round(answer.frame.waste, 3) for answer in chat], [len(answer.frame.lengths) for answer in chat]
    ([0.793, 0.026], [4, 16])
    """
    scene = _scene(trace, policy, block_size, pool_tokens)
    require_whole("step", step, do="pass step=1 for the first step")
    whole = _whole(scene)
    at = min(step, whole.steps)
    before, (frame, hits) = _moment(scene, at - 1)[0] if at > 1 else None, _moment(scene, at)
    return BlockMapAnswer(scene, before, frame, hits, whole)


def _scene(trace: str, policy: str, block_size: int, pool_tokens: int) -> Scene:
    require_name("trace", trace, TRACES)
    require_name("policy", policy, POLICIES)
    if type(block_size) is not int or block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise WorkbookError(f"block_size is {block_size!r}", f"one of {sizes}", "pass block_size=16")
    most = MOST_BLOCKS * block_size
    if type(pool_tokens) is not int or pool_tokens % block_size or not LONGEST <= pool_tokens <= most:
        allowed = f"a multiple of {block_size} from {LONGEST} (the longest request) to {most}"
        do = "pass pool_tokens=1024"
        raise WorkbookError(f"pool_tokens is {pool_tokens!r} in blocks of {block_size}", allowed, do)
    return Scene(trace, policy, block_size, pool_tokens)


@lru_cache
def small(name: str) -> RequestTrace:
    """The trace called `name`, short enough to follow."""
    return paging.trace(name, max_tokens=LONGEST, **TRACES[name])


@lru_cache(maxsize=64)
def _whole(scene: Scene) -> Usage:
    return paging.waste_of(small(scene.trace), scene.policy, scene.block_size, USERS, scene.blocks)


class ReplayPlayer:
    """A replay wound to any step: on from where it stands, or back by way of the beginning."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.replay = scene, scene.replay()

    def at(self, step: int) -> tuple[BlockMapFrame, Hits]:
        if step < self.replay.steps:
            self.replay = self.scene.replay()
        while self.replay.steps < step:
            self.replay.step()
        return paging.frame_of(self.replay), self.replay.prefix.hits if self.replay.prefix else Hits()


_player = lru_cache(maxsize=8)(ReplayPlayer)


@lru_cache(maxsize=64)  # a frame of 1,024 blocks is a quarter of a megabyte: those shown lately, not all
def _moment(scene: Scene, step: int) -> tuple[BlockMapFrame, Hits]:
    return _player(scene).at(step)


def happened(before: BlockMapFrame | None, now: BlockMapFrame) -> str:
    """One sentence: who finished, who was admitted and found what, who took blocks, was preempted, waits.

    >>> from helpers.techniques.paging import chat, frames
    >>> first, second = frames(chat(requests=4, system=6, message=2, answer=4), "paged", 2048, block_size=4, steps=2)
    >>> happened(first, second)
    'Requests 2 and 3 took a block each.'
    """
    clauses = "; ".join(_clauses(before, now))
    return f"{clauses[0].upper()}{clauses[1:]}."


def new_blocks(before: BlockMapFrame | None, now: BlockMapFrame) -> set[int]:
    """Blocks that are in a table of somebody who did not have them before."""
    old = set(_held(before)) if before else set()
    return {block for name, block in _held(now) if (name, block) not in old}


def _held(frame: BlockMapFrame) -> Iterator[tuple[int, int]]:
    return ((name, cell.block) for cell in frame.cells for name in cell.owners)


def _clauses(before: BlockMapFrame | None, now: BlockMapFrame) -> Iterator[str]:
    events, old = _events(now), before.tables if before else {}
    took = [name for name, table in now.tables.items() if name in old and len(table) > len(old[name])]
    admitted = events.get(ReplayEventKind.ADMITTED, {})
    found = {name: tokens for name, tokens in admitted.items() if tokens}
    plain = [name for name in admitted if name not in found]
    if done := events.get(ReplayEventKind.DONE):
        yield f"{requests(done)} finished"
    if found:
        whose = "their prompts" if len(found) > 1 else "its prompt"
        yield f"{requests(found)} {_was(found)} admitted, {sum(found.values())} tokens of {whose} found in the cache"
    if plain:
        yield f"{requests(plain)} {_was(plain)} admitted"
    if preempted := events.get(ReplayEventKind.PREEMPTED):
        yield f"{requests(preempted)} {_was(preempted)} preempted, blocks given back"
    if took:
        yield f"{requests(took)} took a block{' each' if len(took) > 1 else ''}"
    elif now.lengths and not events.keys() - {ReplayEventKind.WAITS}:
        yield f"every running request put its token into {'a block' if now.tables else 'the region'} that it had"
    if waits := events.get(ReplayEventKind.WAITS):
        room = "enough blocks for its prompt are" if now.tables else "a region is"
        yield f"{requests(waits)} waits until {room} free"


def _events(frame: BlockMapFrame) -> dict[ReplayEventKind, dict[int, int]]:
    """What happened -> the requests that it happened to, with the tokens that were found for each."""
    kinds: dict[ReplayEventKind, dict[int, int]] = {}
    for event in frame.events:
        kinds.setdefault(event.kind, {})[event.request] = event.found_tokens
    return kinds


def requests(names: Collection[int]) -> str:
    """
    >>> requests([4]), requests([1, 2, 7]), requests(range(9))
    ('request 4', 'requests 1, 2 and 7', '9 requests')
    """
    *first, last = map(str, names)
    if not first:
        return f"request {last}"
    return f"requests {', '.join(first)} and {last}" if len(names) <= NAMED else f"{len(names)} requests"


def _was(names: Collection[int]) -> str:
    return "were" if len(names) > 1 else "was"


def block_map(**start: Any) -> Calculator:
    """The live calculator. `start` moves its controls: `block_map(trace="code", policy="prefix", step=9)`."""
    return Calculator(BLOCKS, start)


def _last(values: Values) -> int:
    return _whole(_scene(**values)).steps


def _longest(start: Values) -> int:
    """The steps of the slowest way that controls can choose: contiguous, in the smallest pool."""
    first = _scene(**{name: value for name, value in start.items() if name != STEP})
    slowest = replace(first, policy="contiguous", pool_tokens=min(*POOLS, first.pool_tokens))
    return max(_whole(replace(slowest, trace=name)).steps for name in TRACES)


BLOCKS = Question(
    "blocks",
    "requests in a pool of KV blocks, at one decoding step",
    block_map_answer,
    (
        Parameter("trace", ", ".join(TRACES), "chat", always=True, label="trace", steps=tuple(TRACES)),
        Parameter("policy", ", ".join(POLICIES), "paged", always=True, label="policy", steps=tuple(POLICIES)),
        Parameter("block_size", "tokens in a block", 4, whole, always=True).with_control("block, tokens", BLOCK_SIZES),
        Parameter("pool_tokens", "tokens that the pool has room for", 1024, whole, always=True).with_control(
            "pool, tokens", POOLS
        ),
        Parameter(STEP, "decoding step, from 1", 1, whole, always=True).with_control("step", (), 12),
    ),
    units="bytes and slots",
    title="Paged KV blocks",
    asks="Which slots of the pool are used, step by step?",
    invites="Choose contiguous: how many of the reserved slots are empty now? Then press play.",
    controls=("trace", "policy", "block_size", "pool_tokens", STEP),
    last=_last,
    longest=_longest,
    interval_ms=500,
)
