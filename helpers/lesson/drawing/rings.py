"""An all-reduce on a ring, step by step: who holds how many ranks' gradients of which part of the buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...catalog.errors import require_whole
from .block_maps import OUTLINE, pale
from .marks import CARD, INK, LINES, ON_COLOUR, Box, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

TOP, ROW, BOX, LABEL = 84, 34, 22, 56
FEW, ALL = pale(LINES[0]), LINES[2]


@dataclass(frozen=True)
class RingStep:
    """After one step: `added[rank][part]` ranks' gradients are summed up there, and `arrived[rank]` came just now."""

    added: tuple[tuple[int, ...], ...]
    arrived: tuple[int | None, ...]


def ring_steps(ranks: int) -> list[RingStep]:
    """The start, the `ranks` - 1 steps of a reduce-scatter, and as many of an all-gather.

    In each step every rank sends one part to the next one. First it is added there, and rank r ends with part r
    complete; then complete parts are passed on.

    >>> ring_steps(2)[1].added
    ((2, 1), (1, 2))
    """
    require_whole("ranks", ranks, 2, do="a ring has two ranks or more")
    added = [[1] * ranks for _ in range(ranks)]
    steps = [RingStep(tuple(map(tuple, added)), (None,) * ranks)]
    for step in range(1, 2 * ranks - 1):
        gathering = step >= ranks
        arrived = [(rank - step - 1) % ranks for rank in range(ranks)]
        before = [list(row) for row in added]
        for rank, part in enumerate(arrived):
            came = before[rank - 1][part]
            added[rank][part] = came if gathering else before[rank][part] + came
        steps.append(RingStep(tuple(map(tuple, added)), tuple(arrived)))
    return steps


def all_reduce(title: str, ranks: int = 4) -> Card:
    """A column for each step, a row for each rank, a box for each part with how many ranks are summed in it."""
    steps = ring_steps(ranks)
    column = (WIDTH - 2 * MARGIN - LABEL) / len(steps)
    body: list[Mark] = [TextMark(MARGIN, TOP + at * ROW + 15, f"rank {at}") for at in range(ranks)]
    for at, step in enumerate(steps):
        left = MARGIN + LABEL + at * column
        body += [TextMark(left, TOP - 10, f"step {at}" if at else "at first"), *_buffers(step, left)]
    for at, name in ((1, "reduce-scatter: add, and pass on"), (ranks, "all-gather: pass on")):
        body.append(TextMark(MARGIN + LABEL + at * column, TOP - 28, name, 12, bold=True))
    foot = TOP + ranks * ROW + 16
    styles = [(FEW, "summed over the ranks counted in it"), (ALL, f"complete: all {ranks}")]
    entries = [(Box(0, 0, 0, 0, fill, edge=OUTLINE), name) for fill, name in styles]
    body += legend([*entries, (Box(0, 0, 0, 0, CARD, edge=INK, line=2), "just arrived")], MARGIN, foot, WIDTH)
    return Card(title, foot + 18, tuple(body), _words(steps, ranks))


def _buffers(step: RingStep, left: float) -> Iterator[Mark]:
    side = min(BOX, 88 / len(step.added))
    for rank, parts in enumerate(step.added):
        y = TOP + rank * ROW
        for part, count in enumerate(parts):
            fill, x = ALL if count == len(parts) else FEW, left + part * side
            yield Box(x, y, side, BOX, fill, edge=OUTLINE, kind="part")
            yield TextMark(x + side / 2, y + 15, str(count), 10.5, ON_COLOUR, "middle")
        if (came := step.arrived[rank]) is not None:
            yield Box(left + came * side, y, side, BOX, edge=INK, line=2, kind="arrived")


def _words(steps: list[RingStep], ranks: int) -> str:
    scattered = ", ".join(str(row) for row in steps[ranks - 1].added[0])
    return (
        f"{ranks} ranks, a buffer of {ranks} parts on each, {len(steps) - 1} steps, one part sent in each. "
        f"After {ranks - 1} every rank has one complete part (rank 0 has sums of {scattered} ranks), "
        f"after {2 * ranks - 2} every part is complete everywhere."
    )
