"""The types that all instruments answer in: bytes by part, and the moments of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from ..catalog.errors import unknown_name

GIB = 2**30
BLOCK_BYTES = 512  # kMinBlockSize in c10/core/AllocatorConfig.h: every CUDA allocation is rounded up to this


class TextEnum(StrEnum):
    """Names that show as their text wherever they are printed: in a cell, in a list, in JSON."""

    def __repr__(self) -> str:
        return repr(self.value)


class Part(TextEnum):
    """What bytes are for; every account of a step or of a replica is divided so."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    WORKSPACE = "workspace"
    KV_CACHE = "kv_cache"


PARTS = tuple(Part)


class Phase(TextEnum):
    """The three phases of a step that is measured or traced."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer step"


class Point(TextEnum):
    """The turning points of a step, or of a replica that serves, in closed form: its peak is at one of them."""

    END_OF_FORWARD = "end_of_forward"
    LOSS = "loss"
    LM_HEAD = "lm_head"
    FINAL_NORM = "final_norm"
    LAYER = "layer"
    EMBEDDING = "embedding"
    OPTIMIZER = "optimizer step"
    PREFILL = "prefill"
    DECODE = "decode"


CAPTIONS: dict[str, str] = {
    Point.END_OF_FORWARD: "end of forward, in the loss",
    Point.LOSS: "backward of the loss",
    Point.LM_HEAD: "backward of lm_head",
    Point.FINAL_NORM: "backward of the final norm",
    Point.LAYER: "backward of layer",
    Point.EMBEDDING: "backward of the embedding",
    Point.OPTIMIZER: "optimizer step",
    Point.PREFILL: "prefill",
    Point.DECODE: "last decode step",
}


def rounded(size_bytes: int) -> int:
    """`size_bytes` rounded up to whole 512-byte blocks, as the CUDA caching allocator counts an allocation.

    >>> rounded(1), rounded(512), rounded(513), rounded(0)
    (512, 512, 1024, 0)
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def tensors_bytes(shapes: Iterable[tuple[int, ...]], bytes_per_value: int) -> int:
    """Of tensors of these shapes, each in whole blocks."""
    return sum(count * rounded(prod(shape) * bytes_per_value) for shape, count in Counter(shapes).items())


def format_bytes(size_bytes: float) -> str:
    """Bytes as people read them, in binary units.

    >>> format_bytes(80 * 2**40), format_bytes(-1536), format_bytes(7)
    ('81,920.00 GiB', '-1.50 KiB', '7 B')
    """
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= size:
            number = size_bytes / size
            return f"{number:,.2f} {unit}" if abs(number) < 1e15 else f"{number:.3g} {unit}"
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
    """What is live at one moment of a step: at a point of the closed form, or at the highest one of a measured phase.

    `layer`, counted from 0, says whose backward it is at `Point.LAYER`.
    """

    at: Point | Phase | str
    parts: Breakdown
    layer: int | None = None

    @property
    def total(self) -> int:
        return self.parts.total

    @property
    def name(self) -> str:
        """The moment as people read it; code asks for `at`.

        >>> Moment(Point.LAYER, Breakdown(), layer=0).name
        'backward of layer 1'
        """
        caption = CAPTIONS.get(self.at, str(self.at))
        return caption if self.layer is None else f"{caption} {self.layer + 1}"

    @property
    def when(self) -> str:
        """The moment inside a sentence.

        >>> Moment(Point.END_OF_FORWARD, Breakdown()).when, Moment(Point.LAYER, Breakdown(), layer=0).when
        ('at the end of the forward pass, in the loss', 'in the backward of layer 1')
        """
        if self.at == Point.END_OF_FORWARD:
            return "at the end of the forward pass, in the loss"
        return f"in the {self.name}"


class Moments:
    """An answer that has moments: the highest of them, and each by where it is."""

    moments: tuple[Moment, ...]

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def parts(self) -> Breakdown:
        """What the peak is made of."""
        return self.peak.parts

    def at(self, where: Point | Phase | str, layer: int | None = None) -> Moment:
        """The first moment at a point or of a phase, of `layer` if that is given.

        `budget.train(setup).at("lm_head")`; WorkbookError for a moment that there is not.
        """
        for moment in self.moments:
            if moment.at == where and layer in (None, moment.layer):
                return moment
        raise unknown_name("moment", where, dict.fromkeys(moment.at for moment in self.moments))
