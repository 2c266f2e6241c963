"""The device by itself: bandwidth by level, the host link, operators under the roof, histories of its allocator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import torch

from ...memory import measure
from ...memory.accuracy.ops import grown_by_cat
from ...memory.measure import links
from .target import MeasuredFigure, Target, six_digits

SEED = 0
HEADS, WIDTH, LAYERS = 8, 128, 8  # a quarter of Llama-3-8B's layers, as in chapter 03


def bandwidth(target: Target) -> Iterator[MeasuredFigure]:
    """The staircase: bytes per second by working set."""
    found = measure.sweep(target.device, target.sizes.sweep_bytes)
    setup = {"kind": "sweep", "reported": found.reported}
    yield MeasuredFigure(
        "read", "bandwidth", "bytes/s", setup, tuple(map(six_digits, found.bytes_per_s)), found.sizes, "bytes"
    )


def host_link(target: Target) -> Iterator[MeasuredFigure]:
    """Each way from pageable and from pinned memory, and both ways at once."""
    for copy in measure.copies(target.device, target.sizes.copy_bytes):
        setup = {"kind": "copy", "size_bytes": target.sizes.copy_bytes, "ways": 2 if copy.way == links.BOTH else 1}
        yield MeasuredFigure(
            f"{copy.way}, {copy.memory}", "bandwidth", "bytes/s", setup, (six_digits(copy.bytes_per_s),)
        )


def roofline(target: Target) -> Iterator[MeasuredFigure]:
    """The measured roof, and each operator's work and seconds under it."""
    number_format = measure.default_format(target.device)
    found = measure.roofline(target.sizes.probes, target.device, number_format)
    setup = {"kind": "roof", "format": number_format}
    yield MeasuredFigure("roof", "memory", "bytes/s", setup, (six_digits(found.roof.bytes_per_s),))
    yield MeasuredFigure("roof", "arithmetic", "FLOP/s", setup, (six_digits(found.roof.flops_per_s),))
    for name, point in found.points.items():
        work = point.work
        operator = {"kind": "operator", "format": number_format, "flops": work.flops}
        operator |= {"read_bytes": work.read_bytes, "written_bytes": work.written_bytes}
        yield MeasuredFigure(name, "time", "s", operator, (six_digits(point.seconds),))


def random_requests(target: Target) -> Iterator[MeasuredFigure]:
    """Tensors of 64 bytes to 64 MiB that come and go in a random order, the cache thrown away now and then."""
    steps, most = target.sizes.random_steps, target.sizes.random_log2
    living: list[torch.Tensor] = []  # what is left of it must be alive when the snapshot is taken

    def run() -> None:
        rng = random.Random(SEED)
        for _ in range(steps):
            if rng.random() < 0.01:
                target.gpu.empty_cache()
            elif living and rng.random() < 0.5:
                living.pop(rng.randrange(len(living)))
            else:
                living.append(torch.empty(int(2 ** rng.uniform(6, most)), dtype=torch.uint8, device=target.device))

    yield _reserved(target, "random requests", {"kind": "snapshot", "seed": SEED, "steps": steps, "log2": most}, run)


def growing_cache(target: Target) -> Iterator[MeasuredFigure]:
    """Chapter 03's cache of eight layers, one token longer at a time, each time in new tensors."""
    users, tokens = target.sizes.cat_users, list(target.sizes.cat_tokens)
    setup = {"kind": "growing cache", "users": users, "heads": HEADS, "width": WIDTH, "layers": LAYERS}
    setup["tokens"] = tokens
    kept: list[torch.Tensor] = []

    def run() -> None:
        kept.extend(grown_by_cat(users, HEADS, WIDTH, LAYERS, tokens, device=target.device))

    yield _reserved(target, "cache grown by cat", setup, run)


def _reserved(target: Target, label: str, setup: Mapping[str, object], run: Callable[[], None]) -> MeasuredFigure:
    peaks = []
    found = target.gpu.history(lambda: peaks.append(target.gpu.peak(run)))
    return MeasuredFigure(label, "peak reserved", "bytes", setup, (peaks[0].reserved,), history=found)
