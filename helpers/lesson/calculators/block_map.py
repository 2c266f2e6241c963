"""The block map calculator: requests through a pool of KV blocks, one decoding step at a time.

The traces are those of `techniques.paging` with lengths about a tenth of theirs, so that they can be followed: a block
of 4 tokens wastes here what one of 32 to 64 does there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ...catalog.errors import WorkbookError, unknown_name
from ...techniques import paging
from ...techniques.paging import POLICIES, Frame, Hits, Trace, Usage
from ..drawing.block_maps import HEIGHT, WIDTH, block_map_marks, share, slots
from ..drawing.marks import Mark, marks_png, marks_svg
from ..drawing.pictures import Picture
from .block_words import happened, new_blocks
from .player import Player
from .shell import Answer, Calculator

LONGEST, USERS, MOST_BLOCKS = 256, 16, 2048  # tokens that a request may have; requests that may run at a time
TRACES = {
    "chat": {"requests": 24, "system": 32, "message": 8, "answer": 19},
    "documents": {"requests": 24, "document": 75, "answer": 12, "instruction": 4},
    "code": {"requests": 24, "file": 60, "typed": 2, "answer": 5},
}  # name -> what differs from the trace of that name in techniques.paging
BLOCK_SIZES, POOLS = (1, 4, 8, 16, 32, 64, 128, 256), (512, 768, 1024)


@dataclass(frozen=True)
class BlockMapAnswer(Answer):
    """The pool after a step: `frame` is what it holds, `before` what it held, `whole` the sums over all steps."""

    before: Frame | None
    frame: Frame
    hits: Hits  # so far
    whole: Usage

    @property
    def marks(self) -> list[Mark]:
        return block_map_marks(self.title, self.frame, new_blocks(self.before, self.frame))

    @property
    def picture(self) -> Picture:
        return marks_svg(self.title, self.marks, WIDTH, HEIGHT)

    @property
    def png(self) -> bytes:
        return marks_png(self.title, self.marks, WIDTH, HEIGHT).png

    @property
    def figures(self) -> dict[str, object]:
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


@dataclass(frozen=True)
class Scene:
    """What is replayed, whichever step of it is asked for."""

    trace: str
    policy: str
    block_size: int
    pool_tokens: int

    def replay(self) -> paging.Replay:
        return paging.Replay(
            small(self.trace), self.policy, self.pool_tokens // self.block_size, self.block_size, USERS
        )


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
    scene = Scene(*_checked(trace, policy, block_size, pool_tokens))
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise WorkbookError(f"step is {step!r}", "a whole number from 1 up", "pass step=1 for the first step")
    whole = _whole(scene)
    at = min(step, whole.steps)
    before, (frame, hits) = _moment(scene, at - 1)[0] if at > 1 else None, _moment(scene, at)
    seen = f"{share(frame.waste)} of the reserved slots hold nothing" if frame.reserved else "everybody has finished"
    title = f"step {at} of {whole.steps}, {trace}, {policy}: {seen}"
    sentence = " ".join((happened(before, frame), *_end(scene, at)))
    return BlockMapAnswer(title, tuple(_formula(scene, frame, hits, whole)), sentence, before, frame, hits, whole)


def _checked(trace: str, policy: str, block_size: int, pool_tokens: int) -> tuple[str, str, int, int]:
    for kind, name, known in (("trace", trace, TRACES), ("policy", policy, POLICIES)):
        if name not in tuple(known):
            raise unknown_name(kind, name, known)
    if type(block_size) is not int or block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise WorkbookError(f"block_size is {block_size!r}", f"one of {sizes}", "pass block_size=16")
    most = MOST_BLOCKS * block_size
    if type(pool_tokens) is not int or pool_tokens % block_size or not LONGEST <= pool_tokens <= most:
        raise WorkbookError(
            f"pool_tokens is {pool_tokens!r} in blocks of {block_size}",
            f"a multiple of {block_size} from {LONGEST} (the longest request) to {most}",
            "pass pool_tokens=1024",
        )
    return trace, policy, block_size, pool_tokens


@lru_cache
def small(name: str) -> Trace:
    """The trace called `name`, short enough to follow."""
    return paging.trace(name, max_tokens=LONGEST, **TRACES[name])


@lru_cache(maxsize=64)
def _whole(scene: Scene) -> Usage:
    blocks = scene.pool_tokens // scene.block_size
    return paging.waste_of(small(scene.trace), scene.policy, scene.block_size, USERS, blocks)


class Film:
    """A replay wound to any step: on from where it stands, or back by way of the beginning."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.replay = scene, scene.replay()

    def at(self, step: int) -> tuple[Frame, Hits]:
        if step < self.replay.steps:
            self.replay = self.scene.replay()
        while self.replay.steps < step:
            self.replay.step()
        return paging.frame_of(self.replay), self.replay.prefix.hits if self.replay.prefix else Hits()


_film = lru_cache(maxsize=8)(Film)


@lru_cache(maxsize=64)  # a frame of 1,024 blocks is a quarter of a megabyte: those shown lately, not all
def _moment(scene: Scene, step: int) -> tuple[Frame, Hits]:
    return _film(scene).at(step)


def _formula(scene: Scene, frame: Frame, hits: Hits, whole: Usage) -> Iterator[str]:
    running, tokens = len(frame.lengths), sum(frame.lengths.values())
    taken, kept = frame.reserved // scene.block_size, slots(frame)["kept"] // scene.block_size
    how = f"{running} regions × {LONGEST}" if scene.policy == "contiguous" else f"{taken:,} blocks × {scene.block_size}"
    yield f"running    {running:>7}   of at most {USERS}; waiting: {len(frame.waiting)}"
    yield f"reserved   {frame.reserved:>7,}   slots = {how}"
    once = f" = {tokens:,} in the tables − {tokens - frame.filled:,} that are shared" if frame.shared else ""
    yield f"filled     {frame.filled:>7,}   slots{once}"
    yield f"waste      {share(frame.waste):>7}   " + (
        f"= 1 − {frame.filled:,} / {frame.reserved:,}" if frame.reserved else "nothing is reserved"
    )
    cached = f" − {kept:,} kept for later prompts" if scene.policy == "prefix" else ""
    yield f"free       {len(frame.cells) - taken - kept:>7,}   = {len(frame.cells):,} blocks − {taken:,} taken{cached}"
    if scene.policy == "prefix":
        yield f"hit rate   {share(hits.rate):>7}   = {hits.found:,} / {hits.asked:,} tokens of the prompts so far"
    again = f"; preempted: {whole.preempted}" if whole.preempted else ""
    yield f"all steps  {share(whole.waste):>7}   wasted, of at most {whole.peak_slots:,} slots reserved{again}"


def _end(scene: Scene, at: int) -> Iterator[str]:
    """At the last step: what the three policies make of the whole trace."""
    if at < _whole(scene).steps:
        return
    usages = (_whole(replace(scene, policy=policy)) for policy in POLICIES)
    told = (
        f"{usage.policy} wastes {share(usage.waste)} of at most {usage.peak_slots:,} slots in {usage.steps} steps"
        for usage in usages
    )
    yield f"Over the whole trace, {', '.join(told)}."


def _last(values: Mapping[str, object]) -> int:
    return _whole(Scene(*_checked(**values))).steps


def block_map(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `block_map(trace="code", policy="prefix", step=9)`."""
    first = {"trace": "chat", "policy": "paged", "block_size": 4, "pool_tokens": 1024, "step": 12, **start}
    _checked(*(first[name] for name in ("trace", "policy", "block_size", "pool_tokens")))
    slowest = {
        "policy": "contiguous",
        "block_size": first["block_size"],
        "pool_tokens": min(*POOLS, first["pool_tokens"]),
    }
    longest = max(_last({"trace": name, **slowest}) for name in TRACES)
    options = {
        "trace": ("trace", list(TRACES)),
        "policy": ("policy", list(POLICIES)),
        "block_size": ("block size", list(BLOCK_SIZES)),
        "pool_tokens": ("pool, tokens", list(POOLS)),
        "step": ("step", list(range(1, longest + 1))),
    }
    return Player(block_map_answer, options, first, _last, interval_ms=500)
