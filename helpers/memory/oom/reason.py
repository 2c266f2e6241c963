"""Why a request failed, decided from the bytes that a message names; where they do not decide, it says so."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from ..allocator.outcome import Reason
from ..closed_form.breakdown import format_bytes
from .message import Holder, Kind, Oom, Sizes

# A process's own CUDA context, kernels and libraries: 0.1 GiB (T4) to 1.8 GiB (vLLM) were seen. More than this on the
# card without being PyTorch's is worth asking after.
ORDINARY_OUTSIDE_BYTES = 2 * 2**30
ROUNDING_BYTES = 2**30 // 50  # sizes are printed to 0.01 GiB; a sum of some of them is off by up to this


@dataclass(frozen=True)
class Why:
    """Why a request failed: `sentence` is the arithmetic behind it; `notes` is what to know about these figures."""

    reason: Reason
    sentence: str
    notes: tuple[str, ...] = ()


def why(oom: Oom) -> Why:
    """The reason for one message, for the kinds that carry no figures as well."""
    decided = _allocator(oom) if oom.kind is Kind.ALLOCATOR else _by_kind(oom)
    return replace(decided, notes=(*decided.notes, *_notes(oom)))


def _allocator(oom: Oom) -> Why:
    sizes, limit = oom.sizes, oom.allowed_bytes
    if sizes is None:
        sentence = "The message gives no sizes, so it does not tell a full card from a fragmented one."
        return Why(Reason.UNCLEAR, sentence)
    if oom.capacity_bytes and sizes.asked > oom.capacity_bytes:
        sentence = (
            f"One request of {format_bytes(sizes.asked)} is larger than the card's {format_bytes(oom.capacity_bytes)}: "
            "no cleaning up helps. Look at the shapes on that line."
        )
        return Why(Reason.FULL, sentence)
    if limit is not None and (sizes.asked <= sizes.free or sizes.reserved + sizes.asked > limit + ROUNDING_BYTES):
        return _under_a_limit(sizes, limit)
    return _in_pieces(oom, sizes) if sizes.asked <= sizes.unused else _too_full(oom, sizes)


def _under_a_limit(sizes: Sizes, limit: int) -> Why:
    asked, allocated, cached, free = map(format_bytes, sizes)
    if sizes.allocated + sizes.asked > limit - ROUNDING_BYTES:
        sentence = (
            f"{allocated} in tensors and {asked} more pass the {format_bytes(limit)} that this process is allowed; "
            f"the card itself has {free} free."
        )
        return Why(Reason.CAPPED, sentence)
    sentence = (
        f"{format_bytes(limit - sizes.allocated)} of the {format_bytes(limit)} allowed are not in tensors, but "
        f"{cached} are cached in pieces too small for {asked}."
    )
    return Why(Reason.FRAGMENTED, sentence)


def _in_pieces(oom: Oom, sizes: Sizes) -> Why:
    asked, _, cached, free = map(format_bytes, sizes)
    if sizes.asked <= sizes.free:
        sentence = (
            f"{free} were free when the message was written, more than the {asked} asked. Another process may have let "
            "go in between, or the driver had a reason of its own: the message does not say."
        )
        return Why(Reason.UNCLEAR, sentence)
    others = sum(held.held_bytes or 0 for held in strangers(oom))
    if others > sizes.reserved:
        sentence = (
            f"Other processes hold {format_bytes(others)} of this card, more than the {format_bytes(sizes.reserved)} "
            f"of PyTorch's, {cached} of them unused."
        )
        return Why(Reason.OUTSIDE, sentence)
    sentence = (
        f"{format_bytes(sizes.unused)} were unused ({cached} cached by PyTorch, {free} free on the card), but no piece "
        f"of it held {asked}."
    )
    nearly_full = (
        f"Only {sizes.cached / sizes.reserved:.1%} of what PyTorch holds is unused: the card is nearly full too, "
        "and curing the fragments buys little."
    )
    return Why(Reason.FRAGMENTED, sentence, (nearly_full,) if is_nearly_full(oom) else ())


def is_nearly_full(oom: Oom) -> bool:
    """Under 5 % of PyTorch's memory is in no tensor: every running program has about as much."""
    reserved, cached = oom.reserved_bytes, oom.cached_bytes
    return bool(reserved) and reserved is not None and cached is not None and cached * 20 < reserved


def _too_full(oom: Oom, sizes: Sizes) -> Why:
    missing = sizes.asked - sizes.unused
    asked, allocated, *_ = map(format_bytes, sizes)
    short, outside = format_bytes(missing), oom.outside_bytes or 0
    named = {held.pid: held.held_bytes for held in strangers(oom) if held.held_bytes}
    if sum(named.values()) >= missing:
        names = ", ".join(f"process {pid} ({format_bytes(size)})" for pid, size in named.items())
        one = f"{names} holds more than that on the same card."
        whose = one if len(named) == 1 else f"other processes hold more than that: {names}."
        return Why(Reason.OUTSIDE, f"{short} are missing, and {whose}")
    if outside - ORDINARY_OUTSIDE_BYTES >= missing:
        what = f"{format_bytes(outside)} of the card are held by something else than PyTorch's allocator."
        return Why(Reason.OUTSIDE, f"{short} are missing, and {what}")
    sentence = (
        f"{allocated} in tensors and {asked} more do not fit: even with all that was unused "
        f"({format_bytes(sizes.unused)}) in one piece, {short} would be missing."
    )
    return Why(Reason.FULL, sentence)


def strangers(oom: Oom) -> tuple[Holder, ...]:
    """The processes that are named and are not this one.

    Where the message does not say "this process" (in a container, where ids differ), the only one that holds at
    least what PyTorch has reserved is taken to be this one; if several do, nobody is called a stranger.
    """
    if oom.process_bytes is not None:
        return oom.holders
    mine = possible_selves(oom)
    return tuple(held for held in oom.holders if held is not mine[0]) if len(mine) == 1 else ()


def possible_selves(oom: Oom) -> tuple[Holder, ...]:
    least = (oom.reserved_bytes or 0) - ROUNDING_BYTES
    return tuple(held for held in oom.holders if held.held_bytes is None or held.held_bytes >= least)


def _notes(oom: Oom) -> list[str]:
    notes = []
    if oom.capacity_bytes and oom.reserved_bytes and oom.reserved_bytes > oom.capacity_bytes:
        notes.append("PyTorch holds more than the card has: the driver (Windows) moves the rest to host memory.")
    if oom.kind is Kind.ALLOCATOR and oom.requested_bytes == 20 * 2**20:
        notes.append("20 MiB is the segment that serves a tensor of 1 to 10 MiB: the tensor itself may be smaller.")
    if oom.kind is Kind.ALLOCATOR and oom.requested_bytes == 2 * 2**20:
        notes.append("2 MiB is the segment that serves tensors up to 1 MiB: the tensor itself may be smaller.")
    if oom.holders and oom.process_bytes is None and oom.kind is Kind.ALLOCATOR:
        mine = possible_selves(oom)
        notes.append(
            f"Process {mine[0].pid} is probably this one: ids differ in a container."
            if len(mine) == 1
            else "The message does not say which of these processes is this one."
        )
    if any(held.held_bytes is None for held in oom.holders):
        notes.append("The driver does not tell what other processes hold (Windows).")
    if oom.private_bytes:
        private = format_bytes(oom.private_bytes)
        notes.append(f"{private} of the tensors are in private pools (CUDA graphs): they are kept.")
    return notes


def _by_kind(oom: Oom) -> Why:
    known = {
        name: format_bytes(size) for name, size in vars(oom).items() if name.endswith("_bytes") and size is not None
    }
    if oom.kind in _WITH_SIZES:
        with contextlib.suppress(KeyError):  # a size that the sentence names and the message does not
            reason, sentence = _WITH_SIZES[oom.kind]
            return Why(reason, sentence.format(**known))
    return _WITHOUT_SIZES[oom.kind]


_WITH_SIZES = {  # sentences with fields of Oom
    Kind.CAP: (
        Reason.CAPPED,
        "{allocated_bytes} in tensors and {requested_bytes} more pass the cap of {allowed_bytes} that `capped` sets; "
        "the machine itself has more.",
    ),
    Kind.MPS: (
        Reason.CAPPED,
        "{allocated_bytes} of PyTorch's, {other_bytes} of other Metal memory and {requested_bytes} more pass the "
        "{allowed_bytes} that PyTorch may take of the memory that CPU and GPU share.",
    ),
    Kind.VLLM: (
        Reason.CAPPED,
        "One sequence of max_model_len needs {requested_bytes} of KV cache, and the share of the card that vLLM may "
        "use leaves {free_bytes}.",
    ),
    Kind.LLAMA_CPP: (
        Reason.FULL,
        "llama.cpp asked the driver for one buffer of {requested_bytes}, and the card had less than that "
        "free. It takes a "
        "few large buffers at the start: the log names their sizes before this line, and not what other "
        "processes hold.",
    ),
    Kind.OLLAMA: (
        Reason.HOST,
        "What Ollama would keep off the GPU takes {requested_bytes} of the machine's own memory, and {free_bytes} were "
        "available.",
    ),
    Kind.JAX: (
        Reason.UNCLEAR,
        "XLA could not place {requested_bytes}. JAX takes three quarters of a card when it starts and serves "
        "arrays from "
        "that; the message does not say how much of it was in use, or whether another process had taken the "
        "card first.",
    ),
    Kind.HOST: (
        Reason.HOST,
        "A tensor of {requested_bytes} did not fit the machine's own memory; the GPU is not involved. The message does "
        "not say how much was free.",
    ),
    Kind.KILLED: (
        Reason.HOST,
        "The kernel killed the process for the machine's own memory; it held {process_bytes} of it.",
    ),
}
_WITHOUT_SIZES = {
    Kind.CAP: Why(Reason.CAPPED, "A cap of this workbook was reached."),
    Kind.MPS: Why(Reason.CAPPED, "PyTorch's limit on the memory that it may take from the Mac was reached."),
    Kind.VLLM: Why(
        Reason.CAPPED,
        "After weights and activations, the share of the card that vLLM may use (gpu_memory_utilization) leaves no "
        "block for the KV cache.",
    ),
    Kind.SGLANG: Why(
        Reason.CAPPED,
        "After the weights, the share of the card that SGLang may keep (mem_fraction_static: weights and KV "
        "cache) leaves "
        "nothing for the KV cache.",
        ("Out of memory *while serving* wants the opposite, a smaller share: activations need what is left over.",),
    ),
    Kind.TENSORRT_LLM: Why(
        Reason.FULL,
        "TensorRT-LLM asked the driver for a buffer and the card had too little left. The text gives no sizes: the log "
        "has them before this line, as MemUsageChange.",
    ),
    Kind.LLAMA_CPP: Why(Reason.FULL, "llama.cpp asked the driver for a buffer, and the card had too little left."),
    Kind.OLLAMA: Why(Reason.HOST, "The machine's own memory was too small for what Ollama keeps off the GPU."),
    Kind.NCCL: Why(
        Reason.FULL,
        "NCCL asked the driver for the buffers of a communicator, which are no tensors, and the card had too "
        "little left. "
        "The text gives no sizes; PyTorch's cache may hold much of the card.",
    ),
    Kind.JAX: Why(Reason.UNCLEAR, "XLA could not place a buffer, and the text gives no sizes."),
    Kind.HOST: Why(Reason.HOST, "The machine's own memory ran out, not the GPU's."),
    Kind.KILLED: Why(
        Reason.UNCLEAR,
        "A process was killed from outside (SIGKILL). Host memory is the usual cause; the text does not say, `dmesg | "
        "grep -i oom` or the container's events do.",
    ),
    Kind.CUBLAS: Why(
        Reason.FULL,
        "cuBLAS asked the driver for its handle or workspace and the card had too little left. The text gives no "
        "sizes; PyTorch's cache may hold much of the card.",
        (
            "Seen too when a kernel before it failed or the CUDA libraries do not match: "
            "CUDA_LAUNCH_BLOCKING=1 shows where.",
        ),
    ),
    Kind.DRIVER: Why(
        Reason.UNCLEAR,
        "CUDA itself refused, outside PyTorch's allocator, and gives no sizes: a context, a library or pinned host "
        "memory had no room.",
        ("The traceback's line may be later than the call that failed: CUDA_LAUNCH_BLOCKING=1 shows it.",),
    ),
}
