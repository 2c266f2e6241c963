"""Out-of-memory messages, read: from the text of a log to a request, a device and who held what.

`Why` is what `reason`, `refused` and `engines` make of them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from ...catalog.errors import WorkbookError
from ..allocator.outcome import Reason
from .words import LOOKED_FOR, SIZE, MessageKind, kinds, matches, near

PREFIXES = (("K", 10), ("M", 20), ("G", 30), ("T", 40))
UNITS = {"bytes": 1, "B": 1} | {f"{prefix}{unit}": 2**power for prefix, power in PREFIXES for unit in ("", "B", "IB")}
UNKNOWN_TO_DRIVER = 2**60  # under WSL NVML answers −1 for the memory of a process: 17179869184.00 GiB in the message
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

# A process's own CUDA context, kernels and libraries: 0.1 GiB (T4) to 1.8 GiB (vLLM) were seen. More than this on the
# card without being PyTorch's is worth asking after; a quarter of the card and more is not one process's own.
ORDINARY_OUTSIDE_BYTES = 2 * 2**30
ORDINARY_SHARE = 4
ROUNDING_BYTES = 2**30 // 50  # sizes are printed to 0.01 GiB; a sum of some of them is off by up to this


class MessageSizes(NamedTuple):
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
    `words` are other facts by name. `survived` messages stand before it, after which the run went on.
    """

    kind: str
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
    short_bytes: int | None = None
    requested_tokens: int | None = None
    free_tokens: int | None = None
    backend: str = ""
    holders: tuple[Holder, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    start: int = 0
    survived: int = 0
    following: int = 0

    @property
    def sizes(self) -> MessageSizes | None:
        """The request, tensors, cache and free bytes, if the message gives all four."""
        asked, allocated, cached, free = self.requested_bytes, self.allocated_bytes, self.cached_bytes, self.free_bytes
        if asked is None or allocated is None or cached is None or free is None:
            return None
        return MessageSizes(asked, allocated, cached, free)

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
    """The message in `text` that ended the run (colour codes removed, wrapped lines joined).

    That is the first of those after which nothing went on: one that a retry or more steps follow was survived.
    WorkbookError when there is none: it names what was looked for.

    >>> oom = parse("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 4.00 GiB total capacity; 3.41 GiB already"
    ...             " allocated; 0 bytes free; 3.44 GiB reserved in total by PyTorch)")
    >>> oom.requested_bytes, oom.free_bytes, oom.cached_bytes // 2**20
    (20971520, 0, 30)
    """
    text = clean(text)
    found = [(kind, match) for kind, match in _told_around(text, _apart(text)) if kind]
    if not found:
        do = "give the whole log, or a snapshot by torch.cuda.memory._dump_snapshot"
        raise WorkbookError("there is no out-of-memory message in this text", LOOKED_FOR, do)
    starts = [match.start() for _, match in found]
    began_again = (at for at in range(1, len(found)) if _went_on(text, starts[at - 1], starts[at]))
    at = max(began_again, default=0)
    kind, match = found[at]
    oom = _read(kind, " ".join(_message(text, kind, match).split()))
    return replace(oom, start=starts[at], survived=at, following=len(found) - at - 1)


def _apart(text: str) -> list[tuple[str, re.Match[str]]]:
    """(kind, match) of each message once, in order.

    One line may be found by several words, of several kinds, and a caller tells the same again on the next.
    """
    found: list[tuple[str, re.Match[str]]] = []
    for _, kind, match in sorted(matches(text), key=lambda item: (item[0], -len(item[2].group()))):
        before = found[-1][1] if found else None
        end = before.start() + len(before.group().rstrip()) if before else 0
        again = before and match.re is not before.re and text.count("\n", end, match.start()) < 2
        if before is None or not (match.start() < end or again):
            found.append((kind, match))
    return found


NEAR = 4000  # characters: a server's log is long, and its own lines are near


def around(text: str, start: int, end: int) -> str:
    """What stands near a message, above it and below."""
    return text[max(0, start - NEAR) : end + NEAR // 2]


def _told_around(text: str, found: list[tuple[str, re.Match[str]]]) -> Iterator[tuple[str, re.Match[str]]]:
    """The same messages, each of the kind that the log around it makes it."""
    for kind, match in found:
        rules = [rule for rule in near() if kind in rule.kinds]
        told = around(text, match.start(), match.end()) if rules else ""
        yield next((rule.becomes for rule in rules if rule.words.search(told)), kind), match


_RETRIED = re.compile(r"(?i)retry(?:ing)?|skipping (?:this )?batch|reducing batch|recover(?:ed|ing)")
_PROGRESS = re.compile(r"(?i)\b(?:step|iter|iteration|epoch)\b\W{0,3}\d|\bloss\W{1,3}\d|\d(?:it/s|s/it)\b")
_STEPS = 3  # other ranks may report one or two more before they end


def _went_on(text: str, start: int, later: int) -> bool:
    """Whether the run went on between two messages."""
    between = text[start:later]
    return bool(_RETRIED.search(between)) or sum(1 for _ in islice(_PROGRESS.finditer(between), _STEPS)) == _STEPS


def clean(text: str) -> str:
    """Without colour codes, carriage returns and the frames that rich draws around a traceback."""
    text = text.replace("\r\n", "\n")
    text = _ANSI.sub("", text) if "\x1b" in text else text
    framed = any(frame in text for frame in ("│", "┃", "\n|")) or text.startswith("|")
    return re.sub(r"^[│┃|] ?|[│┃]\s*$", "", text, flags=re.MULTILINE) if framed else text


def _message(text: str, kind: str, match: re.Match[str]) -> str:
    """The message's own text: up to where the next one, another traceback or a new paragraph begins."""
    rest = text[match.end() : match.end() + 2500]
    again = ((at, other != kind or more.re is match.re) for at, other, more in matches(rest))
    # One line may be found by several words of a kind, and a caller tells the same again on the next.
    later = [at for at, another in again if another or rest.count("\n", 0, at) >= 2]
    ends = r"Traceback \(most recent|During handling of" + ("" if kinds()[kind].paragraphs else r"|\n\s*\n")
    later += [m.start() for m in re.finditer(ends, rest)]
    return match.group() + rest[: min(later, default=len(rest))]


def _read(kind: str, text: str) -> Oom:
    known = kinds()[kind]
    figures: dict[str, Any] = {name: find_size(words, text) for name, words in known.sizes.items()}
    for name, words in known.tokens.items():
        counted = re.search(words, text)
        figures[name] = int(counted[1]) if counted else None
    told = ((name, re.search(words, text)) for name, words in known.texts.items())
    oom = Oom(kind, text, **figures, words=tuple((name, match[1]) for name, match in told if match))
    match kind:
        case MessageKind.ALLOCATOR:
            return _read_allocator(oom)
        case MessageKind.KILLED:
            pids = re.findall(r"Killed process (\d{1,20})", text)[:1]
            return replace(oom, holders=tuple(Holder(int(pid), oom.process_bytes) for pid in pids))
        case MessageKind.LLAMA_CPP | MessageKind.JAX:
            number = re.search(r"on device(?: ordinal)? (\d{1,20})|(?:CUDA|ROCm)(\d{1,20}) buffer", text)
            return replace(oom, device=int(next(filter(None, number.groups()))) if number else None)
        case MessageKind.VLLM:
            tokens = re.search(r"max seq len \((\d{1,20})\).*stored in KV cache \((\d{1,20})\)", text)
            if tokens:
                return replace(oom, requested_tokens=int(tokens[1]), free_tokens=int(tokens[2]))
            device = re.search(r"on device \w+:(\d{1,20})", text)
            return replace(oom, device=int(device[1]) if device else None)
    return oom


def _read_allocator(oom: Oom) -> Oom:
    text, cached = oom.text, oom.cached_bytes
    card, reserved = re.search(r"GPU (\d{1,20})", text), find_size(r"{} reserved in total", text)
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


def find_size(words: str, text: str, last: bool = False) -> int | None:
    """The size where `{}` stands, of the first such place or the last; None where the text has no such words."""
    found = re.finditer(words.replace("{}", SIZE), text)
    match = next(iter(deque(found, maxlen=1)), None) if last else next(found, None)
    return _size(*sorted(filter(None, match.groups()), key=lambda part: not part[0].isdigit())) if match else None


def _size(number: str, unit: str = "bytes") -> int | None:
    number = number.replace(",", "" if re.fullmatch(r"\d{1,3}(?:,\d{3})+", number) and unit == "bytes" else ".")
    size = round(float(number) * UNITS[unit if unit == "bytes" else unit.upper()])
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
