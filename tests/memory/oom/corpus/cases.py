"""Out-of-memory messages of public issue threads, kept as facts: the thread, the template, the figures, the cause.

The data lies in the JSON files beside this one, a thread a line:

    thread      the address, after https://github.com/
    kind        the template in `templates.py`
    version     of the engine, where the thread names it beside the message
    numbers     the figures as printed, for the template's gaps
    sample      2 for threads that were gathered when the rules for sample 1 stood
    cause       what the thread settled on, null where none was seen; settled_by says how, in our words

Threads were read in excerpts of a search, not whole, so a null may hide a cause further down. Names of hosts and
programs that a template needs and no thread gave are fillers.

A thread is settled where a maintainer gives the cause or closes it with that, or where somebody confirms a cure. A
guess ("might be") in an open thread does not settle it. `cause` is a reason of `explain-oom`, or "less": asking for
less, or more room, cured it. That rules the host and other processes out. It does not tell a card that is full from one
that is in pieces or has a limit: all three go away when less is asked for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.memory.oom import Oom, Reason

from .templates import TEMPLATES

FILES = sorted(Path(__file__).parent.glob("*.json"))
LESS = "less"
CURED_BY_LESS = {Reason.FULL, Reason.FRAGMENTED, Reason.CAPPED}
FIELDS = {
    "asked": "requested_bytes",
    "total": "capacity_bytes",
    "free": "free_bytes",
    "allocated": "allocated_bytes",
    "cached": "cached_bytes",
    "private": "private_bytes",
    "process": "process_bytes",
    "allowed": "allowed_bytes",
    "other": "other_bytes",
}
POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
WSL = "17179869184.00 GiB"  # what PyTorch prints for -1, the driver's "not known"


@dataclass(frozen=True)
class Case:
    thread: str
    kind: str
    engine: str
    version: str | None
    numbers: Mapping[str, object]
    sample: int
    cause: str | None
    settled_by: str | None

    @property
    def text(self) -> str:
        return TEMPLATES[self.kind].fill(self.numbers)

    @property
    def is_first_half(self) -> bool:
        """The half of the first sample that rules were tuned on; the other half was scored once, then read as well."""
        return hashlib.sha256(self.thread.encode()).digest()[0] % 2 == 0

    def is_right(self, reason: Reason) -> bool:
        return reason in CURED_BY_LESS if self.cause == LESS else reason == self.cause

    @property
    def figures(self) -> dict[str, object]:
        """What a reader must find, worked out here and not by the reader's own patterns."""
        found: dict[str, object] = {
            FIELDS[name]: self._bytes(text) for name, text in self.numbers.items() if name in FIELDS and text != WSL
        }
        if "reserved" in self.numbers:
            found["cached_bytes"] = self._bytes(self.numbers["reserved"]) - self._bytes(self.numbers["allocated"])
        if "gpu" in self.numbers:
            found["device"] = int(str(self.numbers["gpu"]))
        holders = self.numbers.get("holders", {})
        assert isinstance(holders, dict)
        if holders:
            found["holders"] = {int(pid): self._bytes(size) for pid, size in holders.items()}
        if self.kind == "vllm-tokens":
            found["requested_tokens"] = int(str(self.numbers["sequence"]))
            found["free_tokens"] = int(str(self.numbers["tokens"]))
        if self.kind == "kernel":
            del found["capacity_bytes"]  # the process's address space, of which nothing need be in memory
        return found

    def _bytes(self, text: object) -> int:
        match = re.fullmatch(r"([\d.,]+) ?(?:bytes|([KMGTk]?)i?B?)", str(text))
        assert match, f"{self.thread}: {text!r} is no size"
        number, prefix = match[1].replace(",", "."), match[2]
        unit = TEMPLATES[self.kind].unit if re.fullmatch(r"[\d.,]+", str(text)) else prefix or ""
        return round(float(number) * 2 ** POWERS[unit.rstrip("iB").upper()])


def read_figures(oom: Oom, names: Mapping[str, object]) -> dict[str, object]:
    """The same figures as the reader has them."""
    found: dict[str, object] = {name: getattr(oom, name) for name in names}
    if "holders" in names:
        found["holders"] = {held.pid: held.held_bytes for held in oom.holders}
    return found


def load() -> tuple[Case, ...]:
    return tuple(Case(**record) for path in FILES for record in json.loads(path.read_text()))


CASES = load()
