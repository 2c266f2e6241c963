"""One step of a scheduler: which tokens of each sequence are in the pool, which the step computes, which still wait.

mixed_step("A step has 16 tokens", scheduler.schedule(now=0.0), budget=16)
"""

from __future__ import annotations

from collections.abc import Iterator

from ...techniques.scheduling.plan import Plan, TokenChunk
from .block_maps import pale
from .marks import CARD, FAINT, INK, LINES, Box, Line, Mark, TextMark, legend, text_width
from .pictures import MARGIN, WIDTH, Card
from .words import listed

TOP, ROW, CELL = 58.0, 26.0, 18.0  # px: where rows begin, from one to the next, and how high a token is
SIZE = 12.0


def mixed_step(title: str, plan: Plan, budget: int) -> Card:
    """A row for each sequence of `plan`, a box for each of its tokens, and below them the row that a forward computes.

    Dark is what this step computes, pale what the pool has already; a box in outline waits for a later step.
    """
    names = [chr(ord("A") + at) for at in range(len(plan.chunks))]
    roles = ["prompt" if chunk.tokens > 1 else "decodes" for chunk in plan.chunks]
    rows = [f"{name}, {role}" for name, role in zip(names, roles, strict=True)]
    foot = f"the step: {plan.new_tokens} of {budget}"
    left = MARGIN + 14 + max(text_width(row, SIZE, bold=True) for row in (*rows, foot))
    longest = max(budget, *(chunk.sequence.known for chunk in plan.chunks))
    width = min(CELL, (WIDTH - MARGIN - left) / longest)
    body: list[Mark] = []
    below = TOP + ROW * len(rows) + 14
    at = 0
    for number, (row, chunk) in enumerate(zip(rows, plan.chunks, strict=True)):
        y, colour = TOP + ROW * number, LINES[number % len(LINES)]
        body += [TextMark(MARGIN, y + 13, row, SIZE), *_tokens(chunk, left, y, width, colour)]
        body += [_token(left + width * (at + n), below, width, colour, "packed") for n in range(chunk.tokens)]
        at += chunk.tokens
    body += [_token(left + width * n, below, width, CARD, "free", FAINT) for n in range(at, budget)]
    body.append(TextMark(MARGIN, below + 13, foot, SIZE, bold=True))
    body.append(Line(((MARGIN, below - 7), (WIDTH - MARGIN, below - 7)), FAINT, 0.8))
    keys = [(Box(0, 0, 0, 0, pale(INK), edge="none"), "keys and values are in the pool, and are read")]
    keys += [(Box(0, 0, 0, 0, INK, edge="none"), "computed in this step")]
    keys += [(Box(0, 0, 0, 0, CARD, edge=FAINT), "waits for a later step")]
    body += legend(keys, MARGIN, below + 42, WIDTH - MARGIN)
    told = [_said(row, chunk) for row, chunk in zip(rows, plan.chunks, strict=True)]
    return Card(title, below + 60, tuple(body), f"{listed(told, 8)}. Together {plan.new_tokens} of {budget} tokens.")


def _tokens(chunk: TokenChunk, left: float, y: float, width: float, colour: str) -> Iterator[Mark]:
    """All tokens that are known of a sequence, from its first."""
    begin = chunk.context - chunk.tokens
    for n in range(chunk.sequence.known):
        x = left + width * n
        if n < begin:
            yield _token(x, y, width, pale(colour), "pool")
        elif n < chunk.context:
            yield _token(x, y, width, colour, "now")
        else:
            yield _token(x, y, width, CARD, "later", FAINT)


def _token(x: float, y: float, width: float, fill: str, kind: str, edge: str = CARD) -> Box:
    return Box(x, y, width - 1.5, CELL, fill, edge=edge, line=0.8, kind=kind)


def _said(row: str, chunk: TokenChunk) -> str:
    begin, later = chunk.context - chunk.tokens, chunk.sequence.known - chunk.context
    return f"{row}: {begin} tokens in the pool, {chunk.tokens} computed now, {later} later"
