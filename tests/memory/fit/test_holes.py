"""What holes ask for beside a step's tensors: the capacity under which its trace does not fail."""

from itertools import product

import pytest

from helpers.catalog import TrainSetup
from helpers.memory import trace
from helpers.memory.fit.room import EXPANDABLE_PERCENT, HOLES_PERCENT

EXPANDABLE = "expandable_segments:True"
WORST = TrainSetup("gemma-3-1b", optimizer="adamw-8bit", checkpointing="full", sequence=2048)
MODELS = ("llama-3.2-1b", "qwen2.5-1.5b", "gemma-3-1b", "llama-2-7b", "llama-3-8b")
CHOICES = list(product(MODELS, ("bf16", "autocast-bf16"), ("adamw", "adamw-8bit"), ("none", "full"), (1, 4)))


def runs(found, percent, settings=None):
    """Whether it runs in so many percent more than its tensors take at their peak."""
    return not found.replayed(settings, found.peak_allocated_bytes * (100 + percent) // 100).oom


def test_the_worst_step_that_was_traced_asks_for_what_the_answers_say():
    found = trace.train(WORST, "a100-80gb")
    assert not runs(found, HOLES_PERCENT - 1)
    assert runs(found, HOLES_PERCENT)
    assert runs(found, EXPANDABLE_PERCENT, EXPANDABLE)


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision", "optimizer", "checkpointing", "micro_batch"), CHOICES)
def test_no_step_asks_for_more(model, precision, optimizer, checkpointing, micro_batch):
    kind = {"precision": precision, "optimizer": optimizer, "checkpointing": checkpointing}
    found = trace.train(TrainSetup(model, micro_batch=micro_batch, **kind), "h100-80gb")
    assert runs(found, HOLES_PERCENT)
    assert runs(found, EXPANDABLE_PERCENT, EXPANDABLE)
