"""A run split over GPUs: each rank's trace beside real ranks, and what is no split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.split import Split
from helpers.catalog.train_setup import TrainSetup
from helpers.memory import trace
from helpers.memory.breakdown import Part
from helpers.techniques.parallel.formula import parameter_bytes
from tests.memory.trace import rank_cases
from tests.versions import divided_embedding

SETUP = TrainSetup(rank_cases.CONFIG, precision="fp32", sequence=64, micro_batch=2)
CUTS = {
    "fsdp": (Split(fsdp=2), {}),
    "fsdp, recomputed": (Split(fsdp=2, reshard=False), {"checkpointing": "full", "micro_batches": 2}),
    "fsdp, mixed": (Split(fsdp=2), {"precision": "autocast-bf16"}),
    "tensor": (Split(tensor=2), {}),
    "tensor, recomputed": (Split(tensor=2), {"checkpointing": "every:2", "precision": "bf16"}),
    "gpipe": (Split(pipeline=2, schedule="GPipe"), {"micro_batches": 4}),
    "1f1b": (Split(pipeline=2), {"micro_batches": 4}),
    "1f1b, recomputed": (Split(pipeline=2), {"micro_batches": 4, "checkpointing": "full"}),
    "interleaved": (Split(pipeline=2, schedule="Interleaved1F1B"), {"micro_batches": 4}),
    "zero bubble": (Split(pipeline=2, schedule="InterleavedZeroBubble"), {"micro_batches": 4}),
}
FAST = ("fsdp, mixed", "tensor", "1f1b")
TWICE = {
    "tensor and fsdp": (Split(fsdp=2, tensor=2), {}),
    "pipeline and fsdp": (Split(fsdp=2, pipeline=2), {"micro_batches": 2}),
    "pipeline and tensor": (Split(tensor=2, pipeline=2), {"micro_batches": 2}),
    "four stages": (Split(pipeline=4), {"micro_batches": 8}),
}


@pytest.mark.parametrize("cut", [cut if cut in FAST else pytest.param(cut, marks=pytest.mark.slow) for cut in CUTS])
def test_each_rank_has_the_peak_of_a_real_one(ranks2, cut):
    _beside_real_ranks(ranks2, *CUTS[cut])


@pytest.mark.slow
@pytest.mark.parametrize("cut", TWICE)
def test_each_rank_of_four_has_the_peak_of_a_real_one(ranks4, cut):
    _beside_real_ranks(ranks4, *TWICE[cut])


def _beside_real_ranks(ranks, split: Split, changes: dict) -> None:
    """To the byte; the least of three runs, for on a busy machine gloo's thread may let go of a tensor late."""
    setup = replace(SETUP, split=split, **changes)
    traced = [trace.train(setup, on="cpu", rank=rank).peak_bytes for rank in range(split.ranks)]
    runs = (ranks.run(rank_cases.peak_of_split, setup) for _ in range(3))
    least = next(runs)
    while least != traced and (again := next(runs, None)):
        least = list(map(min, least, again))
    assert least == traced


def shared(split: Split, **changes) -> TrainSetup:
    return replace(SETUP, split=split, **changes)


WRONG = {
    "ranks of FSDP": (lambda: Split(fsdp=0), "fsdp is 0"),
    "a rank too many": (lambda: trace.train(shared(Split(fsdp=2, pipeline=2), micro_batches=2), rank=4), "0 to 3"),
    "a schedule nobody has": (lambda: Split(pipeline=2, schedule="2F2B"), "1F1B"),
    "KV heads": (lambda: trace.train(shared(Split(tensor=4))), "2 KV heads over 4"),
    "stages": (lambda: trace.train(shared(Split(pipeline=6))), "at most its 5 layers"),
    "micro-batches": (lambda: trace.train(shared(Split(pipeline=2))), "1 micro-batches in a pipeline of 2"),
    "ZeRO beside it": (lambda: Split(fsdp=2, data=2, zero=3), "one of them"),
    "replicas beside it": (lambda: trace.train(shared(Split(fsdp=2, data=2))), "2 replicas"),
    "segments in segments of a stage": (
        lambda: trace.train(shared(Split(pipeline=2), checkpointing="nested:2", micro_batches=4)),
        "in a pipeline's stages",
    ),
    "GPT-2's stages": (
        lambda: trace.train(TrainSetup("gpt2", micro_batches=4, sequence=64, split=Split(pipeline=2))),
        "cuts gpt2",
    ),
    "GPT-2's parts": (lambda: trace.train(TrainSetup("gpt2", sequence=64, split=Split(tensor=2))), "no plan"),
}


def test_segments_in_segments_keep_less_than_segments():
    """FSDP2 gathers a layer when it is called, and so they call them."""
    sharded = {
        policy: trace.train(shared(Split(fsdp=2), checkpointing=policy)).measured.saved_bytes
        for policy in ("none", "full", "nested:2")
    }
    assert sharded["nested:2"] < sharded["full"] < sharded["none"]


@pytest.mark.parametrize("case", WRONG)
def test_a_split_that_cannot_be_says_what_can(case):
    run, words = WRONG[case]
    with pytest.raises(WorkbookError, match=words):
        run()


def test_ranks_count_as_torchruns_do():
    assert [Split(fsdp=2, tensor=2, pipeline=2).stage_of(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert str(Split(fsdp=64, tensor=8)) == "FSDP 64 × TP 8"


def parameters(setup: TrainSetup, split: Split, rank: int = 0) -> int:
    return trace.train(replace(setup, split=split), on="cpu", rank=rank).parts[Part.PARAMETERS]


@pytest.mark.parametrize("tied", [pytest.param(False, marks=divided_embedding), True])
def test_a_tensor_parallel_rank_holds_what_the_formula_says(tied):
    """A tied table is one, in parts as well: PyTorch's parallelize_module makes two of it."""
    setup = replace(SETUP, model={**rank_cases.CONFIG, "tie_word_embeddings": tied})
    assert parameters(setup, Split(tensor=2)) == pytest.approx(parameter_bytes(setup.model, 2), rel=0.01)


def test_stages_hold_the_whole_model_together_and_each_its_own():
    setup = replace(SETUP, micro_batches=2)
    first, last = (parameters(setup, Split(pipeline=2), rank) for rank in range(2))
    table, layer = 4 * setup.model.vocab * setup.model.hidden, 4 * setup.model.layers[0].parameters
    assert first == pytest.approx(table + 2 * layer, rel=0.01)
    assert last == pytest.approx(table + 3 * layer, rel=0.01)


def test_fsdp_gathers_a_layer_and_not_the_model():
    """Beside the shards a forward of one token has the root's weights, and of the layers two at most."""
    setup = replace(SETUP, micro_batch=1, sequence=1)
    kept = parameters(setup, Split(fsdp=4))
    peak = trace.train(replace(setup, split=Split(fsdp=4)), on="cpu").measured.at("forward").total
    layers = 4 * sum(layer.parameters for layer in setup.model.layers)
    root = 4 * setup.model.parameters - layers
    assert kept * 3 + root < peak < kept * 3 + root + 0.7 * layers


def test_weights_that_stay_gathered_are_more_at_the_end_of_the_forward():
    setup = replace(SETUP, micro_batch=1, sequence=1)
    splits = (Split(fsdp=4, reshard=reshard) for reshard in (True, False))
    again, stays = (trace.train(replace(setup, split=split), on="cpu") for split in splits)
    assert (
        stays.measured.at("forward").total > again.measured.at("forward").total + 4 * setup.model.layers[0].parameters
    )


def test_a_last_stage_keeps_no_micro_batchs_logits():
    """Twice the micro-batches bring more buffers of hidden states, and no more logits."""
    few, many = (
        trace.train(shared(Split(pipeline=2), micro_batches=count), on="cpu", rank=1).peak_bytes for count in (4, 8)
    )
    assert many - few < 4 * 4 * SETUP.tokens * SETUP.model.vocab
