"""What a step of the block map did, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...techniques.paging import Frame

NAMED = 5  # requests named in a list before it only counts them


def happened(before: Frame | None, now: Frame) -> str:
    """One sentence: who finished, who was admitted and found what, who took blocks, was preempted, waits.

    >>> from helpers.techniques.paging import chat, frames
    >>> first, second = frames(chat(requests=4, system=6, message=2, answer=4), "paged", 2048, block_size=4, steps=2)
    >>> happened(first, second)
    'Requests 2 and 3 took a block each.'
    """
    clauses = "; ".join(_clauses(before, now))
    return f"{clauses[0].upper()}{clauses[1:]}."


def grown(before: Frame | None, now: Frame) -> dict[int, int]:
    """Blocks that each request took which ran before."""
    old = before.tables if before else {}
    return {
        name: len(table) - len(old[name])
        for name, table in now.tables.items()
        if name in old and len(table) > len(old[name])
    }


def new_blocks(before: Frame | None, now: Frame) -> set[int]:
    """Blocks that are in a table of somebody who did not have them before."""
    old = set(_held(before)) if before else set()
    return {block for name, block in _held(now) if (name, block) not in old}


def _held(frame: Frame) -> Iterator[tuple[int, int]]:
    return ((name, cell.block) for cell in frame.cells for name in cell.owners)


def _clauses(before: Frame | None, now: Frame) -> Iterator[str]:
    events, took = _events(now), list(grown(before, now))
    found = {name: tokens for name, tokens in events.get("admitted", {}).items() if tokens}
    plain = [name for name in events.get("admitted", ()) if name not in found]
    if done := events.get("done"):
        yield f"{requests(done)} finished"
    if found:
        whose = "their prompts" if len(found) > 1 else "its prompt"
        yield f"{requests(found)} {_was(found)} admitted, {sum(found.values())} tokens of {whose} found in the cache"
    if plain:
        yield f"{requests(plain)} {_was(plain)} admitted"
    if preempted := events.get("preempted"):
        yield f"{requests(preempted)} {_was(preempted)} preempted, blocks given back"
    if took:
        yield f"{requests(took)} took a block{' each' if len(took) > 1 else ''}"
    elif now.lengths and not events.keys() - {"waits"}:
        yield f"every running request put its token into {'a block' if now.tables else 'the region'} that it had"
    if waits := events.get("waits"):
        room = "enough blocks for its prompt are" if now.tables else "a region is"
        yield f"{requests(waits)} waits until {room} free"


def _events(frame: Frame) -> dict[str, dict[int, int]]:
    """What happened -> the requests that it happened to, with the tokens that were found for each."""
    kinds: dict[str, dict[int, int]] = {}
    for event in frame.events:  # "3 done", "4 waits", "5 admitted, 32 tokens found"
        told, _, found = event.partition(", ")
        name, kind = told.split()
        kinds.setdefault(kind, {})[int(name)] = int(found.split()[0]) if found else 0
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
