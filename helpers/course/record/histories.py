"""Histories of the real allocator, to be replayed by the simulator: random requests, and a cache that grows by cat."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch

from ...memory.accuracy.growing import grown_by_cat
from .bench import Bench, Figure

SEED = 0
HEADS, WIDTH, LAYERS = 8, 128, 8  # a quarter of Llama-3-8B's layers, as in chapter 03


def random_requests(bench: Bench) -> Iterator[Figure]:
    """Tensors of 64 bytes to 64 MiB that come and go in a random order, the cache thrown away now and then."""
    steps, most = bench.scale.random_steps, bench.scale.random_log2
    living: list[torch.Tensor] = []  # what is left of it must be alive when the snapshot is taken

    def run() -> None:
        rng = random.Random(SEED)
        for _ in range(steps):
            if rng.random() < 0.01:
                bench.gpu.empty_cache()
            elif living and rng.random() < 0.5:
                living.pop(rng.randrange(len(living)))
            else:
                living.append(torch.empty(int(2 ** rng.uniform(6, most)), dtype=torch.uint8, device=bench.device))

    yield _reserved(bench, "random requests", {"kind": "snapshot", "seed": SEED, "steps": steps, "log2": most}, run)


def growing_cache(bench: Bench) -> Iterator[Figure]:
    """Chapter 03's cache of eight layers, one token longer at a time, each time in new tensors."""
    shape = {
        "users": bench.scale.cat_users,
        "heads": HEADS,
        "width": WIDTH,
        "layers": LAYERS,
        "tokens": list(bench.scale.cat_tokens),
    }
    kept: list[torch.Tensor] = []

    def run() -> None:
        kept.extend(grown_by_cat(**shape, device=bench.device))

    yield _reserved(bench, "cache grown by cat", {"kind": "growing cache", **shape}, run)


def _reserved(bench: Bench, label: str, setup: dict[str, object], run: Callable[[], None]) -> Figure:
    peaks = []
    found = bench.gpu.history(lambda: peaks.append(bench.gpu.peak(run)))
    return Figure(label, "peak reserved", "bytes", setup, (peaks[0].reserved,), history=found)
