"""The prediction against a real training step on this machine: the peak within half a percent, part by part."""

import pytest

from helpers.catalog import OPTIMIZERS, PRECISIONS, TrainSetup
from helpers.memory.breakdown import Phase, Point
from tests.memory.configs import SMALL
from tests.memory.step.agreement import agree


def cases(table):
    """Model, precision, optimizer, micro-batch, sequence, checkpointing, attention, and how far off the peak may be."""
    for words in (case.split() for case in table.split(";")):
        yield (*words[:3], int(words[3]), int(words[4]), *words[5:7], float(words[7]) if words[7:] else 0.005)


CASES = """
tiny-llama fp32 adamw-fused 2 128 none sdpa; tiny-llama fp32 adamw-fused 1 256 none eager;
tiny-llama bf16 adamw-fused 4 128 every:2 eager; tiny-llama autocast-bf16 adamw-foreach 2 256 full sdpa;
tiny-llama megatron-bf16 adamw-fused 2 128 none sdpa;
tiny-llama autocast-bf16-on-bf16 adamw-fused 2 128 none sdpa 0.001; tiny-llama fp32 adafactor 1 32 none sdpa 0.02;
tiny-llama bf16 adamw-8bit 2 128 none sdpa; tiny-gpt2 fp32 sgd-momentum 2 128 none sdpa;
tiny-gpt2 bf16 adamw-fused 1 256 full eager; tiny-qwen3 autocast-bf16 adamw-fused 2 128 none sdpa;
gemma2 autocast-bf16 adamw-fused 2 160 every:2 eager 0.01; mistral bf16 sgd-momentum 2 400 none eager;
qwen2 bf16 adamw-foreach 1 128 every:2 eager; opt autocast-bf16 sgd-momentum 1 32 full sdpa;
mistral torchao-fp8 sgd-momentum 1 160 full sdpa
"""
REST = """
tiny-llama fp32 adamw-fused 2 256 full sdpa; tiny-llama bf16 adamw-foreach 2 128 every:2 sdpa;
tiny-llama autocast-bf16 adamw-fused 2 128 none sdpa; tiny-llama megatron-bf16 adamw-foreach 1 32 full sdpa;
tiny-llama fp32 sgd 1 32 none sdpa; tiny-gpt2 bf16 adamw-foreach 2 128 every:2 sdpa;
tiny-gpt2 fp32 sgd 4 256 full eager; tiny-qwen3 bf16 adamw-fused 2 128 full sdpa;
tiny-qwen3 fp32 adamw-foreach 1 32 none sdpa; gemma2 fp32 adamw-fused 2 160 none eager;
opt autocast-bf16-on-bf16 adamw-foreach 2 128 full sdpa; gemma2 bf16 adamw-fused 2 160 full eager 0.01;
gemma2 bf16 adamw-foreach 1 32 none eager; mistral fp32 adamw-fused 2 160 none sdpa;
qwen2 fp32 adamw-fused 2 128 none sdpa; opt fp32 adamw-fused 2 128 none sdpa; opt bf16 adamw-fused 2 128 full sdpa;
qwen2 torchao-fp8 adamw-fused 2 32 none eager; tiny-qwen3 torchao-fp8 adamw-foreach 2 128 every:2 sdpa;
gemma2 torchao-fp8 sgd-momentum 2 160 full eager 0.01
"""  # of GPT-2 the mask that it keeps is B x T x T
# The same, of several micro-batches: with the peak at new gradients of an untied head or of tied tables, in the loss,
# in a layer; and what each optimizer and each recipe makes of it.
ACCUMULATED = """
tiny-llama fp32 adamw-fused 2 16 none sdpa; tiny-gpt2 bf16 adamw-fused 2 16 none sdpa;
tiny-gpt2 megatron-bf16 adamw-fused 2 16 none sdpa; qwen2 autocast-bf16 sgd 2 16 none sdpa;
opt autocast-bf16 adafactor 2 160 every:2 sdpa; gemma2 bf16 sgd-momentum 2 160 every:2 eager;
tiny-llama bf16 adamw-8bit 2 32 none sdpa; tiny-llama autocast-bf16 adamw-foreach 1 256 full sdpa
"""
EVERY_ACCUMULATED = [
    ("tiny-llama", precision, optimizer, 2, sequence, "none", "sdpa", 0.006)
    for precision in PRECISIONS
    for optimizer in dict.fromkeys(rule.name for rule in OPTIMIZERS.values() if not rule.ours)
    for sequence in (16, 256)
] + [
    (name, precision, "adamw-fused", 2, sequence, checkpointing, "eager" if name == "gemma2" else "sdpa", 0.006)
    for name in ("tiny-gpt2", "tiny-qwen3", "qwen2", "opt", "mistral", "gemma2")
    for precision in PRECISIONS
    # A CPU does not compute the powers of gelu_new in FP32, as CUDA's autocast does; torchao leaves Conv1D alone.
    if (name, precision) not in (("tiny-gpt2", "autocast-bf16"), ("tiny-gpt2", "torchao-fp8"))
    for sequence, checkpointing in ((16, "none"), (160, "every:2"))
]
SMALL_CHANGE_BYTES = 1536  # the rotary frequencies; Gemma-2's scale of the embedding
COUNTER_BYTES = 1024  # per tensor: the step counter, and the rounding of two states one by one


def peaks_of(case, **more):
    """(predicted, measured, distance allowed) of a case, whose peaks agree, and all of it at the optimizer's step."""
    name, *choices, allowed = case
    if "adamw-8bit" in choices:
        pytest.importorskip("bitsandbytes")
    if "torchao-fp8" in choices:
        pytest.importorskip("torchao")
    predicted, measured = agree(TrainSetup(SMALL[name], *choices, **more), real=True, peak=allowed)
    assert_same_at_optimizer_step(predicted, measured, tensors=len(list(predicted.setup.model.tensors())))
    return predicted, measured, allowed


def each(by_day, by_night):
    every = [*cases(by_day), *(pytest.param(case, marks=pytest.mark.all) for case in by_night)]
    return pytest.mark.parametrize("case", every, ids=lambda case: "-".join(map(str, case[:-1])))


@each(CASES, cases(REST))
def test_peak_and_parts(case):
    predicted, measured, allowed = peaks_of(case)
    if predicted.peak.at is not Point.EMBEDDING:  # there, other moments lie within a permille
        residual = dict(measured.parts - predicted.parts)
        # autograd hands a gradient over when it has all of it: until then the meter takes it for a temporary
        residual["gradients or workspace"] = residual.pop("gradients", 0) + residual.pop("workspace", 0)
        assert all(abs(size) <= allowed * measured.peak_bytes for size in residual.values()), residual


@each(ACCUMULATED, EVERY_ACCUMULATED)
def test_several_micro_batches_peak_where_predicted(case):
    predicted, measured, _ = peaks_of(case, micro_batches=3)
    assert predicted.saved_bytes == pytest.approx(measured.saved_bytes, rel=0.01)


def assert_same_at_optimizer_step(predicted, measured, tensors):
    """Parameters, gradients and states stand still there: equal but for step counters and small buffers."""
    expected, seen = predicted.at(Point.OPTIMIZER).parts, measured.at(Phase.OPTIMIZER).parts
    for part in ("parameters", "gradients", "optimizer"):
        more = seen.get(part, 0) - expected.get(part, 0)
        counters = COUNTER_BYTES * tensors if part == "optimizer" else 0
        assert 0 <= more <= SMALL_CHANGE_BYTES + counters, (part, more)
