"""Out-of-memory messages, read: from the text of a log to a request, a device and who held what.

`Why` is what `reason`, `refused` and `engines` make of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...catalog.errors import WorkbookError
from ..allocator.outcome import Reason
from .words import KINDS, LOOKED_FOR, SIZE, SIZES_IN, Kind

PREFIXES = (("K", 10), ("M", 20), ("G", 30), ("T", 40))
UNITS = {"bytes": 1, "B": 1} | {f"{prefix}{unit}": 2**power for prefix, power in PREFIXES for unit in ("B", "IB")}
UNKNOWN_TO_DRIVER = 2**60  # under WSL NVML answers −1 for the memory of a process: 17179869184.00 GiB in the message
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

# A process's own CUDA context, kernels and libraries: 0.1 GiB (T4) to 1.8 GiB (vLLM) were seen. More than this on the
# card without being PyTorch's is worth asking after; a quarter of the card and more is not one process's own.
ORDINARY_OUTSIDE_BYTES = 2 * 2**30
ORDINARY_SHARE = 4
ROUNDING_BYTES = 2**30 // 50  # sizes are printed to 0.01 GiB; a sum of some of them is off by up to this


class Sizes(NamedTuple):
    """What an allocator's message says where it says all of it: the request, and the state of the card."""

    asked: int
    allocated: int
    cached: int
    free: int

    @property
    def reserved(self) -> int:
        return self.allocated + self.cached

    @property
    def unused(self) -> int:
        return self.cached + self.free


@dataclass(frozen=True)
class Holder:
    """A process that the message names, and its bytes on the card; None where the driver does not tell."""

    pid: int
    held_bytes: int | None


@dataclass(frozen=True)
class Oom:
    """What one message says, in bytes; None is what it does not say.

    `requested_bytes` of CUDA is what was asked of the driver: for tensors up to 1 MiB a segment of 2 MiB, up to 10 MiB
    one of 20 MiB. `process_bytes` is the whole process on the card, `allowed_bytes` a limit below the card's size,
    `other_bytes` what MPS counts beside its own. `backend` is the allocator's word for the device (CUDA, HIP, XPU).
    """

    kind: Kind
    text: str
    device: int | None = None
    requested_bytes: int | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    cached_bytes: int | None = None
    private_bytes: int | None = None
    process_bytes: int | None = None
    allowed_bytes: int | None = None
    other_bytes: int | None = None
    requested_tokens: int | None = None
    free_tokens: int | None = None
    backend: str = ""
    holders: tuple[Holder, ...] = ()
    start: int = 0
    following: int = 0

    @property
    def sizes(self) -> Sizes | None:
        """The request, tensors, cache and free bytes, if the message gives all four."""
        asked, allocated, cached, free = self.requested_bytes, self.allocated_bytes, self.cached_bytes, self.free_bytes
        if asked is None or allocated is None or cached is None or free is None:
            return None
        return Sizes(asked, allocated, cached, free)

    @property
    def reserved_bytes(self) -> int | None:
        if self.allocated_bytes is None or self.cached_bytes is None:
            return None
        return self.allocated_bytes + self.cached_bytes

    @property
    def outside_bytes(self) -> int | None:
        """On the card and not PyTorch's: contexts, libraries, other processes. By subtraction, so rounded to 0.01 GiB.

        None where a part is unknown, or where a driver that swaps to host memory let PyTorch hold more than the card.
        """
        if self.capacity_bytes is None or self.free_bytes is None or self.reserved_bytes is None:
            return None
        rest = self.capacity_bytes - self.free_bytes - self.reserved_bytes
        return rest if rest >= 0 else None


@dataclass(frozen=True)
class Why:
    """Why a request failed: `sentence` is the arithmetic behind it; `notes` is what to know about these figures.

    `possible` are the reasons that are left where the bytes do not decide, the likeliest first.
    """

    reason: Reason
    sentence: str
    notes: tuple[str, ...] = ()
    possible: tuple[Reason, ...] = ()


def parse(text: str) -> Oom:
    """The first out-of-memory message in `text` (colour codes removed, wrapped lines joined); how many follow it.

    WorkbookError when there is none: it names what was looked for.

    >>> oom = parse("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 4.00 GiB total capacity; 3.41 GiB already"
    ...             " allocated; 0 bytes free; 3.44 GiB reserved in total by PyTorch)")
    >>> oom.requested_bytes, oom.free_bytes, oom.cached_bytes // 2**20
    (20971520, 0, 30)
    """
    text = clean(text)
    found = [(match.start(), kind, match) for kind, words in KINDS.items() for match in words.finditer(text)]
    if not found:
        do = "give the whole log, or a snapshot by torch.cuda.memory._dump_snapshot"
        raise WorkbookError("there is no out-of-memory message in this text", LOOKED_FOR, do)
    start, kind, match = min(found, key=lambda item: item[0])
    return replace(_read(kind, " ".join(_message(text, match).split())), start=start, following=len(found) - 1)


def clean(text: str) -> str:
    """Without colour codes, carriage returns and the frames that rich draws around a traceback."""
    return re.sub(r"^[│┃|] ?|[│┃]\s*$", "", _ANSI.sub("", text).replace("\r\n", "\n"), flags=re.MULTILINE)


def _message(text: str, match: re.Match[str]) -> str:
    """The message's own text: up to where the next one, or another traceback, begins."""
    rest = text[match.end() : match.end() + 2500]
    later = [m.start() for words in KINDS.values() for m in words.finditer(rest)]
    later += [m.start() for m in re.finditer(r"Traceback \(most recent|During handling of|\n\s*\n", rest)]
    return match.group() + rest[: min(later, default=len(rest))]


def _read(kind: Kind, text: str) -> Oom:
    sizes: dict[str, Any] = {name: _find(words, text) for name, words in SIZES_IN.get(kind, {}).items()}
    oom = Oom(kind, text, **sizes)
    match kind:
        case Kind.ALLOCATOR:
            return _read_allocator(oom)
        case Kind.KILLED:
            pids = re.findall(r"Killed process (\d{1,20})", text)[:1]
            return replace(oom, holders=tuple(Holder(int(pid), oom.process_bytes) for pid in pids))
        case Kind.LLAMA_CPP | Kind.JAX:
            number = re.search(r"on device(?: ordinal)? (\d{1,20})|(?:CUDA|ROCm)(\d{1,20}) buffer", text)
            return replace(oom, device=int(next(filter(None, number.groups()))) if number else None)
        case Kind.VLLM:
            tokens = re.search(r"max seq len \((\d{1,20})\).*stored in KV cache \((\d{1,20})\)", text)
            if tokens:
                return replace(oom, requested_tokens=int(tokens[1]), free_tokens=int(tokens[2]))
            device = re.search(r"on device \w+:(\d{1,20})", text)
            return replace(oom, device=int(device[1]) if device else None)
    return oom


def _read_allocator(oom: Oom) -> Oom:
    text, cached = oom.text, oom.cached_bytes
    card, reserved = re.search(r"GPU (\d{1,20})", text), _find(r"{} reserved in total", text)
    if reserved is not None and oom.allocated_bytes is not None:
        cached = reserved - oom.allocated_bytes
    named = re.findall(rf"Process (\d{{1,20}}) has {SIZE} memory", text)
    holders = tuple(Holder(int(pid), _size(*size)) for pid, *size in named)
    backend = re.match(r"(\w+) out of memory", text)
    return replace(
        oom,
        device=int(card[1]) if card else None,
        cached_bytes=cached,
        holders=holders,
        backend=backend[1] if backend else "",
    )


def _find(words: str, text: str) -> int | None:
    """The size where `{}` stands; None where the text has no such words."""
    match = re.search(words.replace("{}", SIZE), text)
    return _size(*filter(None, match.groups())) if match else None


def _size(number: str, unit: str = "bytes") -> int | None:
    size = round(float(number.replace(",", ".")) * UNITS[unit if unit == "bytes" else unit.upper()])
    return None if size >= UNKNOWN_TO_DRIVER and unit != "bytes" else size


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


def others_bytes(oom: Oom) -> int:
    """What other processes hold: as the message names them, else by subtraction where it is too much to be our own."""
    if oom.process_bytes is not None or oom.holders:
        return sum(held.held_bytes or 0 for held in strangers(oom))
    outside, capacity = oom.outside_bytes or 0, oom.capacity_bytes or 0
    return outside if outside > max(ORDINARY_OUTSIDE_BYTES, capacity // ORDINARY_SHARE) else 0
