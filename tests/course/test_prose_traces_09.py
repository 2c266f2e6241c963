"""What chapter 09 says of the job on one of eight cards under FSDP2, traced by the chapter's own code."""

from __future__ import annotations

from functools import cache, partial
from typing import Any
from unittest import mock

import pytest
import torch

from helpers.lesson import job
from helpers.memory.fit import Room
from tests.course.chapter_09 import CHAPTER, SHARDERS, names

GIB = 2**30


@cache
def chapter() -> dict[str, Any]:
    return names(SHARDERS)


def peak(how: str, casts: str = "fp32", wrap: str = "by_layer", policy: str = "policy", **changes: Any) -> float:
    there = chapter()
    options = {"mp_policy": there[policy]} if policy else {}
    options |= {"reshard_after_forward": False} if changes.pop("kept", False) else {}
    found = there["traced"](partial(there[wrap], **options), casts, checkpointing=how, **changes)
    return found.peak_bytes / GIB


FULL, AUTOCAST = "full", "autocast-bf16"
PEAKS = [
    ("28.9", ("none",), {}),
    ("28.9", ("none",), {"policy": "in_bf16"}),
    ("28.0", ("none",), {"wrap": "as_accelerate", "policy": "in_bf16"}),
    ("20.4", (FULL,), {}),
    ("20.4", (FULL, AUTOCAST), {}),  # autocast beside the policy has nothing to copy
    ("19.1", (FULL,), {"policy": "in_bf16"}),
    ("17.1", (FULL,), {"wrap": "as_accelerate", "policy": "in_bf16"}),
    ("29.7", (FULL,), {"kept": True}),
    ("47.7", ("none", AUTOCAST), {"policy": ""}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("gib", "how", "more"), PEAKS)
def test_a_peak_of_the_job_on_one_of_eight_cards(gib, how, more):
    assert f"{peak(*how, **more):.1f}" == gib


def of_the_job(wrap: str = "by_layer", more=lambda model: None, **changes: Any) -> Any:
    """A trace of the job on one of eight cards, checkpointed; `more(model)` comes behind the wrapping."""
    there = chapter()

    def shard(model: Any) -> None:
        there[wrap](model, mp_policy=there["policy"])
        more(model)

    return there["traced"](shard, checkpointing=FULL, **changes)


@pytest.mark.slow
def test_autocast_without_its_cache_keeps_no_copy():
    real = torch.autocast.__init__

    def uncached(self, *words, **how):
        real(self, *words, **(how | {"cache_enabled": False}))

    assert f"{peak(FULL, AUTOCAST, policy=''):.1f}" == "33.5"
    with mock.patch.object(torch.autocast, "__init__", uncached):
        assert f"{peak(FULL, AUTOCAST, policy=''):.1f}" == "23.8"
    (symptoms,) = [cell.source for cell in CHAPTER.cells if cell.id == "09-symptoms"]
    assert "`cache_enabled=False` alone: 33.5 → 23.8" in symptoms


@pytest.mark.slow
def test_micro_batches_run_out_in_holes_alone():
    found, room = of_the_job(micro_batches=4), Room(job.CARD, ranks=8).for_tensors_bytes
    assert f"{found.peak_bytes / GIB:.1f}" == "20.8"
    assert found.peak_bytes < room
    assert found.replayed(capacity_bytes=room).oom
    assert not found.replayed("expandable_segments:True", capacity_bytes=room).oom


@pytest.mark.slow
def test_two_layers_fetched_ahead_are_not_at_the_peak_and_more_are():
    def ahead(count: int, model: Any) -> None:
        layers = list(model.model.layers)
        for at, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(layers[at + 1 : at + 1 + count])
            layer.set_modules_to_backward_prefetch(layers[max(0, at - count) : at][::-1])

    none, two, four = (of_the_job(more=partial(ahead, count)).peak_bytes for count in (0, 2, 4))
    assert none == two < four


@pytest.mark.slow
def test_without_reductions_whole_gradients_stay_in_fp32():
    found = of_the_job(more=lambda model: model.set_requires_gradient_sync(False))
    assert found.parts["workspace"] / GIB == pytest.approx(29.9, abs=0.6)
    assert found.peak_bytes - of_the_job().peak_bytes > 15 * GIB  # and no averages are there, for nothing is reduced
