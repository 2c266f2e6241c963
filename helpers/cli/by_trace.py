"""A verdict by the best instrument at hand: where an answer is near the card's line, `estimate` runs the trace, too."""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from ..catalog.errors import WorkbookError
from ..catalog.hardware import without_cuda
from ..catalog.serve_setup import ServeSetup
from ..catalog.train_setup import TrainSetup
from ..lesson.calculators.answers import MemoryAnswer
from ..memory.fit.room import Room

if TYPE_CHECKING:
    from ..memory.trace import Trace

PACKAGES = ("torch", "transformers")
MOST_TOKENS = 2**15  # of a service that is traced without being asked: what its cache grows by is told in steps
Answer = TypeVar("Answer", bound=MemoryAnswer)


def flag(parser: argparse.ArgumentParser) -> None:
    text = "let the trace decide, in seconds (default: where torch is installed and the answer is near the line)"
    parser.add_argument("--traced", action=argparse.BooleanOptionalAction, help=text)


def found(answer: MemoryAnswer, setup: TrainSetup | ServeSetup, arguments: argparse.Namespace) -> Trace | None:
    """The setup's trace where it was asked for, or where it decides; None elsewhere.

    What was asked for and cannot be traced raises WorkbookError; unasked, the closed form's words stand.
    """
    if arguments.traced:
        if answer.room is None:
            raise WorkbookError("--traced without a card", "a card, whose room the trace decides about", "add --gpu")
        return _trace(setup, answer.room)
    if arguments.traced is None and answer.room and _decides(answer, answer.room, setup):
        try:
            return _trace(setup, answer.room)
        except WorkbookError:
            return None
    return None


def told(answer: Answer, trace: Trace | None) -> Answer:
    """The answer with the trace's verdict in it."""
    if trace is None or answer.room is None:
        return answer
    from ..lesson.traced import verdict_sentence

    sentence = verdict_sentence(trace, answer.room)
    return replace(answer, traced=f"Traced, with the holes between its blocks: {sentence[0].lower()}{sentence[1:]}")


def figures(trace: Trace | None, room: Room | None) -> dict[str, Any] | None:
    """For JSON: what the trace allocates and reserves, and whether that runs on the card; None where there is none."""
    if trace is None or room is None:
        return None
    from ..lesson.traced import trace_figures

    every = trace_figures(trace, None, room.card, room.reserve_bytes)
    return {key: every[key] for key in ("peak_allocated_bytes", "peak_reserved_bytes", "device", "out_of_memory")}


def _decides(answer: MemoryAnswer, room: Room, setup: TrainSetup | ServeSetup) -> bool:
    """Whether a trace knows more than the closed form here, and can be had in some seconds."""
    if not all(map(find_spec, PACKAGES)) or tuple(without_cuda(room.card)):
        return False
    if isinstance(setup, TrainSetup):
        return setup.ranks == 1 and room.is_near(answer.parts.total)
    need, line = answer.parts.total, room.for_tensors_bytes
    return setup.users * setup.context <= MOST_TOKENS and 99 * line <= 100 * need <= 101 * line


def _trace(setup: TrainSetup | ServeSetup, room: Room) -> Trace:
    from ..memory import trace

    if isinstance(setup, ServeSetup):
        return trace.serve(setup, room.card)
    return trace.train(setup, room.card)
