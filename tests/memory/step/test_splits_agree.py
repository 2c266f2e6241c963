"""Steps that ranks share, in closed form beside the trace of one rank: one table, in the order of its lanes.

Each case has its peak in another place, which its name says; tensors alone are compared, for cuBLAS would hide them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from helpers.catalog.models import model
from helpers.catalog.split import Split
from helpers.catalog.train_setup import TrainSetup
from helpers.memory import budget, trace
from helpers.memory.step.ranks.pipelines import works_of
from helpers.memory.step.ranks.tensor_parts import rank_shape
from helpers.techniques.parallel.formula import parameter_bytes
from tests.memory.step.agreement import AUTOCAST, EAGER, FULL, agree, llama, refused
from tests.versions import divided_embedding

INTERLEAVED = TWO = "Interleaved1F1B"  # two stages on each rank
FOREACH = {"optimizer": "adamw"}


def step(name: str | dict, precision: str = "autocast-bf16", **changes: object) -> TrainSetup:
    return TrainSetup(name, precision, **{"optimizer": "adamw-fused", **changes})


def of(name: str, layers: int, precision: str = "autocast-bf16", **changes: object) -> TrainSetup:
    """A model of the catalogue with so many layers, which keep their width."""
    return step({**model(name).config, "num_hidden_layers": layers}, precision, **changes)


def pipe(ranks: int, rank: int, schedule: str = "1F1B") -> tuple[Split, int]:
    return Split(pipeline=ranks, schedule=schedule), rank


def shrunk(name: str, **changes: object) -> dict:
    """The config of a model of the catalogue, with few layers that are narrow."""
    small = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
    small |= {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "pad_token_id": 0}
    return {**model(name).config, **small, **changes}


DENSE, DEEP = llama(256, 512, 2, 8, 8192), llama(256, 768, 8, 4, 8192)
TIED = {"tie_word_embeddings": True}
LATENT = {"num_key_value_heads": 8, "moe_intermediate_size": 256, "n_routed_experts": 8, "n_group": 1}
LATENT |= {"topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 256}
LATENT |= {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 32}
LLAMA = {**model("llama-2-7b").config, "num_hidden_layers": 8, "vocab_size": 4096}
EIGHT = {**model("tiny-llama").config, "num_hidden_layers": 8}
EXPERTS, FEW, MIXED = (
    shrunk("mixtral-8x7b"),
    shrunk("mixtral-8x7b", num_local_experts=4),
    shrunk("deepseek-v3", **LATENT),
)
SINKS, SHORT = shrunk("gpt-oss-20b", num_local_experts=4, eos_token_id=2), of("llama-3.2-1b", 2, sequence=64)
TWICE = {"micro_batch": 2, "micro_batches": 2}

SMALL, FLOWING = step(DENSE, "bf16", sequence=64), step(DEEP, "bf16", sequence=1024, micro_batches=8)
BASE, HALVED = step("llama-3.2-1b"), step(LLAMA, sequence=1024)
RUNS = {
    # FSDP2
    "four experts, rows for eight": (step(FEW, "bf16", micro_batch=2, sequence=512, **FULL), Split(fsdp=8)),
    "experts run again, two layers whole": (
        step(EXPERTS, "bf16", sequence=256, checkpointing="nested:2", **TWICE),
        Split(fsdp=4),
    ),
    "gelu_new, accumulated": (step("tiny-gpt2", "fp32", sequence=16, **TWICE), Split(fsdp=4)),
    "a dense layer and experts": (step(MIXED, sequence=128, micro_batch=2, **FULL), Split(fsdp=4)),
    "untied, into shards in BF16": (step("tiny-llama", sequence=64), Split(fsdp=2, reduced="bf16")),
    # FSDP2 by tensor parallel
    "gathered logits, then the loss": (of("llama-3-8b", 2, sequence=2048, **FULL), Split(fsdp=2, tensor=2)),
    "a tied table's whole gradient": (SHORT, Split(fsdp=4, tensor=2)),
    "a tied table's whole gradient in BF16": (SHORT, Split(fsdp=4, tensor=2, reduced="bf16")),
    "an embedding's whole gradient": (of("llama-3-8b", 2, sequence=64), Split(fsdp=8, tensor=8)),
    "accumulated, tied": (of("llama-3.2-1b", 2, sequence=64, micro_batches=2), Split(fsdp=2, tensor=2)),
    "a layer, fp32": (of("llama-2-7b", 3, "fp32", sequence=1024, **FULL), Split(fsdp=4, tensor=2)),
    "the root in its shards": (of("llama-3-8b", 2, sequence=64), Split(fsdp=2, tensor=2)),
    "the root in its shards in BF16": (of("llama-3-8b", 2, sequence=64), Split(fsdp=2, tensor=2, reduced="bf16")),
    # pipelines
    "first": (FLOWING, *pipe(4, 0)),
    "second": (FLOWING, *pipe(4, 1)),
    "last": (FLOWING, *pipe(4, 3)),
    "as many micro-batches as stages": (replace(FLOWING, micro_batches=4), *pipe(4, 0)),
    "gpipe": (FLOWING, *pipe(4, 2, "GPipe")),
    "gpipe's losses": (FLOWING, *pipe(4, 3, "GPipe")),
    "autocast": (replace(FLOWING, **AUTOCAST), *pipe(4, 1)),
    "autocast, short": (replace(FLOWING, **AUTOCAST, sequence=64), *pipe(3, 1, "GPipe")),
    "experts, in stages": (step(FEW, micro_batch=2, sequence=128, micro_batches=4), *pipe(2, 0)),
    "sinks": (step(SINKS, "fp32", micro_batch=2, sequence=512, **EAGER, micro_batches=2), *pipe(2, 0)),
    "scaled embeddings, outputs that GPipe's sends hold": (
        step(shrunk("gemma-3-1b", num_key_value_heads=1), "bf16", micro_batch=2, sequence=256, **FULL, micro_batches=4),
        *pipe(2, 0, "GPipe"),
    ),
    "two stages, in the middle": (FLOWING, *pipe(4, 2, TWO)),
    "two stages, autocast's copies of both": (replace(FLOWING, **AUTOCAST, sequence=64), *pipe(2, 0, TWO)),
    "two stages, no gradients yet": (replace(FLOWING, precision="fp32", micro_batches=4), *pipe(4, 1, TWO)),
}
SLOW = {
    "FSDP2: a tied table's three gradients": (replace(BASE, sequence=64, **FULL), Split(fsdp=2)),
    "FSDP2: the loss": (BASE, Split(fsdp=4)),
    "FSDP2: the root's flat": (step("qwen3-0.6b", sequence=128, **FULL), Split(fsdp=8)),
    "FSDP2, in BF16: a tied table's": (replace(BASE, sequence=64, **FULL), Split(fsdp=2, reduced="bf16")),
    "FSDP2, in BF16: accumulated, tied": (replace(BASE, sequence=1024, micro_batches=2), Split(fsdp=2, reduced="bf16")),
    "every second product": (replace(BASE, checkpointing="selective:every-second"), Split(fsdp=4)),
    "inputs on the host": (replace(BASE, checkpointing="offload:inputs"), Split(fsdp=4)),
    "segments of four, all whole at once": (step(EIGHT, checkpointing="every:4"), Split(fsdp=64)),
    "segments in segments": (replace(HALVED, checkpointing="recursive"), Split(fsdp=16)),
    "one layer in a segment of four": (replace(HALVED, checkpointing="nested:4"), Split(fsdp=16)),
    "the root in half a model's shards": (step("llama-3-8b", sequence=1024, **FULL), Split(fsdp=2)),
    "inputs on the host, 7B": (step("llama-2-7b", checkpointing="offload:inputs"), Split(fsdp=64)),
    "the loss, 8B": (step("llama-3-8b", sequence=4096, **FULL), Split(fsdp=8, tensor=8)),
    "tensor: tied, 1B": (step("llama-3.2-1b", "bf16", sequence=32), Split(tensor=2)),
    "tensor: the loss, 7B": (TrainSetup("mistral-7b", "bf16", "sgd", 8, 2048, "full"), Split(tensor=8)),
    "7B in stages": (step("llama-2-7b", sequence=2048, micro_batches=8), *pipe(4, 0)),
    "autocast, last": (replace(FLOWING, **AUTOCAST), *pipe(4, 3)),
    "tied, in stages": (step({**DEEP, **TIED}, "bf16", sequence=128, micro_batches=8), *pipe(4, 0)),
    "two stages: first": (FLOWING, *pipe(2, 0, TWO)),
    "two stages: last": (FLOWING, *pipe(2, 1, TWO)),
    "two stages: tied": (step({**DEEP, **TIED}, "bf16", sequence=128, micro_batches=8), *pipe(2, 1, TWO)),
    "two stages: 8B": (step("llama-3-8b", "bf16", sequence=1024, **FULL, micro_batches=8), *pipe(4, 3, TWO)),
}
ALL = {
    "the root's flat, 8B": (step("llama-3-8b", sequence=128), Split(fsdp=8)),
    "the norm before an MLP": (step("llama-2-7b", sequence=1536, **FULL), Split(fsdp=64)),
    "the end of a layer": (step("llama-2-7b", "fp32", sequence=1024, **FULL), Split(fsdp=8)),
    "bf16": (step("qwen2.5-7b", "bf16", sequence=256), Split(fsdp=16)),
    "foreach": (step("llama-2-7b", sequence=512, **FOREACH, **FULL), Split(fsdp=4)),
    "accumulated": (step("llama-2-7b", sequence=1024, micro_batches=2), Split(fsdp=4)),
    "layernorm": (step("gpt2", sequence=512), Split(fsdp=4)),
    "segments of three, two left": (step("llama-2-7b", sequence=1024, checkpointing="every:3"), Split(fsdp=8)),
    "segments of one in those of four": (step("llama-2-7b", checkpointing="nested:4"), Split(fsdp=64)),
    "root of the layers": (step("llama-2-7b", "fp32", sequence=1024, checkpointing="sqrt-n"), Split(fsdp=16)),
    "segments, 7B": (step("llama-2-7b", checkpointing="every:8"), Split(fsdp=64, tensor=8)),
    "tensor: tied, accumulated": (step("llama-3.2-1b", "bf16", sequence=64, micro_batches=2), Split(tensor=4)),
    "tensor: autocast": (step("llama-3.2-1b", sequence=1024), Split(tensor=2)),
    "tensor: the optimizer": (step("llama-2-7b", "bf16", sequence=128, **FULL), Split(tensor=8)),
    "tensor: eager": (step("llama-2-7b", "bf16", **EAGER), Split(tensor=8)),
    "tensor: biases": (step("qwen2.5-7b", "bf16", sequence=512), Split(tensor=4)),
    "tensor: logits gathered in FP32": (step("llama-2-7b", "fp32", sequence=8192, **FULL), Split(tensor=8)),
    "recomputed, first": (replace(FLOWING, **FULL), *pipe(2, 0)),
    "recomputed, last": (replace(FLOWING, **FULL), *pipe(2, 1)),
    "segments in FP32": (replace(FLOWING, checkpointing="every:2", precision="fp32"), *pipe(2, 0)),
    "FP32": (replace(FLOWING, precision="fp32"), *pipe(3, 1)),
    "the optimizer": (replace(FLOWING, **FULL, sequence=64, **FOREACH), *pipe(3, 1)),
    "the embedding": (replace(FLOWING, **FULL, sequence=64), *pipe(3, 0)),
    "eager": (replace(FLOWING, **EAGER), *pipe(4, 1)),
    "eager, autocast": (replace(FLOWING, **EAGER, **AUTOCAST, sequence=256), *pipe(2, 0, "GPipe")),
    "gpipe, short": (replace(FLOWING, sequence=64), *pipe(3, 1, "GPipe")),
    "autocast, recomputed": (replace(FLOWING, **AUTOCAST, **FULL), *pipe(2, 0)),
    "two stages: recomputed": (replace(FLOWING, **FULL), *pipe(2, 0, TWO)),
    "two stages: segments": (replace(FLOWING, checkpointing="every:2"), *pipe(2, 1, TWO)),
    "two stages: the optimizer": (replace(FLOWING, **FULL, sequence=64, **FOREACH), *pipe(2, 0, TWO)),
    "two stages: the embedding": (replace(FLOWING, **FULL, sequence=64), *pipe(4, 0, TWO)),
}
PARTS = {  # small, so that the whole gradient of an embedding, or a tied table's three, are seen
    "an embedding's whole gradient": SMALL,
    "tied tables": step({**DENSE, **TIED}, "bf16", sequence=16),
    "tied, accumulated": step({**DENSE, **TIED}, "bf16", sequence=16, micro_batches=2),
    "accumulated, foreach": replace(SMALL, micro_batches=2, optimizer="adamw"),
    "the loss": replace(SMALL, sequence=1024, checkpointing="full"),
    "gathered logits": replace(SMALL, precision="fp32", sequence=2048, checkpointing="full"),
}


def marked(runs: dict[str, tuple], *marks: pytest.MarkDecorator) -> list:
    """The names, marked where an embedding that is not the head's is divided."""
    whole = {name: split.tensor == 1 or setup.model.tied for name, (setup, split, *_) in runs.items()}
    return [pytest.param(name, marks=(*marks, *(() if whole[name] else [divided_embedding]))) for name in runs]


@pytest.mark.parametrize("run", marked(RUNS) + marked(SLOW, pytest.mark.slow) + marked(ALL, pytest.mark.all))
def test_the_peak_of_a_rank_is_the_traces(run):
    setup, split, *rank = (RUNS | SLOW | ALL)[run]
    agree(replace(setup, split=split), "h100", of="tensor_bytes", rank=sum(rank))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("run", marked({name: (setup, Split(tensor=2)) for name, setup in PARTS.items()}))
def test_the_peak_of_a_part_is_the_traces_on_each_rank(run, rank):
    agree(replace(PARTS[run], split=Split(tensor=2)), "h100", of="tensor_bytes", peak=0.005, rank=rank)


def shared(setup: TrainSetup, **split: object) -> TrainSetup:
    return replace(setup, split=Split(**split))


def predict(setup: TrainSetup, card: str | None = None, **split: object) -> budget.TrainBudget:
    return budget.train(shared(setup, **split), card)


# --- what ranks hold -------------------------------------------------------------------------------------------------


MIXTURES = [TrainSetup(name, "bf16", micro_batches=8) for name in ("mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b")]


@pytest.mark.parametrize("schedule", ["1F1B", INTERLEAVED])
@pytest.mark.parametrize("setup", [FLOWING, *MIXTURES], ids=lambda setup: setup.model.name)
def test_the_stages_have_the_whole_model_together(setup, schedule):
    held = [budget.train(shared(setup, pipeline=4, schedule=schedule), rank=rank) for rank in range(4)]
    weights = sum(one.parts["parameters"] for one in held)
    assert weights == pytest.approx(2 * setup.model.parameters, rel=0.001)


def test_the_weights_of_a_rank_are_divided_by_both_dimensions():
    for setup, most, allowed in ((BASE, 64, 0.001), *((one, 8, 0.01) for one in MIXTURES)):  # of whole experts
        one, many = (predict(setup, fsdp=ranks).at("optimizer step").parts for ranks in (2, most))
        assert one["parameters"] / many["parameters"] == pytest.approx(most / 2, rel=allowed)
        assert one.total / many.total == pytest.approx(most / 2, rel=allowed)
    splits = ({"fsdp": ranks, "tensor": 8 // ranks} for ranks in (8, 4, 2))
    parts = [budget.train(shared(BASE, **split)).parts["parameters"] for split in splits]
    assert parts[1:] == pytest.approx(parts[:1] * 2, rel=0.001)


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3.2-1b", "qwen2.5-7b"])
def test_a_rank_has_the_weights_that_the_split_by_hand_has(name):
    assert 2 * rank_shape(model(name), 4).parameters == parameter_bytes(model(name), 4, 0, 2)


def test_the_peak_can_be_at_the_end_of_the_segment_before_the_last():
    """There the last segment's gradients are on their way: 7.6 MiB more than at the first segment's end."""
    setup, split = ALL["segments, 7B"]
    assert budget.train(replace(setup, split=split)).peak.layer == 23


@pytest.mark.parametrize(("ranks", "rank", "micro_batches"), [(2, 0, 4), (2, 1, 4), (4, 0, 8), (4, 3, 12), (4, 2, 4)])
def test_the_order_is_pytorchs(ranks, rank, micro_batches):
    from torch.distributed.pipelining import schedules

    class OneRank(schedules.ScheduleInterleaved1F1B):
        def __init__(self):
            self.n_local_stages, self.pp_group_size, self._n_microbatches = 2, ranks, micro_batches
            self.microbatches_per_round = micro_batches // max(1, micro_batches // ranks)

    wanted = [action for action in OneRank()._calculate_single_rank_operations(rank) if action]
    told = [f"{one.computation_type.name.replace('FULL_', '')[0]}{one.stage_index // ranks}" for one in wanted]
    assert works_of(ranks, rank, micro_batches) == told


# --- what is not predicted -------------------------------------------------------------------------------------------

GROUPED = TrainSetup("llama-3-8b", "fp32", sequence=1024, checkpointing="every:6")  # whose heads no fused kernel takes
GEMMA = TrainSetup("gemma-2-9b", "bf16", attention="eager", micro_batches=4)
FUSED = replace(BASE, loss="liger")
test_what_is_not_predicted_says_so = refused(
    (lambda: predict(replace(BASE, precision="megatron-bf16"), fsdp=8), "megatron-bf16 under FSDP2"),
    (lambda: predict(replace(BASE, checkpointing="offload"), fsdp=8), "no closed form"),
    (lambda: predict(BASE, data=2, fsdp=8), "2 replicas in a run on DDP 2 × FSDP 8"),
    (lambda: predict(BASE, fsdp=8, reshard=False), "weights that stay gathered"),
    (lambda: predict(BASE, fsdp=8, pipeline=2), "a pipeline in a run on FSDP 8 × PP 2"),
    (lambda: predict(FUSED, fsdp=8), "over several ranks"),
    (lambda: predict(GROUPED, "h100", fsdp=16), "falls back to the plain formula"),
    (lambda: Split(fsdp=8, reduced="fp8"), "fp8"),
    (lambda: Split(fsdp=8, zero=3), "one of them"),
    (lambda: Split(fsdp=0.5), "fsdp is 0.5"),
    (lambda: Split(tensor=0), "tensor is 0"),
    (lambda: trace.train(shared(replace(BASE, precision="fp32"), fsdp=2, reduced="bf16")), "reduced in bf16 from fp32"),
    (lambda: predict(TrainSetup("gpt2", sequence=64), fsdp=8, tensor=2), "no closed form"),
    (lambda: predict(replace(BASE, precision="megatron-bf16"), tensor=2), "megatron-bf16 under tensor"),
    (lambda: predict(BASE, tensor=16), "8 KV heads over 16"),
    (lambda: predict(TrainSetup("phi-4", "bf16", sequence=64), tensor=2), "no closed form"),
    *(
        (partial(predict, one, tensor=8), f"workbook trace train --model {one.model.name} --tensor-parallel 8")
        for one in MIXTURES
    ),
    (lambda: predict(replace(GROUPED, checkpointing="none"), "h100", tensor=4), "falls back"),
    (lambda: predict(FLOWING, pipeline=4, schedule="InterleavedZeroBubble"), "closed form"),
    (lambda: predict(FLOWING, pipeline=9), "stages is 9"),
    (lambda: predict(replace(FLOWING, micro_batches=2), pipeline=4), "2 micro-batches in 4 stages"),
    (lambda: predict(replace(FLOWING, checkpointing="selective"), pipeline=4), "no closed form"),
    (lambda: predict(replace(FLOWING, precision="megatron-bf16"), pipeline=4), "megatron-bf16 in a pipeline"),
    (lambda: predict(TrainSetup("gpt2", "bf16", sequence=64, micro_batches=4), pipeline=4), "no closed form"),
    (lambda: predict(GEMMA, pipeline=4), "no closed form"),
    (lambda: predict(FLOWING, pipeline=3, schedule=INTERLEAVED), "8 micro-batches in 3 ranks"),
    (lambda: predict(replace(FLOWING, micro_batches=10), pipeline=5, schedule=INTERLEAVED), "stages is 10"),
    (lambda: budget.train(shared(FLOWING, pipeline=4), rank=4), "rank is 4"),
    (lambda: trace.train(shared(FLOWING, pipeline=4), rank=4), "rank is 4"),
    (lambda: predict(replace(FLOWING, checkpointing="selective"), pipeline=4, schedule=INTERLEAVED), "no closed form"),
)
