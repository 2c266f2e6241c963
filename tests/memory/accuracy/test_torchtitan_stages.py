"""torchtitan's pipelines as one rank: how layers are cut, what a rank keeps for micro-batches, and small runs."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from helpers.memory import trace
from helpers.memory.accuracy import torchtitan, torchtitan_stages
from helpers.memory.breakdown import Part

SMALL = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1024}
CONFIG = {**SMALL, "intermediate_size": 1536, "num_hidden_layers": 8}
TOKENS, RANKS, SHARDS, PARTS = 256, 4, 2, 2
DIVIDED, NORMS = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1536, 2 * 512  # values of a layer
TURNS = 8 * TOKENS * 32  # the buffer of rotary embeddings, which every stage has whole


@cache
def traced(rank: int, batch: int = 4, schedule: str = "1F1B") -> trace.Trace:
    with trace.fake(gpu="h100", ranks=RANKS * SHARDS * PARTS, rank=rank * SHARDS * PARTS):
        mesh = init_device_mesh("cuda", (RANKS, SHARDS, PARTS), mesh_dim_names=("stage", "shard", "part"))
        with torch.device("meta"):
            stages = torchtitan_stages.stages_of(CONFIG, TOKENS, rank, RANKS, schedule)
        mesh["shard", "part"]._flatten()
        for stage in stages.values():
            torchtitan.in_parts(stage, mesh["part"])
            torchtitan.sharded(stage, mesh["shard"], "full", reshard=False)
            stage.to_empty(device="cpu")
        optimizers = [torchtitan.adamw(stage) for stage in stages.values()]
        between = (batch // RANKS, TOKENS // PARTS, 512)
        run = torchtitan_stages.schedule_of(stages, mesh["stage"], schedule, TOKENS, between)
        step = torchtitan_stages.step_of(run, stages, optimizers, batch, TOKENS)
        return trace.record(step, nn.ModuleList(stages.values()), optimizers, warmup=1)


def highest(shape: tuple[int, ...], found: trace.Trace) -> int:
    """The most tensors of this shape that the backward's layers wait for at once."""
    live = most = 0
    for event in found.events[found.first :]:
        if event.block.shape == shape:
            live += event.sign
            most = max(most, live)
    return most


def test_the_first_and_the_last_stage_have_no_layer_more_than_any():
    """126 layers on eight ranks are 15 in the first and the last and 16 in the others; on sixteen stages 7 and 8."""
    for stages, ends, middle in ((8, 15, 16), (16, 7, 8)):
        starts = torchtitan_stages.first_layers(126, stages)
        sizes = [stop - start for start, stop in pairwise(starts)]
        assert sizes == [ends, *[middle] * (stages - 2), ends]


def test_a_rank_has_its_share_of_its_stage_alone():
    first, middle, last = (traced(rank).parts[Part.PARAMETERS] for rank in (0, 1, 3))
    layer, table = DIVIDED // PARTS + NORMS, 1024 * 512 // PARTS
    assert middle == 4 * 2 * layer // SHARDS + TURNS
    assert first - middle == 4 * table // SHARDS
    assert last - first == 4 * 512 // SHARDS  # the final norm


def test_the_first_rank_keeps_more_micro_batches_than_the_next():
    """Its two layers keep their inputs once for each of four micro-batches, and the next rank's for each of three."""
    one = (1, TOKENS // PARTS, 512)
    assert highest(one, traced(0)) > highest(one, traced(1))


def test_interleaved_a_rank_has_two_stages():
    interleaved, alone = traced(0, schedule="Interleaved1F1B"), traced(0)
    assert interleaved.parts[Part.PARAMETERS] - alone.parts[Part.PARAMETERS] == TURNS


def test_weights_stay_whole_between_micro_batches():
    """A step gathers a layer once; resharded, it would gather it again for each of four micro-batches."""
    values = DIVIDED // PARTS + NORMS
    found = traced(1)
    made = [event.block for event in found.events[found.first :] if event.sign > 0]
    assert sum(block.shape == (values,) and block.size_bytes == 2 * values for block in made) == 2
