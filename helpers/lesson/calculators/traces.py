"""Ready traces for the allocation-step calculator: small enough to follow, each with something to see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...catalog.errors import unknown_name
from ...memory.allocator import MIB, Step, alloc, empty_cache, free

KIB = 1024


@dataclass(frozen=True)
class Trace:
    """A trace for a card of `capacity_bytes`; `watch` says what default settings make of it."""

    steps: tuple[Step, ...]
    capacity_bytes: int
    watch: str


def trace(name: str) -> Trace:
    """The trace called `name`; WorkbookError with the nearest match otherwise."""
    if not isinstance(name, str) or name not in TRACES:
        raise unknown_name("trace", name, TRACES)
    return TRACES[name]


def _mib(name: str, size: float) -> Step:
    return alloc(name, int(size * MIB))


def _batch_first() -> Iterator[Step]:
    """A tensor that stays is cut out of the place that a large one left."""
    yield from (_mib("batch", 40), free("batch"))
    yield from (_mib("weights", 12), _mib("scratch", 24), free("scratch"))
    yield from (empty_cache(), _mib("batch 2", 36))


def _weights_first() -> Iterator[Step]:
    yield from (_mib("weights", 12), _mib("batch", 40), free("batch"))
    yield from (_mib("scratch", 24), free("scratch"))
    yield from (empty_cache(), _mib("batch 2", 36))


def _kv_cache() -> Iterator[Step]:
    """torch.cat makes the longer cache before the shorter one dies."""
    sizes = range(12, 44, 4)
    for at, size in enumerate(sizes):
        yield _mib(f"kv {at}", size)
        if at:
            yield free(f"kv {at - 1}")


def _training() -> Iterator[Step]:
    """Two steps of a two-layer model, the second with a longer sequence."""
    yield from (_mib("W1", 16), _mib("W2", 16))
    for step, tokens in (("", 1.0), ("'", 1.25)):
        yield from (_mib(f"act1{step}", 12 * tokens), _mib(f"act2{step}", 12 * tokens))
        yield from (_mib(f"logits{step}", 22 * tokens), _mib(f"dlogits{step}", 22 * tokens), free(f"logits{step}"))
        yield from (_mib(f"dW2{step}", 16), free(f"dlogits{step}"), free(f"act2{step}"))
        yield from (_mib(f"dW1{step}", 16), free(f"act1{step}"))
        if not step:
            yield from (_mib("m", 32), _mib("v", 32))
        yield from (_mib(f"update{step}", 32), free(f"update{step}"), free(f"dW1{step}"), free(f"dW2{step}"))


def _equal_steps() -> Iterator[Step]:
    """The same three sizes twice: best fit starts from other holes the second time."""
    for step in ("", "'"):
        yield from (_mib(f"a{step}", 3), _mib(f"b{step}", 18), _mib(f"c{step}", 17))
        yield from (free(f"a{step}"), free(f"b{step}"), free(f"c{step}"))


def _small() -> Iterator[Step]:
    yield from (alloc("step count", 8), alloc("norm", 5000), alloc("bias", 700 * KIB), alloc("bias 2", 700 * KIB))
    yield from (alloc("bias 3", 1000 * KIB), free("norm"), alloc("loss", 4), free("bias"), free("bias 2"))
    yield from (alloc("just small", MIB), alloc("just large", MIB + 1), empty_cache())


TRACES = {
    "batch first": Trace(
        tuple(_batch_first()),
        64 * MIB,
        "The weights live on inside the first batch's segment, so it can neither serve nor go back.",
    ),
    "weights first": Trace(
        tuple(_weights_first()),
        64 * MIB,
        "The same tensors as in batch first, the one that stays allocated first: nothing is cut.",
    ),
    "KV cache by cat": Trace(
        tuple(_kv_cache()), 256 * MIB, "Each cache is larger than every hole that the earlier ones left."
    ),
    "training": Trace(
        tuple(_training()), 240 * MIB, "The longer sequence of the second step fits few holes of the first."
    ),
    "equal steps": Trace(
        tuple(_equal_steps()),
        64 * MIB,
        "The second step asks for the same sizes and needs more: the 3 MiB took another place.",
    ),
    "small tensors": Trace(
        tuple(_small()),
        64 * MIB,
        "Up to 1 MiB the small pool serves, from segments of 2 MiB; one byte more takes 20 MiB.",
    ),
}
