"""Two stages of a pipeline on a rank, in closed form: the schedule's order, and the peak beside the trace's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.setup import TrainSetup
from helpers.memory import budget
from helpers.memory.step.ranks.pipelines import works_of
from tests.memory.step.test_stages import CONFIG, SETUP, off

SCHEDULE = "Interleaved1F1B"
# By what decides: the first of two ranks, the loss on the last, a rank in the middle, no gradients yet
RUNS = {
    "first": (SETUP, 2, 0),
    "last": (SETUP, 2, 1),
    "middle": (SETUP, 4, 2),
    "autocast, the copies of both stages": (replace(SETUP, precision="autocast-bf16", sequence=64), 2, 0),
    "as many micro-batches as ranks, FP32": (replace(SETUP, precision="fp32", micro_batches=4), 4, 1),
}
REST = {
    "first of four": (SETUP, 4, 0),
    "last of four": (SETUP, 4, 3),
    "recomputed": (replace(SETUP, checkpointing="full"), 2, 0),
    "segments": (replace(SETUP, checkpointing="every:2"), 2, 1),
    "the optimizer": (replace(SETUP, checkpointing="full", sequence=64, optimizer="adamw"), 2, 0),
    "the embedding": (replace(SETUP, checkpointing="full", sequence=64), 4, 0),
    "tied": (replace(SETUP, model={**CONFIG, "tie_word_embeddings": True}, sequence=128), 2, 1),
    "8B": (TrainSetup("llama-3-8b", "bf16", "adamw-fused", 1, 1024, "full", micro_batches=8), 4, 3),
}


@pytest.mark.parametrize("run", RUNS)
def test_the_peak_of_a_rank_is_the_traces(run):
    setup, ranks, rank = RUNS[run]
    assert abs(off(setup, ranks, rank, SCHEDULE)) < 0.0003


@pytest.mark.slow
@pytest.mark.parametrize("run", REST)
def test_the_peak_is_within_a_tenth_of_a_percent_of_the_traces(run):
    setup, ranks, rank = REST[run]
    assert abs(off(setup, ranks, rank, SCHEDULE)) < 0.001


@pytest.mark.parametrize(("ranks", "rank", "micro_batches"), [(2, 0, 4), (2, 1, 4), (4, 0, 8), (4, 3, 12), (4, 2, 4)])
def test_the_order_is_pytorchs(ranks, rank, micro_batches):
    from torch.distributed.pipelining import schedules

    class OneRank(schedules.ScheduleInterleaved1F1B):
        def __init__(self):
            self.n_local_stages, self.pp_group_size, self._n_microbatches = 2, ranks, micro_batches
            self.microbatches_per_round = micro_batches // max(1, micro_batches // ranks)

    wanted = [action for action in OneRank()._calculate_single_rank_operations(rank) if action]
    told = [
        f"{'F' if action.computation_type.name == 'FORWARD' else 'B'}{action.stage_index // ranks}" for action in wanted
    ]
    assert [str(work) for work in works_of(ranks, rank, micro_batches)] == told


def test_ranks_have_the_whole_model_together():
    held = [budget.pipeline(SETUP, 4, rank, SCHEDULE).parts["parameters"] for rank in range(4)]
    assert sum(held) == pytest.approx(2 * SETUP.model.parameters, rel=0.001)


@pytest.mark.parametrize(
    ("setup", "ranks", "rank", "words"),
    [
        (SETUP, 3, 0, "8 micro-batches in 3 ranks"),
        (replace(SETUP, micro_batches=10), 5, 0, "stages is 10"),
        (SETUP, 4, 4, "stage is 4"),
        (replace(SETUP, checkpointing="selective"), 4, 0, "no closed form"),
    ],
)
def test_what_is_not_predicted_says_so(setup, ranks, rank, words):
    with pytest.raises(WorkbookError) as told:
        budget.pipeline(setup, ranks, rank, SCHEDULE)
    assert words in str(told.value)
