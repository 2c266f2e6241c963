"""The words by which each message is found, and what is known of it: messages.toml, read once.

The words are those of c10/cuda/CUDACachingAllocator.cpp (torch 1.0 to 2.13), c10/xpu and aten/src/ATen/mps, vLLM,
SGLang, ggml (llama.cpp, Ollama), TensorRT-LLM, NCCL, XLA, RAPIDS, the Linux kernel, schedulers, and of this workbook's
`capped`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..allocator.outcome import Reason
from ..breakdown import TextEnum

FILE = Path(__file__).with_name("messages.toml")
LOOKED_FOR = (
    "the words of PyTorch ('CUDA out of memory'; HIP, XPU, NPU, MPS and cudaMallocAsync too), of a driver or library "
    "(CUBLAS_STATUS_ALLOC_FAILED, NCCL's 'Cuda failure 2', Triton, Metal, Vulkan), of an engine (vLLM, SGLang, "
    "TensorRT-LLM, llama.cpp, Ollama, JAX, TensorFlow, RAPIDS), or of the host ('Killed', exit code 137, Slurm, Ray, "
    "OOMKilled, the page file)"
)


class MessageKind(TextEnum):
    """Those that code asks for; messages.toml has many more. ALLOCATOR is PyTorch's, CAP this workbook's `capped`."""

    ALLOCATOR = "allocator"
    CAP = "cap"
    DRIVER = "driver"
    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    JAX = "jax"
    KILLED = "killed"


WHOLE = r"\d{1,20}"  # more digits are no figure of a real message, and Python's own conversions refuse or overflow
SIZE = rf"({WHOLE}(?:[.,]{WHOLE})?) ?(bytes|[kKMGT]i?B|[MGT]|B)\b"  # a decimal comma is printed in some locales


@dataclass(frozen=True)
class Change:
    """One thing to do, and what it costs; `source` says where its flag or variable is documented, `seen` in which
    version it was read."""

    do: str
    costs: str = ""
    source: str = ""
    seen: str = ""


@dataclass(frozen=True)
class Message:
    """What is known of one kind of message. `sentence` has fields of sizes, `plain` none; `log` is an example.

    `paragraphs`: the message goes on after blank lines.
    """

    name: str
    words: tuple[str, ...]
    reason: Reason = Reason.UNCLEAR
    sentence: str = ""
    plain: str = ""
    notes: tuple[str, ...] = ()
    possible: tuple[Reason, ...] = ()
    cures: tuple[str, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    paragraphs: bool = False
    log: str = ""


@dataclass(frozen=True)
class KnownServer:
    """A server that may be at work around a message, the words it is known by, and its own knobs."""

    name: str
    words: re.Pattern[str]
    needs: re.Pattern[str] | None
    cures: tuple[str, ...]


@dataclass(frozen=True)
class Near:
    """What the log around a message of one of these kinds makes of it: another kind, or '' where it is no message."""

    kinds: frozenset[str]
    words: re.Pattern[str]
    becomes: str


@cache
def near() -> tuple[Near, ...]:
    """In the order in which they are looked for."""
    rows = _data()["near"]
    return tuple(Near(frozenset(row["kinds"]), re.compile(row["words"]), row.get("becomes", "")) for row in rows)


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def kinds() -> dict[str, Message]:
    """Every kind of message by its name, in the file's order."""
    return {row["name"]: _message(row) for row in _data()["kind"]}


def _message(row: dict[str, Any]) -> Message:
    return Message(
        row["name"],
        tuple(row["words"]),
        Reason[row.get("reason", "unclear").upper()],
        row.get("sentence", ""),
        row.get("plain", ""),
        tuple(row.get("notes", ())),
        tuple(Reason[name.upper()] for name in row.get("possible", ())),
        tuple(row.get("cures", ())),
        row.get("sizes", {}),
        row.get("tokens", {}),
        row.get("texts", {}),
        row.get("paragraphs", False),
        row.get("log", ""),
    )


@cache
def cures() -> dict[str, Change]:
    """Every cure by its name."""
    return {name: Change(**row) for name, row in _data()["cure"].items()}


@cache
def cures_at() -> dict[str, tuple[str, ...]]:
    """The names of the cures for each place in a program, by the place's own name in small letters."""
    return {place: tuple(names) for place, names in _data()["at"].items()}


@cache
def engines() -> tuple[KnownServer, ...]:
    """The servers, in the order in which they are looked for."""
    return tuple(
        KnownServer(row["name"], re.compile("|".join(row["words"])), _compiled(row.get("needs")), tuple(row["cures"]))
        for row in _data()["engine"]
    )


def _compiled(words: str | None) -> re.Pattern[str] | None:
    return re.compile(words) if words else None


@cache
def patterns() -> tuple[tuple[str, list[str], re.Pattern[str]], ...]:
    """(kind, words that must be in the text, pattern) of each of the words. A space stands for any white space: a
    terminal or an issue form wraps a message at any of them."""
    return tuple(
        (kind.name, _certain(words), re.compile(words.replace(" ", r"\s+"), re.MULTILINE))
        for kind in kinds().values()
        for words in kind.words
    )


def _certain(words: str) -> list[str]:
    """The plain words that every match holds, the longest first. A log that lacks one is not searched."""
    bare = re.sub(r"\{[\d,]+\}", "?", re.sub(r"\[[^]]*\]|\\.", "\0", words))
    while re.search(r"\([^()]*\)", bare):  # what is in a group may be one of several, or be left out
        bare = re.sub(r"\([^()]*\)", "\0", bare)
    certain = re.sub(r".(?=[?*])", "\0", bare)
    return [] if "|" in bare else sorted(re.findall(r"[A-Za-z0-9_]{3,}", certain), key=len, reverse=True)


def matches(text: str) -> Iterator[tuple[int, str, re.Match[str]]]:
    """(where, kind, match) of every message in `text`; kinds one after the other."""
    has = cache(text.__contains__)  # the same words stand in many patterns
    for kind, certain, pattern in patterns():
        if all(map(has, certain)):
            yield from ((match.start(), kind, match) for match in pattern.finditer(text))
