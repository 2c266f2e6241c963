"""The mesh planner: the closed form's bytes, the planner's seconds, and each schedule's own bubble."""

from __future__ import annotations

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.calculators import mesh, mesh_answer
from helpers.lesson.calculators.mesh import SCHEDULES, schedule_of
from helpers.memory.plan import Cards, Efficiency
from helpers.memory.plan.step import step_time
from helpers.memory.step.ranks import megatron
from helpers.techniques.parallel.pipeline import bubble, traffic

SETUP = megatron.MegatronSetup(
    "llama-3.1-70b", tensor_parallel=4, pipeline=8, data_parallel=2, micro_batches=64, sequence=8192
)


def test_bytes_and_seconds_are_those_of_closed_form_and_planner():
    answer = mesh_answer(SETUP)
    assert answer.parts.total == megatron.train(SETUP, "h100").peak_bytes
    time = step_time(answer.job, answer.layout, Cards("h100", 64), Efficiency())
    assert sum(answer.seconds.values()) == pytest.approx(time.total.middle)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (4, 8), (8, 64)])
def test_the_bubble_is_that_of_the_schedule_itself(name, stages, count):
    setup = megatron.MegatronSetup("llama-3.1-70b", pipeline=stages, micro_batches=count)
    assert mesh_answer(setup, schedule=name).bubble == bubble(schedule_of(name, stages, count))


@pytest.mark.parametrize("name", ["1F1B", "interleaved"])
@pytest.mark.parametrize("stages", [2, 4])
def test_between_stages_a_rank_sends_what_the_pipeline_counts(name, stages):
    """The rank that sends most: one between two others, or one of two."""
    setup = megatron.MegatronSetup("llama-3.1-70b", pipeline=stages, micro_batches=8, sequence=4096)
    schedule, boundary = schedule_of(name, stages, 8), 2 * 4096 * 8192
    counted = max(traffic(schedule, rank, boundary).sent_bytes for rank in range(stages))
    assert mesh_answer(setup, schedule=name).sent["PP"] == counted


def test_tensors_over_the_network_are_told():
    inside, across = (mesh_answer(SETUP, node=node) for node in (4, 2))
    assert "inside a machine" in inside.sentence
    assert "TP 4 leaves the machine of 2 cards: its sums travel at 100 GB/s" in across.sentence
    assert across.seconds["tensor-parallel links"] == pytest.approx(4.5 * inside.seconds["tensor-parallel links"])


MIXTURE = {"pipeline": 4, "data_parallel": 8, "micro_batches": 32, "sequence": 4096}


def test_experts_are_divided_and_their_tokens_travel():
    whole, divided = (
        mesh_answer(megatron.MegatronSetup("mixtral-8x7b", expert_parallel=ranks, **MIXTURE)) for ranks in (1, 8)
    )
    assert divided.parts.total < whole.parts.total
    # 8 layers, 2 experts for each of 32 x 4,096 tokens of 4,096 BF16 values, there and back, forward and backward, 7/8
    assert divided.sent["EP"] == 4 * 8 * 2 * 32 * 4096 * 4096 * 2 * 7 // 8
    assert "EP" not in whole.sent
    assert divided.seconds["all-to-alls of experts"] > 0


def test_a_dense_model_leaves_the_experts_control_alone():
    assert mesh(expert_parallel=8).answer(model="llama-2-7b").parts == mesh().answer(model="llama-2-7b").parts
    with pytest.raises(WorkbookError, match="which has none"):
        mesh_answer(megatron.MegatronSetup("llama-2-7b", data_parallel=8, expert_parallel=8))


def test_few_micro_batches_are_told():
    few = mesh_answer(megatron.MegatronSetup("llama-3.1-70b", pipeline=4, micro_batches=4))
    assert "With 4 micro-batches the pipeline is idle for 43 % of its time" in few.sentence
    assert "few for 4 stages" in few.sentence


def test_the_schedule_is_drawn_where_there_is_a_pipeline():
    assert len(mesh().answer().cards) == 1
    drawn = mesh(pipeline=16, data_parallel=1).answer(model="llama-2-7b")
    assert drawn.cards[1].title == "The schedule, drawn with 8 stages and 16 of 32 micro-batches"


BAD = [
    ({"schedule": "PipeDream"}, {}, "unknown schedule"),
    ({"schedule": "ZB-H1"}, {"micro_batches": 4}, "as many micro-batches as stages"),
    ({"schedule": "interleaved"}, {"micro_batches": 12}, "a multiple of 8"),
    ({"node": 0}, {}, "cards in a machine"),
    ({"network_gbit": -1}, {}, "network"),
    ({"gpu": "h1000"}, {}, "unknown device"),
]


@pytest.mark.parametrize(("options", "changes", "told"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_explained(options, changes, told):
    values = {"pipeline": 8, "micro_batches": 64, **changes}
    with pytest.raises(WorkbookError, match=told):
        mesh_answer(megatron.MegatronSetup("llama-3.1-70b", **values), **options)
