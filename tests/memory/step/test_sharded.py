"""What ZeRO does to the moments of a step: shards, what is whole for a while, and what is offloaded."""

from dataclasses import replace
from itertools import product

import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.split import Split
from helpers.memory import budget
from helpers.memory.breakdown import Point
from helpers.memory.step.ranks import zero
from tests.memory.step.agreement import agree, by_night, llama


def at(setup, where, layer=None):
    return budget.train(setup).at(where, layer).parts


def test_the_root_is_whole_from_forward_to_the_end_of_backward():
    setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", split=Split(8, zero=3))
    root, shard = 2 * zero.units(setup.model)[0], -(-2 * setup.model.parameters // 8)
    for moment in budget.train(setup).moments:
        whole = 0 if moment.at is Point.OPTIMIZER else root
        assert moment.parts["parameters"] == pytest.approx(shard + whole, abs=512), moment.name


SMALL = llama(512, 1536, 6, 8, 4096, pad_token_id=None)
HEADS = {"untied": SMALL, "tied": SMALL | {"tie_word_embeddings": True}}
RUNS = {  # few tokens, so that whole gradients are most of the peak; and many
    "few tokens": {"precision": "bf16", "sequence": 64},
    "few tokens, recomputed": {"precision": "bf16", "sequence": 64, "checkpointing": "full"},
    "few tokens, three micro-batches": {"precision": "bf16", "sequence": 64, "micro_batches": 3},
    "many tokens, recomputed": {"precision": "fp32", "sequence": 1024, "checkpointing": "full"},
    "autocast": {"precision": "autocast-bf16", "sequence": 1024},
}
QUICK = {("few tokens", "untied", 2), ("many tokens, recomputed", "tied", 3), ("few tokens", "tied", 1)}


@pytest.mark.parametrize(("run", "head", "stage"), by_night(product(RUNS, HEADS, (1, 2, 3)), QUICK))
def test_a_rank_s_peak_is_that_of_the_traced_engine(run, head, stage):
    chosen = {"optimizer": "adamw-fused", "micro_batch": 2, "split": Split(4, zero=stage)}
    agree(TrainSetup(HEADS[head], **RUNS[run], **chosen), peak=0.002)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage", "policy"),
    [("llama-2-7b", 3, "full"), ("llama-2-7b", 2, "full"), ("llama-3.2-1b", 3, "full"), ("gpt2", 3, "none")],
)
def test_a_rank_s_peak_of_a_large_model_is_that_of_the_traced_engine(name, stage, policy):
    agree(TrainSetup(name, "bf16", "adamw-fused", 1, 1024, policy, split=Split(64, zero=stage)), peak=0.002)


def test_stage_1_reduces_with_whole_gradients_and_one_flat():
    setup = TrainSetup("llama-2-7b", "fp32", split=Split(8, zero=1))
    parts = at(setup, Point.OPTIMIZER)
    assert parts["gradients"] == 4 * setup.model.parameters
    assert parts["workspace"] == 4 * zero.buckets(setup)[0]  # the largest, and the first


def test_one_rank_gives_nothing_back_so_two_flats_are_there_beside_its_gradients():
    """The last is the tied table's, with the flat before it."""
    setup = TrainSetup("llama-3.2-1b", "fp32", "adamw-fused", split=Split(zero=1))
    assert at(setup, Point.OPTIMIZER)["workspace"] == 4 * sum(zero.buckets(setup)[-2:])


def test_foreach_copies_are_of_the_shard():
    setup = TrainSetup("llama-2-7b", "fp32", split=Split(8, zero=3))
    fused = replace(setup, optimizer="adamw-fused")
    more = at(setup, Point.OPTIMIZER).total - at(fused, Point.OPTIMIZER).total
    assert more == -(-4 * setup.model.parameters // 8)


def test_what_is_offloaded_leaves_the_gpu():
    setup = TrainSetup("llama-2-7b", "megatron-bf16", split=Split(8, zero=3), checkpointing="full")
    moved = replace(setup, offload_optimizer="cpu", offload_parameters="cpu")
    assert all("optimizer" not in moment.parts for moment in budget.train(moved).moments)
    assert at(moved, Point.OPTIMIZER).total == 0
    assert at(moved, Point.LOSS)["parameters"] == 2 * zero.units(setup.model)[0]
    spared = budget.train(setup).peak_bytes - budget.train(moved).peak_bytes
    assert spared > 0.9 * zero.held(setup).device.total


def test_one_rank_may_offload():
    setup = TrainSetup("llama-3.2-1b", "bf16", split=Split(zero=1), offload_optimizer="cpu", checkpointing="full")
    whole = replace(setup, split=Split(), offload_optimizer="none")
    assert budget.train(setup).peak_bytes < budget.train(whole).peak_bytes


@pytest.mark.parametrize("precision", ["bf16", "megatron-bf16"])
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("name", "sequence"), [("tiny-llama", 128), ("tiny-gpt2", 16)])
def test_accumulated_micro_batches_begin_with_the_last_flat_in_flight(name, sequence, stage, precision):
    """Beside the shards of all gradients; in a step of one micro-batch `step()` has waited for it."""
    setup = TrainSetup(name, precision, "adamw-fused", 2, sequence, split=Split(4, zero=stage), micro_batches=3)
    predicted, _ = agree(setup, peak=0.015)
    assert predicted.peak_bytes > 1.1 * budget.train(replace(setup, micro_batches=1)).peak_bytes
