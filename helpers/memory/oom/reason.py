"""Why a request failed, decided from the bytes that a message names; where they do not decide, it says so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..closed_form.breakdown import format_bytes
from .message import Holder, Oom

FULL, FRAGMENTED, CAPPED, OUTSIDE, HOST, UNCLEAR = REASONS = (
    "full",
    "fragmented",
    "capped",
    "outside",
    "host",
    "unclear",
)
# A process's own CUDA context, kernels and libraries: 0.1 GiB (T4) to 1.8 GiB (vLLM) were seen. More than this on the
# card without being PyTorch's is worth asking after.
ORDINARY_OUTSIDE_BYTES = 2 * 2**30
ROUNDING_BYTES = 2**30 // 50  # sizes are printed to 0.01 GiB; a sum of some of them is off by up to this


@dataclass(frozen=True)
class Why:
    """`reason` is one of REASONS, `sentence` the arithmetic behind it; `notes` is what to know about these figures."""

    reason: str
    sentence: str
    notes: tuple[str, ...] = ()


def why(oom: Oom) -> Why:
    """The reason for one message, for the kinds that carry no figures as well."""
    decided = _DECIDE.get(oom.kind, _allocator)(oom)
    notes = (*decided.notes, *_notes(oom))
    return replace(decided, notes=notes)


def _allocator(oom: Oom) -> Why:
    asked, allocated, cached, free = oom.requested_bytes, oom.allocated_bytes, oom.cached_bytes, oom.free_bytes
    if None in (asked, allocated, cached, free):
        return Why(UNCLEAR, "The message gives no sizes, so it does not tell a full card from a fragmented one.")
    if oom.capacity_bytes and asked > oom.capacity_bytes:
        return Why(
            FULL,
            f"One request of {format_bytes(asked)} is larger than the card's {format_bytes(oom.capacity_bytes)}: no "
            "cleaning up helps. Look at the shapes on that line.",
        )
    limit = oom.allowed_bytes
    if limit is not None and (asked <= free or allocated + cached + asked > limit + ROUNDING_BYTES):
        return _under_a_limit(oom)
    if asked <= cached + free:
        return _in_pieces(oom)
    return _too_full(oom)


def _under_a_limit(oom: Oom) -> Why:
    asked, allocated, limit = oom.requested_bytes, oom.allocated_bytes, oom.allowed_bytes
    if allocated + asked > limit - ROUNDING_BYTES:
        return Why(
            CAPPED,
            f"{format_bytes(allocated)} in tensors and {format_bytes(asked)} more pass the {format_bytes(limit)} "
            f"that this process is allowed; the card itself has {format_bytes(oom.free_bytes)} free.",
        )
    return Why(
        FRAGMENTED,
        f"{format_bytes(limit - allocated)} of the {format_bytes(limit)} allowed are not in tensors, but "
        f"{format_bytes(oom.cached_bytes)} are cached in pieces too small for {format_bytes(asked)}.",
    )


def _in_pieces(oom: Oom) -> Why:
    asked, cached, free = oom.requested_bytes, oom.cached_bytes, oom.free_bytes
    if asked <= free:
        return Why(
            UNCLEAR,
            f"{format_bytes(free)} were free when the message was written, more than the {format_bytes(asked)} asked."
            " Another process may have let go in between, or the driver had a reason of its own: "
            "the message does not say.",
        )
    others = sum(held.held_bytes or 0 for held in strangers(oom))
    if others > oom.reserved_bytes:
        return Why(
            OUTSIDE,
            f"Other processes hold {format_bytes(others)} of this card, more than the "
            f"{format_bytes(oom.reserved_bytes)} of PyTorch's, {format_bytes(cached)} of them unused.",
        )
    notes = (
        (
            f"Only {cached / oom.reserved_bytes:.1%} of what PyTorch holds is unused: the card is nearly full too, "
            "and curing the fragments buys little.",
        )
        if is_nearly_full(oom)
        else ()
    )
    return Why(
        FRAGMENTED,
        f"{format_bytes(cached + free)} were unused ({format_bytes(cached)} cached by PyTorch, {format_bytes(free)} "
        f"free on the card), but no piece of it held {format_bytes(asked)}.",
        notes,
    )


def is_nearly_full(oom: Oom) -> bool:
    """Under 5 % of PyTorch's memory is in no tensor: every running program has about as much."""
    return bool(oom.reserved_bytes) and oom.cached_bytes * 20 < oom.reserved_bytes


def _too_full(oom: Oom) -> Why:
    asked, allocated, cached, free = oom.requested_bytes, oom.allocated_bytes, oom.cached_bytes, oom.free_bytes
    short = asked - cached - free
    others = sum(held.held_bytes or 0 for held in strangers(oom))
    outside = oom.outside_bytes or 0
    named = ", ".join(
        f"process {held.pid} ({format_bytes(held.held_bytes)})" for held in strangers(oom) if held.held_bytes
    )
    if others >= short:
        return Why(
            OUTSIDE,
            f"{format_bytes(short)} are missing, and {named} holds more than that on the same card."
            if named.count("process") == 1
            else f"{format_bytes(short)} are missing, and other processes hold more than that: {named}.",
        )
    if outside - ORDINARY_OUTSIDE_BYTES >= short:
        return Why(
            OUTSIDE,
            f"{format_bytes(short)} are missing, and {format_bytes(outside)} of the card are held by something else "
            "than PyTorch's allocator.",
        )
    return Why(
        FULL,
        f"{format_bytes(allocated)} in tensors and {format_bytes(asked)} more do not fit: even with all that was "
        f"unused ({format_bytes(cached + free)}) in one piece, {format_bytes(short)} would be missing.",
    )


def strangers(oom: Oom) -> tuple[Holder, ...]:
    """The processes that are named and are not this one.

    Where the message does not say "this process" (in a container, where ids differ), the only one that holds at
    least what PyTorch has reserved is taken to be this one; if several do, nobody is called a stranger.
    """
    if oom.process_bytes is not None or not oom.holders:
        return oom.holders if oom.process_bytes is not None else ()
    mine = possible_selves(oom)
    return tuple(held for held in oom.holders if held is not mine[0]) if len(mine) == 1 else ()


def possible_selves(oom: Oom) -> tuple[Holder, ...]:
    reserved = oom.reserved_bytes or 0
    least = reserved - ROUNDING_BYTES
    return tuple(held for held in oom.holders if held.held_bytes is None or held.held_bytes >= least)


def _notes(oom: Oom) -> list[str]:
    notes = []
    if oom.capacity_bytes and oom.reserved_bytes and oom.reserved_bytes > oom.capacity_bytes:
        notes.append("PyTorch holds more than the card has: the driver (Windows) moves the rest to host memory.")
    if oom.kind == "allocator" and oom.requested_bytes == 20 * 2**20:
        notes.append("20 MiB is the segment that serves a tensor of 1 to 10 MiB: the tensor itself may be smaller.")
    if oom.kind == "allocator" and oom.requested_bytes == 2 * 2**20:
        notes.append("2 MiB is the segment that serves tensors up to 1 MiB: the tensor itself may be smaller.")
    if oom.holders and oom.process_bytes is None and oom.kind == "allocator":
        mine = possible_selves(oom)
        notes.append(
            f"Process {mine[0].pid} is probably this one: ids differ in a container."
            if len(mine) == 1
            else "The message does not say which of these processes is this one."
        )
    if any(held.held_bytes is None for held in oom.holders):
        notes.append("The driver does not tell what other processes hold (Windows).")
    if oom.private_bytes:
        notes.append(
            f"{format_bytes(oom.private_bytes)} of the tensors are in private pools (CUDA graphs): they are kept."
        )
    return notes


def _cap(oom: Oom) -> Why:
    if oom.allowed_bytes is None or oom.allocated_bytes is None or oom.requested_bytes is None:
        return Why(CAPPED, "A cap of this workbook was reached.")
    return Why(
        CAPPED,
        f"{format_bytes(oom.allocated_bytes)} in tensors and {format_bytes(oom.requested_bytes)} more pass the cap of "
        f"{format_bytes(oom.allowed_bytes)} that `capped` sets; the machine itself has more.",
    )


def _mps(oom: Oom) -> Why:
    if None in (oom.allocated_bytes, oom.other_bytes, oom.allowed_bytes, oom.requested_bytes):
        return Why(CAPPED, "PyTorch's limit on the memory that it may take from the Mac was reached.")
    return Why(
        CAPPED,
        f"{format_bytes(oom.allocated_bytes)} of PyTorch's, {format_bytes(oom.other_bytes)} of other Metal memory "
        f"and {format_bytes(oom.requested_bytes)} more pass the {format_bytes(oom.allowed_bytes)} that PyTorch may "
        "take of the memory that CPU and GPU share.",
    )


def _cublas(oom: Oom) -> Why:
    return Why(
        FULL,
        "cuBLAS asked the driver for its handle or workspace and the card had too little left. The text "
        "gives no sizes; PyTorch's cache may hold much of the card.",
        (
            "Seen too when a kernel before it failed or the CUDA libraries do not match: "
            "CUDA_LAUNCH_BLOCKING=1 shows where.",
        ),
    )


def _driver(oom: Oom) -> Why:
    return Why(
        UNCLEAR,
        "CUDA itself refused, outside PyTorch's allocator, and gives no sizes: a context, a library or "
        "pinned host memory had no room.",
        ("The traceback's line may be later than the call that failed: CUDA_LAUNCH_BLOCKING=1 shows it.",),
    )


def _vllm(oom: Oom) -> Why:
    if oom.requested_bytes is None or oom.free_bytes is None:
        return Why(
            CAPPED,
            "After weights and activations, the share of the card that vLLM may use "
            "(gpu_memory_utilization) leaves no block for the KV cache.",
        )
    return Why(
        CAPPED,
        f"One sequence of max_model_len needs {format_bytes(oom.requested_bytes)} of KV cache, and the share "
        f"of the card that vLLM may use leaves {format_bytes(oom.free_bytes)}.",
    )


def _host(oom: Oom) -> Why:
    if oom.requested_bytes is None:
        return Why(HOST, "The machine's own memory ran out, not the GPU's.")
    return Why(
        HOST,
        f"A tensor of {format_bytes(oom.requested_bytes)} did not fit the machine's own memory; the GPU is not "
        "involved. The message does not say how much was free.",
    )


def _killed(oom: Oom) -> Why:
    if oom.process_bytes is not None:
        return Why(
            HOST,
            "The kernel killed the process for the machine's own memory; "
            f"it held {format_bytes(oom.process_bytes)} of it.",
        )
    return Why(
        UNCLEAR,
        "A process was killed from outside (SIGKILL). Host memory is the usual cause; the text "
        "does not say, `dmesg | grep -i oom` or the container's events do.",
    )


_DECIDE = {
    "cap": _cap,
    "mps": _mps,
    "cublas": _cublas,
    "driver": _driver,
    "vllm": _vllm,
    "host": _host,
    "killed": _killed,
}
