"""The trace beside the closed form that chose a plan: near where the code runs, and a reason where it does not."""

from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.models import model
from helpers.catalog.split import Split
from helpers.catalog.train_setup import TrainSetup
from helpers.memory import trace
from helpers.memory.plan import Cards, ServeGoal, TrainGoal, plan_serving, plan_training
from helpers.memory.plan.confirm import confirm
from helpers.memory.plan.training import Job, Layout, StepEngine

TINY = model("tiny-llama")
CARD = [Cards("rtx-4090", 1, 1.0)]


def test_one_card_is_confirmed_within_a_percent():
    goal = TrainGoal(TINY, tokens=10**6, sequence=256, batch_tokens=2**11, precisions=("autocast-bf16",))
    found = confirm(plan_training(goal, CARD))
    assert abs(found.error) < 0.01
    assert "The trace allocates" in found.sentence


def test_a_replica_holds_what_the_trace_says_or_a_little_more():
    """The plan adds the largest transient to full caches, although prefill meets them before they are full."""
    found = confirm(plan_serving(ServeGoal(TINY, users=4, context=256, weights=("bf16",), kv=("bf16",)), CARD))
    assert -0.01 < found.error < 0.05


@pytest.mark.parametrize("reduced", ["fp32", "bf16"])
def test_a_rank_of_fsdp2_is_confirmed_in_its_own_reduction(reduced):
    answer = plan_training(TrainGoal(TINY, tokens=10**6, sequence=64, batch_tokens=2**11), CARD)
    layout = Layout(StepEngine.FSDP2, 2, precision="autocast-bf16", reduced=reduced, micro_batches=4)
    need = Job(TINY, 64).need(layout, CARD[0].device)
    found = confirm(replace(answer, plans=(replace(answer.plans[0], layout=layout, need=need),)))
    assert -0.015 < found.error < 0.001  # of a tiny model blocks that cannot be split are a percent


@pytest.mark.parametrize("layout", [Layout(StepEngine.MEGATRON, 2, 2), Layout(StepEngine.MEGATRON, 1, 2)], ids=str)
def test_tensor_parallel_ranks_are_traced_as_pytorchs_and_the_difference_is_told(layout):
    answer = plan_training(TrainGoal(TINY, tokens=10**6, sequence=256, batch_tokens=2**11), CARD)
    need = Job(TINY, 256).need(layout, CARD[0].device)
    found = confirm(replace(answer, plans=(replace(answer.plans[0], layout=layout, need=need),)))
    split = Split(fsdp=layout.data, tensor=2)
    setup = TrainSetup(TINY, precision="autocast-bf16", optimizer="adamw-fused", sequence=256, split=split)
    assert found.traced_bytes == trace.train(setup, "rtx-4090").peak_allocated_bytes
    more = found.traced_bytes / need.total - 1
    assert f"{abs(more):.1%} {'more' if more > 0 else 'less'} than the closed form" in found.sentence
    assert f"({split}), with FP32 shards, and not Megatron" in found.sentence


@pytest.mark.parametrize(
    "layout",
    [
        Layout(StepEngine.MEGATRON, 2, 2, 2),
        Layout(StepEngine.MEGATRON, 2, 2, context=2),
        Layout(StepEngine.ZERO, 2, zero=2),
        Layout(StepEngine.ZERO, 2, zero=3, precision="megatron-bf16"),
        Layout(StepEngine.ZERO, 2, zero=3, precision="autocast-bf16", optimizer="adamw-8bit"),
        Layout(StepEngine.ZERO, 1, zero=2, offload=True),
    ],
    ids=str,
)
def test_what_is_not_traced_has_its_reason(layout):
    answer = plan_training(TrainGoal(TINY, tokens=10**6, sequence=256, batch_tokens=2**11), CARD)
    found = confirm(replace(answer, plans=(replace(answer.plans[0], layout=layout),)))
    assert found.traced_bytes is None
    assert found.error is None
    assert "does not run here" in found.sentence


def test_nothing_is_confirmed_without_a_plan():
    answer = plan_training(TrainGoal(TINY, tokens=10**6, sequence=256, batch_tokens=2**11), CARD)
    with pytest.raises(WorkbookError, match="no plan"):
        confirm(replace(answer, plans=()))
