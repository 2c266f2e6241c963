"""The job that the first half of the course carries from chapter to chapter, and its bar.

    job.bars("And with checkpointing", {"the job": job.SETUP, "checkpointed": replace(job.SETUP, checkpointing="full")})

The bars of all chapters have one place, one scale, the same parts in the same colours, and the line of the job's card.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..catalog.devices import device
from ..catalog.train_setup import TrainSetup
from ..memory import budget
from .drawing.bars import Parts, stacked_bars
from .drawing.pictures import Card

SETUP = TrainSetup("llama-3.1-8b", precision="autocast-bf16", optimizer="adamw-fused", sequence=2048)
CARD = device("rtx-4090-24gb")
SCALE_BYTES, NAMES_PX = 150 * 2**30, 170  # the job with PyTorch's default AdamW, 149.6 GiB; the longest name of a rung


def bars(title: str, rungs: Mapping[str, TrainSetup | Parts]) -> Card:
    """One bar for each of `rungs`: the parts of a setup's peak by the closed form, or parts that are given."""
    parts = {name: budget.train(one).parts if isinstance(one, TrainSetup) else one for name, one in rungs.items()}
    return stacked_bars(title, parts, {"24 GB:": CARD.capacity_bytes}, "", SCALE_BYTES, NAMES_PX)
