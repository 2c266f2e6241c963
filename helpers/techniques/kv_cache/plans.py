"""The kinds of cache, by name: "dynamic", "static:512", "window:128+4", "int2-per-token". No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole, unknown_name

CHANNEL, TOKEN = "channel", "token"
QUANTIZED = {"int8": 8, "int4": 4, "int2": 2}
# The numbers that belong to a kind; those that the name carries after its colon come first.
NUMBERS = {
    "concat": (),
    "dynamic": ("step",),
    "static": ("max_tokens", "batch"),
    "window": ("window", "sinks"),
    **dict.fromkeys(QUANTIZED, ("residual", "group")),
    "offloaded": ("step",),
    "heavy": ("heavy", "recent"),
}
NEEDED = {"static": ("max_tokens",), "window": ("window",), "heavy": ("heavy", "recent")}
EXAMPLES = ("concat", "dynamic", "static:512", "window:128+4", *QUANTIZED, "int2-per-token", "offloaded", "heavy:96+32")
MAY_BE_ZERO = ("sinks", "residual", "heavy")


@dataclass(frozen=True)
class CachePlan:
    """One kind of cache and its numbers: in tokens, but for `batch`, `bits` and `group`.

    `step` is what a growing buffer grows by; `max_tokens` and `batch` are what a static cache reserves (0 sequences: as
    many as come). `window` counts the last tokens kept, the newest among them, beside the first `sinks`. Of a quantized
    cache, `keys` says whether a key's scale belongs to a "channel" or to a "token", `group` how many values share it,
    and `residual` how many of the newest tokens stay as they came, at least. `heavy` tokens are kept for the attention
    they drew, `recent` ones for being new.
    """

    kind: str
    step: int = 64
    max_tokens: int = 0
    batch: int = 0
    window: int = 0
    sinks: int = 0
    keys: str = CHANNEL
    group: int = 32
    residual: int = 32
    heavy: int = 0
    recent: int = 0

    def __post_init__(self) -> None:
        if self.kind not in NUMBERS:
            raise unknown_name("KV cache", self.kind, EXAMPLES)
        for name in NUMBERS[self.kind]:
            least = 0 if name in MAY_BE_ZERO or (name == "batch" and not self.batch) else 1
            do = f"pass {name}={max(least, 1)} or more"
            require_whole(f"{name} of a {self.kind} cache", getattr(self, name), least, do=do)
        if self.bits and self.group % 4:
            expected = "a multiple of 4, so that 2-bit codes fill bytes"
            raise WorkbookError(f"groups of {self.group} values", expected, "pass group=32")

    @property
    def bits(self) -> int:
        """Bits of a quantized cache's codes; 0 for any other kind."""
        return QUANTIZED.get(self.kind, 0)


def plan_of(name: str | CachePlan, **numbers: int) -> CachePlan:
    """The plan that `name` stands for; `numbers` may be in the name or beside it.

    "concat", "dynamic", "static:512" positions, "window:128+4" (the last 128 tokens and the first 4), "int8", "int4",
    "int2", each also with "-per-token", "offloaded", "heavy:96+32" (96 by the attention they drew, and the last 32).

    >>> plan_of("window:128+4").sinks, plan_of("int2-per-token", residual=64).residual
    (4, 64)
    """
    if isinstance(name, CachePlan):
        if numbers:
            do = f"use dataclasses.replace(plan, {next(iter(numbers))}=...)"
            raise WorkbookError("a CachePlan and numbers beside it", "one or the other", do)
        return name
    kind, keys, written = _read(name)
    both = [number for number in numbers if number in written]
    foreign = [number for number in numbers if number not in NUMBERS[kind]]
    if both or foreign:
        expected = f"of {', '.join(NUMBERS[kind]) or 'nothing'}, what the name does not say"
        do = "leave it out of one of the two" if both else "leave it out"
        raise WorkbookError(f"{(both + foreign)[0]}={numbers[(both + foreign)[0]]!r} beside {name!r}", expected, do)
    given = written | numbers
    missing = [number for number in NEEDED.get(kind, ()) if number not in given]
    if missing:
        example = next(each for each in EXAMPLES if each.startswith(kind))
        do = f"write {example!r}, or pass {missing[0]}=128"
        raise WorkbookError(f"a {kind} cache without {' and '.join(missing)}", f"a name such as {example!r}", do)
    return CachePlan(kind, keys=keys, **given)


def _read(name: object) -> tuple[str, str, dict[str, int]]:
    """Kind, what a key's scale belongs to, and the numbers after the colon."""
    found = re.fullmatch(r"([a-z]+\d?)(-per-token)?(?::(\d+)(?:\+(\d+))?)?", name) if isinstance(name, str) else None
    kind, per_token, *written = found.groups() if found else (None, None)
    numbers = [int(number) for number in written if number is not None]
    if kind not in NUMBERS or (per_token and kind not in QUANTIZED) or len(numbers) > len(NUMBERS[kind]):
        raise unknown_name("KV cache", name, EXAMPLES)
    return kind, TOKEN if per_token else CHANNEL, dict(zip(NUMBERS[kind], numbers, strict=False))
