"""The types that all instruments answer in: bytes by part, and the moments of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GIB = 2**30
BLOCK_BYTES = 512  # kMinBlockSize in c10/core/AllocatorConfig.h: every CUDA allocation is rounded up to this

PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "workspace", "kv_cache")


def rounded(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole 512-byte blocks, as the CUDA caching allocator counts an allocation.

    >>> rounded(1), rounded(512), rounded(513), rounded(0)
    (512, 512, 1024, 0)
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def format_bytes(size_bytes: float) -> str:
    """Bytes as people read them, in binary units.

    >>> format_bytes(80 * 2**30), format_bytes(-1536), format_bytes(7)
    ('80.00 GiB', '-1.50 KiB', '7 B')
    """
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= size:
            return f"{size_bytes / size:.2f} {unit}"
    return f"{size_bytes:.0f} B"


class Breakdown(Mapping[str, int]):
    """Bytes by named part, in order. Reads like a dict, adds up, and subtracts part by part.

    >>> predicted, measured = Breakdown(parameters=1000, gradients=400), Breakdown(parameters=1000, gradients=512)
    >>> predicted.total, measured - predicted
    (1400, Breakdown(parameters=0, gradients=112))
    """

    def __init__(self, parts: Mapping[str, int] | None = None, /, **named: int) -> None:
        self._parts = {**(parts or {}), **named}

    @property
    def total(self) -> int:
        return sum(self._parts.values())

    def __getitem__(self, name: str) -> int:
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __sub__(self, other: Mapping[str, int]) -> Breakdown:
        names = list(dict.fromkeys((*self, *other)))
        return Breakdown({name: self.get(name, 0) - other.get(name, 0) for name in names})

    def __repr__(self) -> str:
        return f"Breakdown({', '.join(f'{name}={size}' for name, size in self._parts.items())})"

    def __str__(self) -> str:
        width = max([5, *map(len, self._parts)])
        rows = [*self._parts.items(), ("total", self.total)]
        return "\n".join(f"{name:<{width}}  {format_bytes(size):>12}" for name, size in rows)


@dataclass(frozen=True)
class Moment:
    """What is live at one named moment of a step."""

    name: str
    parts: Breakdown

    @property
    def total(self) -> int:
        return self.parts.total
