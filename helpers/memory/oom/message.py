"""Out-of-memory messages, read: from the text of a log to a request, a device and who held what. Facts only.

The words are those of c10/cuda/CUDACachingAllocator.cpp (torch 1.0 to 2.13), aten/src/ATen/mps/MPSAllocator.mm,
c10/core/impl/alloc_cpu.cpp, vLLM's kv_cache_utils.py, the Linux kernel's OOM killer, and of this workbook's `capped`;
of ggml (llama.cpp, Ollama), SGLang's model runner, TensorRT-LLM's runtime, NCCL and XLA (JAX).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ...catalog.errors import WorkbookError
from ..closed_form.breakdown import TextEnum

PREFIXES = (("K", 10), ("M", 20), ("G", 30), ("T", 40))
UNITS = {"bytes": 1, "B": 1} | {f"{prefix}{unit}": 2**power for prefix, power in PREFIXES for unit in ("B", "IB")}
UNKNOWN_TO_DRIVER = 2**60  # Windows' driver answers −1 for the memory of a process: 17179869184.00 GiB in the message
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
LOOKED_FOR = (
    "'CUDA out of memory' (HIP and XPU too), 'MPS backend out of memory', CUBLAS_STATUS_ALLOC_FAILED, 'CUDA "
    "error: out of memory', DefaultCPUAllocator, vLLM's 'No available memory for the cache blocks', "
    "SGLang's 'Not enough "
    "memory', ggml's 'cudaMalloc failed: out of memory' (llama.cpp, Ollama), TensorRT-LLM's 'CUDA "
    "runtime error', NCCL's "
    "'Cuda failure 2', JAX's RESOURCE_EXHAUSTED, 'Killed' or SIGKILL"
)


class Kind(TextEnum):
    """Who says that memory is out: ALLOCATOR is PyTorch's, CAP this workbook's `capped`, DRIVER is CUDA itself."""

    ALLOCATOR = "allocator"
    CAP = "cap"
    MPS = "mps"
    CUBLAS = "cublas"
    DRIVER = "driver"
    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "ollama"
    NCCL = "nccl"
    JAX = "jax"
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
    found = [(match.start(), kind, match) for kind, words in KINDS.items() for match in words.finditer(text)]
    if not found:
        do = "give the whole log, or a snapshot by torch.cuda.memory._dump_snapshot"
        raise WorkbookError("there is no out-of-memory message in this text", LOOKED_FOR, do)
    start, kind, match = min(found, key=lambda item: item[0])
    return replace(_read(kind, " ".join(_message(text, match).split())), start=start, following=len(found) - 1)


def clean(text: str) -> str:
    """Without colour codes, carriage returns and the frames that rich draws around a traceback."""
    return re.sub(r"^[│┃|] ?|[│┃]\s*$", "", _ANSI.sub("", text).replace("\r\n", "\n"), flags=re.MULTILINE)


def _message(text: str, match: re.Match) -> str:
    """The message's own text: up to where the next one, or another traceback, begins."""
    rest = text[match.end() : match.end() + 2500]
    later = [m.start() for words in KINDS.values() for m in words.finditer(rest)]
    later += [m.start() for m in re.finditer(r"Traceback \(most recent|During handling of|\n\s*\n", rest)]
    return match.group() + rest[: min(later, default=len(rest))]


def _read(kind: Kind, text: str) -> Oom:
    sizes: dict[str, Any] = {name: _find(words, text) for name, words in SIZES_IN.get(kind, {}).items()}
    oom = Oom(kind, text, **sizes)
    if kind is Kind.KILLED:
        pids = re.findall(r"Killed process (\d+)", text)[:1]
        return replace(oom, holders=tuple(Holder(int(pid), oom.process_bytes) for pid in pids))
    if kind in (Kind.LLAMA_CPP, Kind.JAX):
        number = re.search(r"on device(?: ordinal)? (\d+)|(?:CUDA|ROCm)(\d+) buffer", text)
        return replace(oom, device=int(next(filter(None, number.groups()))) if number else None)
    if kind is not Kind.ALLOCATOR:
        return oom
    card, reserved, cached = re.search(r"GPU (\d+)", text), _find(r"{} reserved in total", text), oom.cached_bytes
    if reserved is not None and oom.allocated_bytes is not None:
        cached = reserved - oom.allocated_bytes
    named = re.findall(rf"Process (\d+) has {SIZE} memory", text)
    holders = tuple(Holder(int(pid), _size(*size)) for pid, *size in named)
    return replace(oom, device=int(card[1]) if card else None, cached_bytes=cached, holders=holders)


def _find(words: str, text: str) -> int | None:
    """The size where `{}` stands; None where the text has no such words."""
    match = re.search(words.replace("{}", SIZE), text)
    return _size(*filter(None, match.groups())) if match else None


def _size(number: str, unit: str = "bytes") -> int | None:
    size = round(float(number) * UNITS[unit if unit == "bytes" else unit.upper()])
    return None if size >= UNKNOWN_TO_DRIVER and unit != "bytes" else size


SIZE = r"([\d.]+) ?(bytes|[kKMGT]i?B|B)\b"
# By field of Oom. "cached" (torch 1.0 to 1.3) is without what is allocated, "reserved in total" (1.4 to 2.0) with it.
SIZES_IN: Mapping[Kind, Mapping[str, str]] = {
    Kind.ALLOCATOR: {
        "requested_bytes": r"Tried to allocate {}",
        "capacity_bytes": r"total capaci?ty of {}|{} total capacity",
        "free_bytes": r"of which {} is free|{} free",
        "allocated_bytes": r"Of the allocated memory {} is allocated|{} already allocated",
        "cached_bytes": r"{} is reserved by PyTorch but unallocated|{} cached",
        "private_bytes": r"{} allocated in private pools",
        "process_bytes": r"this process has {} memory",
        "allowed_bytes": r"{} allowed",
    },
    Kind.CAP: {
        "requested_bytes": r"allocate {}",
        "allocated_bytes": r"{} is allocated",
        "allowed_bytes": r"The cap is {}",
        "free_bytes": r"of which {} is free",
    },
    Kind.MPS: {
        "requested_bytes": r"Tried to allocate {}",
        "allocated_bytes": r"MPS allocated: {}",
        "allowed_bytes": r"max allowed: {}",
        "other_bytes": r"other allocations: {}",
    },
    Kind.VLLM: {"requested_bytes": r"{} KV cache is needed", "free_bytes": r"available KV cache memory \({}\)"},
    Kind.LLAMA_CPP: {"requested_bytes": r"allocating {} on device|buffer of size (\d+)"},
    Kind.OLLAMA: {"requested_bytes": r"system memory \({}\)", "free_bytes": r"than is available \({}\)"},
    Kind.JAX: {"requested_bytes": r"(?:while trying to allocate|allocating|allocate request for) {}"},
    Kind.HOST: {"requested_bytes": r"(?i:you tried to allocate) {}|Unable to allocate {}"},
    Kind.KILLED: {"process_bytes": r"anon-rss:{}"},
}
KINDS: Mapping[Kind, re.Pattern] = {
    kind: re.compile(words, re.MULTILINE)
    for kind, words in {
        Kind.ALLOCATOR: r"(?:CUDA|HIP|XPU|(?<![\w.])NPU) out of memory|OutOfMemoryError: Tried to allocate",
        Kind.CAP: r"(?<!CUDA )(?<!HIP )out of memory\. Tried to allocate [^.]+\.\d+ \w+\.\s+The cap is",
        Kind.MPS: r"MPS backend out of memory",
        Kind.CUBLAS: r"CUBLAS_STATUS_ALLOC_FAILED",
        Kind.DRIVER: r"(?:CUDA|HIP)(?: driver)? error: out of memory|CUDA_ERROR_OUT_OF_MEMORY",
        Kind.VLLM: r"ValueError: (?:No available memory for the cache blocks|To serve at least one request with)",
        Kind.SGLANG: r"Not enough memory\. Please try to \w+ --mem-fraction-static",
        Kind.TENSORRT_LLM: r"(?:\[TensorRT-LLM\]\[ERROR\] )+CUDA runtime error in .{0,200}?: out of memory",
        Kind.LLAMA_CPP: r"(?:allocating [\d.]+ MiB on device \d+: )?(?:cuda|hip)Malloc failed: out of memory"
        r"(?:\n.{0,120}failed to allocate \w+ buffer of size \d+)?|failed to allocate (?:CUDA|ROCm)\d+ buffer of size",
        Kind.OLLAMA: r"requires more system memory \(",
        Kind.NCCL: r"Cuda failure (?:2 )?'out of memory'",
        Kind.JAX: r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|Resource exhausted: Out\s+of memory",
        Kind.HOST: r"DefaultCPUAllocator:|ArrayMemoryError|^MemoryError\b",
        Kind.KILLED: r"Killed process \d+|is killed by signal: Killed|SIGKILL|exit ?code\s*: ?-9\b"
        r"|^.{0,80}\bKilled\s*$|line \d+:\s+\d+ Killed\b",
    }.items()
}
