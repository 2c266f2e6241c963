"""Out-of-memory messages, read: from the text of a log to a request, a device and who held what. Facts only.

The words are those of c10/cuda/CUDACachingAllocator.cpp (torch 1.0 to 2.13), aten/src/ATen/mps/MPSAllocator.mm,
c10/core/impl/alloc_cpu.cpp, vLLM's kv_cache_utils.py, the Linux kernel's OOM killer, and of this workbook's `capped`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...catalog.errors import WorkbookError
from ..closed_form.breakdown import TextEnum

PREFIXES = (("K", 10), ("M", 20), ("G", 30), ("T", 40))
UNITS = {"bytes": 1, "B": 1} | {f"{prefix}{unit}": 2**power for prefix, power in PREFIXES for unit in ("B", "IB")}
UNKNOWN_TO_DRIVER = 2**60  # Windows' driver answers −1 for the memory of a process: 17179869184.00 GiB in the message
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
LOOKED_FOR = (
    "'CUDA out of memory' (HIP and XPU too), 'MPS backend out of memory', CUBLAS_STATUS_ALLOC_FAILED, 'CUDA "
    "error: out of memory', DefaultCPUAllocator, vLLM's 'No available memory for the cache blocks', "
    "'Killed' or SIGKILL"
)


class Kind(TextEnum):
    """Who says that memory is out: ALLOCATOR is PyTorch's, CAP this workbook's `capped`, DRIVER is CUDA itself."""

    ALLOCATOR = "allocator"
    CAP = "cap"
    MPS = "mps"
    CUBLAS = "cublas"
    DRIVER = "driver"
    VLLM = "vllm"
    HOST = "host"
    KILLED = "killed"


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
    `other_bytes` what MPS counts beside its own.
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


def parse(text: str) -> Oom:
    """The first out-of-memory message in `text` (colour codes removed, wrapped lines joined); how many follow it.

    WorkbookError when there is none: it names what was looked for.

    >>> oom = parse("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 4.00 GiB total capacity; 3.41 GiB already"
    ...             " allocated; 0 bytes free; 3.44 GiB reserved in total by PyTorch)")
    >>> oom.requested_bytes, oom.free_bytes, oom.cached_bytes // 2**20
    (20971520, 0, 30)
    """
    text = clean(text)
    found = sorted(
        ((match.start(), kind, match) for kind, pattern, _ in KINDS for match in pattern.finditer(text)),
        key=lambda item: item[0],
    )
    if not found:
        raise WorkbookError(
            "there is no out-of-memory message in this text",
            LOOKED_FOR,
            "give the whole log, or a snapshot by torch.cuda.memory._dump_snapshot",
        )
    start, kind, match = found[0]
    reader = next(reader for name, _, reader in KINDS if name == kind)
    return replace(reader(" ".join(_message(text, match).split())), start=start, following=len(found) - 1)


def clean(text: str) -> str:
    """Without colour codes, carriage returns and the frames that rich draws around a traceback."""
    return re.sub(r"^[│┃|] ?|[│┃]\s*$", "", _ANSI.sub("", text).replace("\r\n", "\n"), flags=re.MULTILINE)


def _message(text: str, match: re.Match) -> str:
    """The message's own text: up to where the next one, or another traceback, begins."""
    rest = text[match.end() : match.end() + 2500]
    later = [m.start() for _, pattern, _ in KINDS for m in pattern.finditer(rest)]
    later += [m.start() for m in re.finditer(r"Traceback \(most recent|During handling of|\n\s*\n", rest)]
    return match.group() + rest[: min(later, default=len(rest))]


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    number, unit = text.split()
    size = round(float(number) * UNITS[unit if unit == "bytes" else unit.upper()])
    return None if size >= UNKNOWN_TO_DRIVER else size


SIZE = r"([\d.]+ (?:bytes|[KMGT]i?B|B)\b)"


def _find(pattern: str, text: str) -> int | None:
    """The size where `{}` stands in a pattern; None where the text has no such words."""
    match = re.search(pattern.replace("{}", SIZE), text)
    return _size(match[1]) if match else None


def _allocator(text: str) -> Oom:
    card = re.search(r"GPU (\d+)", text)
    allocated = _find(r"Of the allocated memory {} is allocated", text)
    cached = _find(r"{} is reserved by PyTorch but unallocated", text)
    if allocated is None:
        allocated, reserved = _find(r"{} already allocated", text), _find(r"{} reserved in total", text)
        # "cached" (torch 1.0 to 1.3) is without what is allocated, "reserved" (from 1.4 on) with it
        cached = _find(r"{} cached", text)
        cached = reserved - allocated if reserved is not None and allocated is not None else cached
    named = re.findall(rf"Process (\d+) has {SIZE} memory", text)
    holders = tuple(Holder(int(pid), _size(size)) for pid, size in named)
    return Oom(
        Kind.ALLOCATOR,
        text,
        int(card[1]) if card else None,
        _find(r"Tried to allocate {}", text),
        _find(r"total capaci?ty of {}", text) or _find(r"{} total capacity", text),
        _find(r"of which {} is free", text) if "of which" in text else _find(r"{} free", text),
        allocated,
        cached,
        _find(r"{} allocated in private pools", text),
        _find(r"this process has {} memory", text),
        _find(r"{} allowed", text),
        holders=holders,
    )


def _cap(text: str) -> Oom:
    return Oom(
        Kind.CAP,
        text,
        requested_bytes=_find(r"allocate {}", text),
        allocated_bytes=_find(r"{} is allocated", text),
        allowed_bytes=_find(r"The cap is {}", text),
        free_bytes=_find(r"of which {} is free", text),
    )


def _mps(text: str) -> Oom:
    return Oom(
        Kind.MPS,
        text,
        requested_bytes=_find(r"Tried to allocate {}", text),
        allocated_bytes=_find(r"MPS allocated: {}", text),
        allowed_bytes=_find(r"max allowed: {}", text),
        other_bytes=_find(r"other allocations: {}", text),
    )


def _vllm(text: str) -> Oom:
    return Oom(
        Kind.VLLM,
        text,
        requested_bytes=_find(r"{} KV cache is needed", text),
        free_bytes=_find(r"available KV cache memory \({}\)", text),
    )


def _host(text: str) -> Oom:
    match = re.search(r"you tried to allocate (\d+) ?bytes", text, re.IGNORECASE)
    numpy = _find(r"Unable to allocate {}", text)
    return Oom(Kind.HOST, text, requested_bytes=int(match[1]) if match else numpy)


def _killed(text: str) -> Oom:
    resident = re.search(r"anon-rss:(\d+)kB", text)
    pid = re.search(r"Killed process (\d+)", text)
    held = int(resident[1]) * 1024 if resident else None
    holders = (Holder(int(pid[1]), held),) if pid else ()
    return Oom(Kind.KILLED, text, process_bytes=held, holders=holders)


Reader = Callable[[str], Oom]
KINDS: tuple[tuple[Kind, re.Pattern, Reader], ...] = (
    (Kind.ALLOCATOR, re.compile(r"(?:CUDA|HIP|XPU|(?<![\w.])NPU) out of memory"), _allocator),
    (Kind.ALLOCATOR, re.compile(r"OutOfMemoryError: Tried to allocate"), _allocator),
    (Kind.CAP, re.compile(r"(?<!CUDA )(?<!HIP )out of memory\. Tried to allocate [^.]+\.\d+ \w+\.\s+The cap is"), _cap),
    (Kind.MPS, re.compile(r"MPS backend out of memory"), _mps),
    (Kind.CUBLAS, re.compile(r"CUBLAS_STATUS_ALLOC_FAILED"), lambda text: Oom(Kind.CUBLAS, text)),
    (
        Kind.DRIVER,
        re.compile(r"(?:CUDA|HIP)(?: driver)? error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"),
        lambda text: Oom(Kind.DRIVER, text),
    ),
    (
        Kind.VLLM,
        re.compile(r"ValueError: (?:No available memory for the cache blocks|To serve at least one request with)"),
        _vllm,
    ),
    (Kind.HOST, re.compile(r"DefaultCPUAllocator:|ArrayMemoryError|^MemoryError\b", re.MULTILINE), _host),
    (
        Kind.KILLED,
        re.compile(
            r"Killed process \d+|is killed by signal: Killed|SIGKILL|exit ?code\s*: ?-9\b"
            r"|^.{0,80}\bKilled\s*$|line \d+:\s+\d+ Killed\b",
            re.MULTILINE,
        ),
        _killed,
    ),
)
