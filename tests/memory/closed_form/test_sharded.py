"""What ZeRO does to the moments of a step: shards, what is whole for a while, and what is offloaded."""

from dataclasses import replace

import pytest

from helpers.catalog import TrainSetup
from helpers.memory.closed_form import Point, budget, zero
from helpers.memory.closed_form.moments import StepMoments
from helpers.techniques.zero.rank_trace import traced


def at(setup, where, layer=None):
    return budget.train(setup).at(where, layer).parts


def test_the_root_is_whole_from_forward_to_the_end_of_backward():
    setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", zero=3, ranks=8)
    root, shard = 2 * zero.units(setup.model)[0], -(-2 * setup.model.parameters // 8)
    for moment in budget.train(setup).moments:
        whole = 0 if moment.at is Point.OPTIMIZER else root
        assert moment.parts["parameters"] == pytest.approx(shard + whole, abs=512), moment.name


def test_stage_2_holds_two_buckets_while_a_layer_works():
    setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", zero=2, ranks=8)
    alone = StepMoments(replace(setup, zero=0), 0).backward_of_layer(0).parts
    bucket = 2 * max(zero.buckets(setup)[1:-1])
    assert at(setup, Point.LAYER, 0)["workspace"] - alone["workspace"] == 2 * bucket


def test_the_head_s_gradient_is_whole_while_it_waits_for_its_flat():
    """At stage 3 the root waits for the embedding's gradient, and so does a tied head in autograd; else it leaves."""
    untied, tied = (TrainSetup(name, "bf16", "adamw-fused", zero=2, ranks=8) for name in ("llama-2-7b", "llama-3.2-1b"))
    table, tied_table = (2 * setup.model.vocab * setup.model.hidden for setup in (untied, tied))
    norm = Point.FINAL_NORM
    assert at(replace(untied, zero=3), norm)["gradients"] == table
    assert at(tied, norm)["gradients"] == at(replace(tied, zero=3), norm)["gradients"] == tied_table
    alone = at(replace(untied, zero=0), norm)
    assert at(untied, norm)["gradients"] == table // 8
    assert at(untied, norm)["workspace"] - alone["workspace"] == table  # its flat, on the way


def test_behind_a_layer_of_stage_3_its_gradients_are_there_twice():
    setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", sequence=64, checkpointing="full", zero=3, ranks=8)
    layer = 2 * zero.units(setup.model)[1]
    workspace = at(setup, Point.LAYER, 0)["workspace"]
    assert workspace == pytest.approx(2 * layer + 2 * layer, rel=0.01)  # two gathered; gradients, and their flat


def test_the_last_flat_is_made_beside_its_gradients():
    setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", zero=3, ranks=8)
    root, n = 2 * zero.units(setup.model)[0], setup.model.parameters
    parts = at(setup, Point.EMBEDDING)
    assert parts["workspace"] == pytest.approx(2 * root, rel=0.05)
    assert parts["gradients"] == pytest.approx((2 * n - root) / 8, rel=1e-6)


def test_stage_1_reduces_with_whole_gradients_and_one_flat():
    setup = TrainSetup("llama-2-7b", "fp32", zero=1, ranks=8)
    parts = at(setup, Point.OPTIMIZER)
    assert parts["gradients"] == 4 * setup.model.parameters
    assert parts["workspace"] == 4 * zero.buckets(setup)[0]  # the largest, and the first


def test_foreach_copies_are_of_the_shard():
    setup = TrainSetup("llama-2-7b", "fp32", zero=3, ranks=8)
    fused = replace(setup, optimizer="adamw-fused")
    more = at(setup, Point.OPTIMIZER).total - at(fused, Point.OPTIMIZER).total
    assert more == -(-4 * setup.model.parameters // 8)


def test_what_is_offloaded_leaves_the_gpu():
    setup = TrainSetup("llama-2-7b", "megatron-bf16", zero=3, ranks=8, checkpointing="full")
    moved = replace(setup, offload_optimizer="cpu", offload_parameters="cpu")
    assert all("optimizer" not in moment.parts for moment in budget.train(moved).moments)
    assert at(moved, Point.OPTIMIZER).total == 0
    assert at(moved, Point.LOSS)["parameters"] == 2 * zero.units(setup.model)[0]
    spared = budget.train(setup).peak_bytes - budget.train(moved).peak_bytes
    assert spared > 0.9 * zero.held(setup).device.total


def test_one_rank_may_offload():
    setup = TrainSetup("llama-3.2-1b", "bf16", zero=1, offload_optimizer="cpu", checkpointing="full")
    assert budget.train(setup).peak_bytes < budget.train(replace(setup, zero=0, offload_optimizer="none")).peak_bytes


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("name", "sequence"), [("tiny-llama", 128), ("tiny-gpt2", 16)])
def test_accumulated_micro_batches_begin_with_the_last_flat_in_flight(name, sequence, stage):
    """Beside the shards of all gradients; in a step of one micro-batch `step()` has waited for it."""
    setup = TrainSetup(name, "bf16", "adamw-fused", 2, sequence, zero=stage, ranks=4, micro_batches=3)
    predicted = budget.train(setup).peak_bytes
    assert predicted == pytest.approx(traced(setup, on="cpu").trace.peak_bytes, rel=0.025)
    assert predicted > 1.1 * budget.train(replace(setup, micro_batches=1)).peak_bytes
