"""A run split over GPUs: each rank's trace beside real ranks, and what is no split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog.setup import TrainSetup
from helpers.catalog.split import Split
from helpers.memory import trace
from tests.memory.trace import rank_cases

SETUP = TrainSetup(rank_cases.CONFIG, precision="fp32", sequence=64, micro_batch=2)
CUTS = {
    "fsdp": (Split(fsdp=2), {}),
    "fsdp, recomputed": (Split(fsdp=2, reshard=False), {"checkpointing": "full", "micro_batches": 2}),
    "fsdp, mixed": (Split(fsdp=2), {"precision": "autocast-bf16"}),
    "tensor": (Split(tensor_parallel=2), {}),
    "tensor, recomputed": (Split(tensor_parallel=2), {"checkpointing": "every:2", "precision": "bf16"}),
    "gpipe": (Split(pipeline=2, schedule="GPipe"), {"micro_batches": 4}),
    "1f1b": (Split(pipeline=2), {"micro_batches": 4}),
    "1f1b, recomputed": (Split(pipeline=2), {"micro_batches": 4, "checkpointing": "full"}),
    "interleaved": (Split(pipeline=2, schedule="Interleaved1F1B"), {"micro_batches": 4}),
    "zero bubble": (Split(pipeline=2, schedule="InterleavedZeroBubble"), {"micro_batches": 4}),
}
TWICE = {
    "tensor and fsdp": (Split(fsdp=2, tensor_parallel=2), {}),
    "pipeline and fsdp": (Split(fsdp=2, pipeline=2), {"micro_batches": 2}),
    "pipeline and tensor": (Split(tensor_parallel=2, pipeline=2), {"micro_batches": 2}),
    "four stages": (Split(pipeline=4), {"micro_batches": 8}),
}


@pytest.mark.parametrize("cut", CUTS)
def test_each_rank_has_the_peak_of_a_real_one(ranks2, cut):
    _beside_real_ranks(ranks2, *CUTS[cut])


@pytest.mark.slow
@pytest.mark.parametrize("cut", TWICE)
def test_each_rank_of_four_has_the_peak_of_a_real_one(ranks4, cut):
    _beside_real_ranks(ranks4, *TWICE[cut])


def _beside_real_ranks(ranks, split: Split, changes: dict) -> None:
    setup = replace(SETUP, **changes)
    real = ranks.run(rank_cases.peak_of_split, setup, split)
    traced = [trace.train(setup, on="cpu", split=replace(split, rank=rank)).peak_bytes for rank in range(split.ranks)]
    assert traced == pytest.approx(real, rel=0.01)
