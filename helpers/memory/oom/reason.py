"""Why a request failed, from what its message says. Where the figures do not decide, it says so.

Here is the arithmetic of PyTorch's allocator; `refused` is for a card that had enough free, `engines` for the others.
"""

from __future__ import annotations

from dataclasses import replace

from ..allocator.outcome import Reason
from ..breakdown import format_bytes
from . import engines, refused
from .frames import StackFrame
from .message import (
    ORDINARY_OUTSIDE_BYTES,
    ROUNDING_BYTES,
    MessageSizes,
    Oom,
    Why,
    others_bytes,
    possible_selves,
    strangers,
)
from .words import MessageKind

# A running program always has blocks that are partly used: one byte in thirty, or some segments of 20 MiB and 2 MiB.
# Cards with 0.4 to 1.7 % cached were too small for their program (pytorch/pytorch/issues/67971, LambdaLabsML/examples/
# issues/48, derrian-distro/LoRA_Easy_Training_Scripts/issues/178); with 5 % it was fragments (kaito-project/kaito/
# issues/976).
USUAL_CACHED_SHARE, USUAL_CACHED_BYTES = 32, 64 * 2**20


def why(oom: Oom, stack: tuple[StackFrame, ...] = (), before: str = "") -> Why:
    """The reason for one message, for the kinds that carry no figures as well.

    `stack` is the traceback above it, `before` the whole log above it.
    """
    decided = _allocator(oom) if oom.kind == MessageKind.ALLOCATOR else engines.why(oom, stack, before)
    return replace(decided, notes=(*decided.notes, *_notes(oom)))


def _allocator(oom: Oom) -> Why:
    sizes, limit, asked = oom.sizes, oom.allowed_bytes, oom.requested_bytes
    if asked and oom.capacity_bytes and asked > max(oom.capacity_bytes, oom.free_bytes or 0):
        sentence = (
            f"One request of {format_bytes(asked)} is larger than the card's {format_bytes(oom.capacity_bytes)}: "
            "no cleaning up helps. Look at the shapes on that line."
        )
        return Why(Reason.FULL, sentence)
    if single := refused.single_allocation(oom):
        return single
    if sizes is None:
        return refused.without_sizes(oom)
    if limit is not None and (sizes.asked <= sizes.free or sizes.reserved + sizes.asked > limit + ROUNDING_BYTES):
        return _under_a_limit(sizes, limit)
    if crowded := _crowded(oom, sizes):
        return crowded
    if sizes.asked <= sizes.free:
        return refused.although_free(oom, sizes)
    if is_nearly_full(oom) or sizes.asked > sizes.unused:
        return _too_full(oom, sizes)
    return _in_pieces(sizes)


def _under_a_limit(sizes: MessageSizes, limit: int) -> Why:
    asked, allocated, cached, free = map(format_bytes, sizes)
    if sizes.allocated + sizes.asked > limit - ROUNDING_BYTES or _is_usual(sizes.cached, sizes.reserved):
        sentence = (
            f"{allocated} in tensors and {asked} more pass the {format_bytes(limit)} that this process is allowed"
            f"{f', with {cached} cached in parts of blocks' if sizes.cached else ''}; the card itself has {free} free."
        )
        return Why(Reason.CAPPED, sentence)
    sentence = (
        f"{format_bytes(limit - sizes.allocated)} of the {format_bytes(limit)} allowed are not in tensors, but "
        f"{cached} are cached in pieces too small for {asked}."
    )
    return Why(Reason.FRAGMENTED, sentence)


def _crowded(oom: Oom, sizes: MessageSizes) -> Why | None:
    """Others hold more of the card than PyTorch does, and what is free is the remainder."""
    others = others_bytes(oom)
    if others <= sizes.reserved or (sizes.asked <= sizes.free and sizes.free > others):
        return None
    whose = "Other processes hold" if strangers(oom) else "Something else than PyTorch's allocator holds"
    sentence = (
        f"{whose} {format_bytes(others)} of this card, more than the {format_bytes(sizes.reserved)} of PyTorch's; "
        f"{format_bytes(sizes.free)} were free for the {format_bytes(sizes.asked)} asked."
    )
    return Why(Reason.OUTSIDE, sentence)


def _in_pieces(sizes: MessageSizes) -> Why:
    asked, _, cached, free = map(format_bytes, sizes)
    sentence = (
        f"{format_bytes(sizes.unused)} were unused ({cached} cached by PyTorch, {free} free on the card), but no piece "
        f"of it held {asked}."
    )
    return Why(Reason.FRAGMENTED, sentence)


def is_nearly_full(oom: Oom) -> bool:
    """Of PyTorch's memory no more is in no tensor than every running program has there."""
    reserved, cached = oom.reserved_bytes, oom.cached_bytes
    return bool(reserved) and cached is not None and _is_usual(cached, reserved or 0)


def _is_usual(cached: int, reserved: int) -> bool:
    return cached <= max(reserved // USUAL_CACHED_SHARE, USUAL_CACHED_BYTES)


def _too_full(oom: Oom, sizes: MessageSizes) -> Why:
    asked, allocated, cached, free = map(format_bytes, sizes)
    fits_in_pieces = sizes.asked <= sizes.unused
    missing = sizes.asked - (sizes.free if fits_in_pieces else sizes.unused)
    short, others = format_bytes(missing), others_bytes(oom)
    named = {held.pid: held.held_bytes for held in strangers(oom) if held.held_bytes}
    if sum(named.values()) >= missing:
        names = ", ".join(f"process {pid} ({format_bytes(size)})" for pid, size in named.items())
        one = f"{names} holds more than that on the same card."
        whose = one if len(named) == 1 else f"other processes hold more than that: {names}."
        return Why(Reason.OUTSIDE, f"{short} are missing, and {whose}")
    if others >= missing:
        what = f"{format_bytes(oom.outside_bytes or others)} of the card are held by something else than PyTorch's"
        return Why(Reason.OUTSIDE, f"{short} are missing, and {what} allocator.")
    if fits_in_pieces:
        sentence = (
            f"{allocated} in tensors and {asked} more do not fit: {free} were free, and the {cached} that are cached "
            f"({sizes.cached / sizes.reserved:.1%} of what PyTorch holds) are parts of blocks, as in any program."
        )
        return Why(Reason.FULL, sentence, ("Expandable segments may win a part of that back; the card stays full.",))
    sentence = (
        f"{allocated} in tensors and {asked} more do not fit: even with all that was unused "
        f"({format_bytes(sizes.unused)}) in one piece, {short} would be missing."
    )
    return Why(Reason.FULL, sentence)


def _notes(oom: Oom) -> list[str]:
    if oom.kind != MessageKind.ALLOCATOR:
        return []
    notes, outside = [], oom.outside_bytes or 0
    if oom.capacity_bytes and oom.reserved_bytes and oom.reserved_bytes > oom.capacity_bytes:
        notes.append("PyTorch holds more than the card has: the driver (Windows) moves the rest to host memory.")
    if oom.requested_bytes == 20 * 2**20:
        notes.append("20 MiB is the segment that serves a tensor of 1 to 10 MiB: the tensor itself may be smaller.")
    if oom.requested_bytes == 2 * 2**20:
        notes.append("2 MiB is the segment that serves tensors up to 1 MiB: the tensor itself may be smaller.")
    if not others_bytes(oom) and oom.process_bytes is None and outside > ORDINARY_OUTSIDE_BYTES:
        notes.append(f"{format_bytes(outside)} of the card are not PyTorch's: its own context, libraries, or others.")
    if oom.holders and oom.process_bytes is None and not refused.is_wsl(oom):
        mine = possible_selves(oom)
        notes.append(
            f"Process {mine[0].pid} is probably this one: ids differ in a container."
            if len(mine) == 1
            else "The message does not say which of these processes is this one."
        )
    if refused.is_wsl(oom):
        notes.append("17179869184.00 GiB is no size: under WSL the driver does not tell what a process holds.")
    if oom.private_bytes:
        private = format_bytes(oom.private_bytes)
        notes.append(f"{private} of the tensors are in private pools (CUDA graphs): they are kept.")
    return notes
