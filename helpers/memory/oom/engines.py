"""Why the messages of everybody but PyTorch's allocator are written, and which server was at work around one."""

from __future__ import annotations

import contextlib
import re

from ..allocator.outcome import Reason
from ..breakdown import format_bytes
from .frames import StackFrame
from .message import ORDINARY_OUTSIDE_BYTES, Oom, Why, around, find_size
from .words import KnownServer, Message, MessageKind, engines, kinds

PINNING = re.compile(r"pin_memory|cudaHostAlloc|cudaHostRegister|cudaMallocHost")
CONTEXT = re.compile(r"_lazy_init|_cuda_init|cuCtxCreate|cuDevicePrimaryCtxRetain")


def why(oom: Oom, stack: tuple[StackFrame, ...] = (), before: str = "") -> Why:
    """The reason for a message of another kind than the allocator's; `before` is the log above it."""
    if oom.kind == MessageKind.VLLM:
        return _vllm(oom, before)
    if oom.kind == MessageKind.DRIVER and (decided := _driver(oom, stack)):
        return decided
    return _known(kinds()[oom.kind], oom)


def _known(message: Message, oom: Oom) -> Why:
    """What messages.toml says, with sizes where those that its sentence names were found."""
    known = {
        name: format_bytes(size) for name, size in vars(oom).items() if name.endswith("_bytes") and size is not None
    }
    known |= dict(oom.words)
    sentence = message.plain
    if message.sentence:
        with contextlib.suppress(KeyError):  # a size that the sentence names and the message does not
            sentence = message.sentence.format(**known)
    if oom.requested_tokens is not None and oom.free_tokens is not None and sentence == message.plain:
        sentence += f" It asked for {oom.requested_tokens:,} tokens, and {oom.free_tokens:,} were free."
    return Why(message.reason, sentence, message.notes, message.possible)


def server(text: str, oom: Oom, stack: tuple[StackFrame, ...]) -> KnownServer | None:
    """The server that was at work when the message was written, by its lines around it and the frames above it."""
    told = "\n".join([around(text, oom.start, oom.start + len(oom.text)), *(frame.path for frame in stack)])
    fitting = (one for one in engines() if one.words.search(told) and (one.needs is None or one.needs.search(told)))
    return next(fitting, None)


_RANK = re.compile(r"(?:\bRANK |\[rank|\bTP|\blocal_rank[ =:]+)(\d{1,4})\b[\s\S]{0,600}?GPU (\d{1,3}) has")


def ranks_on_one_card(text: str, oom: Oom) -> tuple[str, ...]:
    """The ranks of one job that failed on the same GPU, where the message names several other processes on it."""
    if len(oom.holders) < 2:
        return ()
    ranks = {rank for rank, card in _RANK.findall(text) if oom.device is None or int(card) == oom.device}
    return tuple(sorted(ranks, key=int)) if len(ranks) > 1 else ()


_JOB = re.compile(
    r"\bnranks (\d{1,4})\b|\bworld_?size\W{1,3}(\d{1,4})\b|--(?:nproc[-_]per[-_]node|num_processes)[= ](\d{1,4})\b"
)


_VERSION = re.compile(r"(?:LLM engine \(|vLLM API server version )v?(\d{1,3}\.\d{1,4})")
_ENDED = re.compile(r"Sending process (\d{1,20}) closing signal")


def started_together(text: str, oom: Oom) -> tuple[int, ...]:
    """The processes on the card that look like ranks of one job: as many as it may have, with ids close by, alike.

    A launcher starts its ranks one after the other, so their ids are; strangers' ids and sizes are far apart.
    """
    found = [held for held in oom.holders if held.held_bytes]
    told = _JOB.findall(around(text, oom.start, oom.start))
    pids, held = sorted(one.pid for one in found), [one.held_bytes or 0 for one in found]
    ended = set(map(int, _ENDED.findall(text[oom.start :])))  # by their launcher
    if len(ended & set(pids)) > 1:
        return tuple(pids)
    if len(found) < 2 or len(found) > max((int("".join(numbers)) for numbers in told), default=0):
        return ()
    span = pids[-1] - pids[0]
    alike = span < 8 * len(pids) and max(held) < 1.25 * min(held)
    return tuple(pids) if alike or span < 2 * len(pids) else ()


def _driver(oom: Oom, stack: tuple[StackFrame, ...]) -> Why | None:
    """The driver's words are the same for everything; what was called tells host memory and a full card apart."""
    calls = [oom.text, *(f"{frame.function} {frame.code}" for frame in stack)]
    if any(map(PINNING.search, calls)):
        return PINNED
    return NO_CONTEXT if any(map(CONTEXT.search, calls)) else None


def vllm_version(log: str) -> str:
    """As the engine's first lines say it; "" where they are not there."""
    found = _VERSION.search(log)
    return found[1] if found else ""


def _vllm(oom: Oom, before: str) -> Why:
    asked, free, capacity = oom.requested_bytes, oom.free_bytes, oom.capacity_bytes
    if oom.requested_tokens is not None and oom.free_tokens is not None:
        sentence = (
            f"One sequence of max_model_len has {oom.requested_tokens:,} tokens, and the share of the card that vLLM "
            f"may use (gpu_memory_utilization) leaves a KV cache of {oom.free_tokens:,}."
        )
        return Why(Reason.CAPPED, sentence)
    if asked is None or free is None:
        return _without_a_block(before)
    if capacity is None:
        sentence = (
            f"One sequence of max_model_len needs {format_bytes(asked)} of KV cache, and the share of the card that "
            f"vLLM may use leaves {format_bytes(free)}."
        )
        fits = re.search(r"estimated maximum model length is (\d{1,20})", oom.text)
        return Why(Reason.CAPPED, sentence + (f" By its own estimate {int(fits[1]):,} tokens fit." if fits else ""))
    taken = capacity - free
    start = f"vLLM would keep {format_bytes(asked)} of the card (gpu_memory_utilization), and {format_bytes(free)} were"
    if taken > ORDINARY_OUTSIDE_BYTES:
        whose = f"others held {format_bytes(taken)} before it started, often a run that did not stop."
        return Why(Reason.OUTSIDE, f"{start} free: {whose}")
    return Why(Reason.CAPPED, f"{start} free: what is missing is no more than contexts and a desktop take.")


def _without_a_block(before: str) -> Why:
    """With the figures of vLLM's own log, where they stand above the message: what is taken, and what is short."""
    known = kinds()[MessageKind.VLLM]
    weights = find_size("(?:Model loading took|model weights take) {}", before, last=True)
    left = re.findall(r"(?:Available KV cache memory:|reserved for KV Cache is) (-?\d{1,9}(?:\.\d{1,9})?) ?GiB", before)
    if not weights or not left:
        return Why(known.reason, known.plain, known.notes)
    short = float(left[-1])
    needs = f"so {-short:.2f} GiB are short before the first token" if short < 0 else "which is no whole block"
    sentence = (
        f"The share of the card that vLLM may use (gpu_memory_utilization) is taken before the KV cache: the weights "
        f"have {format_bytes(weights)}, and after the profile run it leaves {short:.2f} GiB, {needs}."
    )
    return Why(known.reason, sentence, known.notes)


PINNED = Why(
    Reason.HOST,
    "The call was for pinned host memory, which CUDA reports with the same words: the machine's memory, or the limit "
    "on how much of it may be pinned, ran out. WSL has a low one.",
    ("pin_memory=False, or fewer and smaller pinned buffers, does without it.",),
)
# tensorflow/tensorflow/issues/30594: several programs on one server's card.
NO_CONTEXT = Why(
    Reason.OUTSIDE,
    "Not even a context fitted, which is the first thing that a process asks for and some hundred MiB: others fill the "
    "card.",
)
