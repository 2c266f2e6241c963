"""Which layers are recomputed, and how much of each: names for the field's policies, as segments of a chain. No torch.

    layout("every:2", 5)      # segments of layers 0-1, 2-3 and 4: of each, only the input is kept

Chen et al. 2016, arXiv:1604.06174 (segments, sqrt-n, recursion); Korthikanti et al. 2022, arXiv:2205.05198 (selective);
Megatron-LM's `recompute_method`: "uniform" is every:K here, and "block" is first:K. torchtitan's selective
checkpointing by operators (torchtitan/parallelisms/parallelize_llama.py at 9dec370) is selective:every-second: fused
attention, and of a layer's linear layers the first, the third and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import WorkbookError, require_whole, unknown_name

SELECTIVE = ("selective", "selective:matmuls", "selective:attention", "selective:every-second")
PER_LAYER = ("none", "full", *SELECTIVE, "module:attention", "module:mlp", "offload", "offload:inputs")
COUNTED = ("every", "first", "nested")
POLICIES = (*PER_LAYER, "sqrt-n", "recursive", *(f"{word}:K" for word in COUNTED))


@dataclass(frozen=True)
class PolicySegment:
    """Layers `start` to `stop` - 1 and what happens to them: "none" keeps all they save, "full" only their input.

    `how` may be any name in PER_LAYER. `parts` are checkpointed again inside a segment that is recomputed.
    """

    start: int
    stop: int
    how: str = "full"
    parts: tuple[PolicySegment, ...] = ()

    def __str__(self) -> str:
        layers = f"{self.start}" if self.stop == self.start + 1 else f"{self.start}-{self.stop - 1}"
        return f"{layers} {self.how}" + (f" ({', '.join(map(str, self.parts))})" if self.parts else "")


def layout(policy: str, layers: int) -> tuple[PolicySegment, ...]:
    """The segments of a chain of `layers` under `policy`; together they are the chain. WorkbookError for other names.

    >>> [str(segment) for segment in layout("every:2", 5)]
    ['0-1 full', '2-3 full', '4 full']
    >>> [str(segment) for segment in layout("first:2", 4)]
    ['0 full', '1 full', '2 none', '3 none']
    """
    require_whole("the number of layers", layers, do="pass the model's layers")
    name = str(policy).lower()
    if name in PER_LAYER:
        return tuple(PolicySegment(layer, layer + 1, name) for layer in range(layers))
    if name == "sqrt-n":
        return _every(math.isqrt(layers - 1) + 1, 0, layers)
    if name == "recursive":
        return _halves(0, layers)
    word, _, count = name.partition(":")
    if word not in COUNTED:
        raise unknown_name("checkpointing policy", policy, POLICIES)
    return _counted(word, _count(name, word, count, layers), layers)


def whole_layers(segments: tuple[PolicySegment, ...]) -> bool:
    """Whether every layer is kept or recomputed as a whole, which checkpoints around layers do: none, full, every:K,
    sqrt-n, first:K, nested:K and recursive.

    >>> whole_layers(layout("nested:2", 4)), whole_layers(layout("selective", 4))
    (True, False)
    """
    return all(segment.how in ("none", "full") for segment in segments)


def _counted(word: str, count: int, layers: int) -> tuple[PolicySegment, ...]:
    if word == "every":
        return _every(count, 0, layers)
    if word == "first":
        return (*_every(1, 0, count), *(PolicySegment(layer, layer + 1, "none") for layer in range(count, layers)))
    return tuple(
        PolicySegment(outer.start, outer.stop, parts=_every(1, outer.start, outer.stop))
        for outer in _every(count, 0, layers)
    )


def _every(size: int, start: int, stop: int) -> tuple[PolicySegment, ...]:
    return tuple(PolicySegment(at, min(at + size, stop)) for at in range(start, stop, size))


def _halves(start: int, stop: int) -> tuple[PolicySegment, ...]:
    """Both halves of a chain, each a segment of its own halves, down to single layers."""
    if stop - start == 1:
        return (PolicySegment(start, stop),)
    middle = (start + stop + 1) // 2
    return tuple(
        PolicySegment(a, b, parts=_halves(a, b) if b - a > 1 else ()) for a, b in ((start, middle), (middle, stop))
    )


def _count(policy: str, word: str, count: str, layers: int) -> int:
    if not (count.isascii() and count.isdigit() and 1 <= int(count[:9]) <= layers):
        expected = f"{word}:K with K from 1 to {layers}, the layers"
        raise WorkbookError(f"the checkpointing policy is {policy!r}", expected, f"pass '{word}:{min(2, layers)}'")
    return int(count)
