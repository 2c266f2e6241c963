"""A cache over denoising steps: the same noise at the steps that compute, and the bytes that the formula says."""

from __future__ import annotations

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.memory import trace
from helpers.memory.meter import FreshMeter, Meter
from helpers.memory.other_shapes import DiTShape, step_cache_bytes
from helpers.techniques.diffusion import DiT, StepCache

SHAPE, BATCH = DiTShape(layers=3), 2


def denoise(model: DiT, cache: StepCache, steps: int) -> list[torch.Tensor]:
    x = torch.ones(BATCH, SHAPE.channels, SHAPE.side, SHAPE.side)
    noises = []
    with torch.no_grad():
        for step in range(steps):
            cache.begin_step()
            noises.append(model(x, torch.full((BATCH,), step), cache))
    return noises


def held(meter: Meter, model: DiT, cache: StepCache) -> int:
    """Bytes alive when nothing is left of the steps but the cache."""
    before = sum(block.size_bytes for block in meter.live.values())
    denoise(model, cache, 3)
    return sum(block.size_bytes for block in meter.live.values()) - before


def test_the_cache_holds_what_the_formula_says_measured_and_traced() -> None:
    model, cache = DiT(SHAPE), StepCache(every=2)
    with FreshMeter() as meter:
        measured = held(meter, model, cache)
    with trace.fake(device="cpu") as session:
        traced = held(session.meter, DiT(SHAPE), StepCache(every=2))
    assert measured == traced == step_cache_bytes(SHAPE, BATCH)


def test_without_a_cache_nothing_is_held() -> None:
    with FreshMeter() as meter:
        assert held(meter, DiT(SHAPE), StepCache.off()) == 0


def test_steps_that_compute_are_exact_and_those_between_are_near() -> None:
    torch.manual_seed(0)
    model = DiT(SHAPE)
    exact, cached = (denoise(model, StepCache(every), 5) for every in (1, 2))
    for step in (0, 2, 4):
        assert torch.equal(exact[step], cached[step])
    for step in (1, 3):
        assert not torch.equal(exact[step], cached[step])
        assert (exact[step] - cached[step]).norm() < 0.5 * exact[step].norm()


def test_every_that_is_none() -> None:
    with pytest.raises(WorkbookError, match="every is 0"):
        StepCache(0)
    with pytest.raises(WorkbookError, match="batch is 0"):
        step_cache_bytes(SHAPE, 0)
