"""From a log to an explanation: what was asked and where, who held what, why it failed, what to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from ..allocator.outcome import Reason
from ..breakdown import format_bytes
from ..fit import Fit
from . import frames as stack_of
from .cures import changes_for
from .engines import ranks_on_one_card, server, started_together, vllm_version
from .frames import RequestPlace, StackFrame
from .message import Oom, Why, clean, parse, strangers
from .reason import why
from .words import Change, MessageKind, cures

FAILED_AGAIN = (
    "It failed again while the first failure was being handled: inside an `except`, the error's frames "
    "still hold the failed step's tensors."
)
FIRST_STEP = "If this was the first step: the states are made there, and every later step needs them too."


@dataclass(frozen=True)
class CardRow:
    """One line of what is on a card: bytes under a name; `note` says how it is known."""

    name: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Explanation:
    """An out-of-memory failure, explained. `str()` is the page a person reads, `figures` the same for JSON.

    `place` and `frame` are UNKNOWN and None where there is no traceback. `fits` are the changes that suffice by the
    closed form, when a setup was given; `blocks` are the largest live blocks of a snapshot. `cache_bytes` and
    `cache_tokens` are what a server's log leaves for its KV cache, and `version` is vLLM's.
    """

    title: str
    why: Why
    rows: tuple[CardRow, ...]
    place: RequestPlace = RequestPlace.UNKNOWN
    frame: StackFrame | None = None
    blocks: tuple[CardRow, ...] = ()
    changes: tuple[Change, ...] = ()
    fits: tuple[Fit, ...] = ()
    predicted: str = ""
    room_bytes: int | None = None
    cache_bytes: int | None = None
    cache_tokens: int | None = None
    version: str = ""
    following: int = 0

    @property
    def reason(self) -> Reason:
        return self.why.reason

    @property
    def figures(self) -> dict[str, object]:
        return {
            "reason": self.reason,
            "title": self.title,
            "sentence": self.why.sentence,
            "possible": list(self.why.possible),
            "notes": list(self.why.notes),
            "place": self.place or None,
            "line": asdict(self.frame) if self.frame else None,
            "bytes": {row.name: row.size_bytes for row in self.rows},
            "blocks": [{"made_by": row.name, "bytes": row.size_bytes, "note": row.note} for row in self.blocks],
            "changes": [asdict(change) for change in self.changes],
            "fit": [fit.figures for fit in self.fits],
            "predicted": self.predicted or None,
            "following": self.following,
        }

    def __str__(self) -> str:
        return "\n".join(_page(self))


def explain(text: str) -> Explanation:
    """Explain the out-of-memory message that ended the run of a log. WorkbookError when it holds none.

    >>> explain("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.66 "
    ...         "GiB is free. Including non-PyTorch memory, this process has 20.81 GiB memory in use. Of the allocated "
    ...         "memory 12.09 GiB is allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated.").reason
    'fragmented'
    """
    text = clean(text)
    oom = parse(text)
    stack = stack_of.frames(text, oom.start)
    decided, place, training = why(oom, stack, text[: oom.start]), stack_of.place(stack), stack_of.is_training(stack)
    engine, ranks = None if training else server(text, oom, stack), ranks_on_one_card(text, oom)
    together = () if ranks else started_together(text, oom)
    if ranks:
        decided = Why(Reason.OUTSIDE, _siblings(oom, ranks), decided.notes)
    elif together:
        decided = Why(Reason.OUTSIDE, _together(oom, together), decided.notes)
    logits = stack_of.a_table_of_logits(stack)
    changes = changes_for(oom, decided.reason, place, training or bool(logits), engine, bool(ranks or together))
    notes = list(decided.notes)
    if oom.survived:
        notes.append(_survived(oom.survived))
    if logits:
        notes.append(
            f"The line makes a table of {logits}: batch × length rows by the vocabulary. These are the logits."
        )
    if oom.following and "During handling of the above exception" in text[oom.start :]:
        changes = (cures()["retry"], *changes)
        notes.append(FAILED_AGAIN)
    if place is RequestPlace.OPTIMIZER:
        notes.append(FIRST_STEP)
    return Explanation(
        _title(oom, place),
        replace(decided, notes=tuple(notes)),
        tuple(_rows(oom)),
        place,
        stack_of.users_line(stack),
        changes=changes,
        room_bytes=_room(oom),
        cache_bytes=oom.free_bytes if oom.kind == MessageKind.VLLM and oom.capacity_bytes is None else None,
        cache_tokens=oom.free_tokens,
        version=vllm_version(text),
        following=oom.following,
    )


def _siblings(oom: Oom, ranks: tuple[str, ...]) -> str:
    named = " and ".join((", ".join(ranks[:-1]), ranks[-1]))
    return (
        f"Ranks {named} of the same job failed on GPU {oom.device or 0}, which holds {len(oom.holders) + 1} processes: "
        "its sibling ranks are all on this one card. Each rank needs a GPU of its own."
    )


def _together(oom: Oom, pids: tuple[int, ...]) -> str:
    held = format_bytes(sum(one.held_bytes or 0 for one in oom.holders))
    return (
        f"Processes {pids[0]} to {pids[-1]} hold {held} of GPU {oom.device or 0} and were started together: they look "
        "like the other ranks of this job, which should each be on a GPU of their own."
    )


def _survived(count: int) -> str:
    earlier = "An earlier such message" if count == 1 else f"{count} earlier such messages"
    return f"{earlier} in this log {'was' if count == 1 else 'were'} survived: the run went on. This one ended it."


def _title(oom: Oom, place: RequestPlace) -> str:
    where = f", {stack_of.TEXTS[place]}" if place is not RequestPlace.UNKNOWN else ""
    card = f" on GPU {oom.device}" if oom.device is not None else ""
    if oom.kind == MessageKind.KILLED:
        return f"A process was killed{where}"
    asked = f"{format_bytes(oom.requested_bytes)} refused" if oom.requested_bytes else "Out of memory, size not told"
    return f"{asked}{card}{where}"


def _rows(oom: Oom) -> Iterator[CardRow]:
    """What the message accounts for; what it does not say has no row."""
    named = (
        (
            "asked",
            oom.requested_bytes,
            "KV cache of one sequence" if oom.kind == MessageKind.VLLM and not oom.capacity_bytes else "",
        ),
        ("the card", oom.capacity_bytes, ""),
        ("allowed", oom.allowed_bytes, "a limit below the card's size" if oom.capacity_bytes else ""),
        ("in tensors", oom.allocated_bytes, ""),
        ("cached", oom.cached_bytes, "PyTorch's, in no tensor" if oom.cached_bytes is not None else ""),
        ("outside", oom.outside_bytes, "contexts, libraries, other processes; by subtraction"),
        ("other", oom.other_bytes, "Metal allocations that are no tensors"),
        ("free", oom.free_bytes, ""),
        (
            "this process",
            oom.process_bytes,
            "all of it, its context included" if oom.kind == MessageKind.ALLOCATOR else "",
        ),
    )
    yield from (CardRow(name, size, note) for name, size, note in named if size is not None)
    foreign = strangers(oom)
    for held in oom.holders:
        if held.held_bytes is not None and oom.kind == MessageKind.ALLOCATOR:
            yield CardRow(f"process {held.pid}", held.held_bytes, "another one" if held in foreign else "")


def _room(oom: Oom) -> int | None:
    """What PyTorch could have for tensors at most: the limit, or the card less what is not PyTorch's."""
    if oom.allowed_bytes is not None:
        return oom.allowed_bytes
    if oom.capacity_bytes is None or oom.outside_bytes is None:
        return oom.capacity_bytes
    return oom.capacity_bytes - oom.outside_bytes


def _page(explained: Explanation) -> Iterator[str]:
    yield explained.title
    if explained.frame:
        yield f"  {explained.frame}"
        if explained.frame.code:
            yield f"    {explained.frame.code}"
    if explained.rows:
        yield ""
        yield from _table(explained.rows)
    if explained.blocks:
        yield from ("", "Largest live blocks, by the line that made them")
        yield from _table(explained.blocks)
    yield from ("", f"{explained.reason.capitalize()}. {explained.why.sentence}")
    if explained.why.possible:
        yield f"  Left by what is known: {', '.join(explained.why.possible)}."
    yield from (f"  Note: {note}" for note in explained.why.notes)
    yield from _cures(explained)
    if explained.following:
        more = "message follows" if explained.following == 1 else "messages follow"
        yield from ("", f"{explained.following} more such {more} in this text; this is the first.")


def _table(rows: tuple[CardRow, ...]) -> Iterator[str]:
    width = max(len(row.name) for row in rows)
    return (f"  {row.name:<{width}}  {format_bytes(row.size_bytes):>11}  {row.note}".rstrip() for row in rows)


def _cures(explained: Explanation) -> Iterator[str]:
    yield from ("", "What to change, cheapest first") if explained.changes else ()
    for number, change in enumerate(explained.changes, 1):
        yield f"  {number}. {change.do}"
        if change.costs:
            yield f"     costs {change.costs}"
    if explained.predicted:
        yield from ("", explained.predicted)
    for fit in explained.fits:
        yield f"  {format_bytes(fit.peak_bytes):>11}  {fit.change}"
        yield from (f"{'costs':>13}  {fit.costs}", f"{'flags':>13}  {fit.flags}")
