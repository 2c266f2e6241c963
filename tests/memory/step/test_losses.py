"""Losses that are fused with the head: the closed form against the trace, real steps on a CPU, and hand arithmetic."""

import pytest
import torch

from helpers.catalog import Adapter, TrainSetup, model
from helpers.catalog.losses import liger_chunk
from helpers.catalog.split import Split
from helpers.memory import budget
from helpers.memory.breakdown import Part, Point
from helpers.memory.measure.losses import LigerWithoutKernel
from tests.memory.step.agreement import AUTOCAST, PEFT_WARNS, agree, agree_by_phase, by_night, refused

WORDS = {**model("tiny-llama").config, "vocab_size": 5000}  # eleven chunks and a tail of 500 tokens
TIED = {**WORDS, "tie_word_embeddings": True}


def setup_of(config=WORDS, precision="bf16", loss="liger", **choices):
    usual = {"micro_batch": 2, "sequence": 250, "checkpointing": "full"}
    return TrainSetup(config, precision, **usual | choices, loss=loss)


CASES = [
    ({}, "a100"),
    ({"loss": "cce"}, "a100"),
    ({"config": TIED, **AUTOCAST}, "a100"),  # a copy of the weight that autocast caches, one it does not
    (AUTOCAST, "t4"),  # where no product of 16 bits adds to FP32
    ({"precision": "fp32", "micro_batches": 2}, "a100"),
    ({"config": TIED, "precision": "autocast-bf16-on-bf16", "loss": "cce", "micro_batches": 2}, "a100"),
    ({"adapter": Adapter(targets="all-linear"), **AUTOCAST}, "a100"),
    ({"loss": "trl", **AUTOCAST}, "a100"),
    ({"loss": "trl", "config": {**WORDS, "vocab_size": 40000}, **AUTOCAST}, "a100"),
    ({"loss": "trl"}, "t4"),
    ({"loss": "trl", "config": TIED, "precision": "autocast-bf16-on-bf16", "micro_batches": 2}, "a100"),
    ({"loss": "trl", "adapter": Adapter(base="nf4", prepared=False), **AUTOCAST}, "a100"),
    ({"adapter": Adapter(base="nf4", prepared=False), **AUTOCAST, "loss": "cce"}, "a100"),
    ({"loss": "trl", "scored": 100, "masked": True, **AUTOCAST}, "a100"),
]


@PEFT_WARNS
@pytest.mark.parametrize(("how", "gpu"), by_night(CASES, [CASES[at] for at in (0, 1, 2, 6, 7, 13)]))
def test_every_phase_is_the_trace_s(how, gpu):
    if "adapter" in how:
        pytest.importorskip("peft")
    setup = setup_of(optimizer="adamw-fused", **how)
    agree_by_phase(*agree(setup, gpu, peak={"rel": 0.0005, "abs": 40_000}), 0.001)


REAL = [{}, {"loss": "cce"}, {**AUTOCAST, "config": TIED}, {"loss": "trl"}, {"loss": "trl", **AUTOCAST}]


@pytest.mark.parametrize("how", REAL, ids=str)
def test_a_real_step_on_a_cpu(how):
    agree(setup_of(**how), real=True, peak=0.0005)


@pytest.mark.parametrize(
    ("tokens", "hidden", "vocab", "rows"),
    [(16_384, 4096, 32_000, 2048), (4096, 4096, 128_256, 128), (8192, 2048, 151_936, 128), (100, 4096, 2048, 128)],
)
def test_liger_s_chunk(tokens, hidden, vocab, rows):
    """The first is the example in Liger's own source."""
    assert liger_chunk(tokens, hidden, vocab) == rows


def test_what_a_fused_loss_spares_a_model_of_many_words():
    """Llama-3-8B, 16,384 tokens: three FP32 tensors of 128,256 words each, of which a fused loss has none."""
    long = {"config": "llama-3-8b", "micro_batch": 4, "sequence": 4096}
    full, liger, cut = (budget.train(setup_of(loss=loss, **long), "a100") for loss in ("full", "liger", "cce"))
    logits = 4 * 16_384 * 128_256
    assert full.at(Point.LOSS).parts[Part.LOGITS] == 3 * logits
    assert max(moment.parts.get(Part.LOGITS, 0) for moment in liger.moments) == 2 * 512 * 128_256  # one chunk in BF16
    assert not any(moment.parts.get(Part.LOGITS) for moment in cut.moments)
    of_weight, hidden, chunk = 2 * 128_256 * 4096, 2 * 16_384 * 4096, 2 * 512 * 128_256
    beside = liger.at(Point.END_OF_FORWARD).total - liger.at(Point.LOSS).total
    assert beside == pytest.approx(3 * of_weight + hidden + chunk, rel=0.001)  # a chunk's product, and that in FP32


def test_liger_s_stand_in_makes_gradients_of_what_is_trained_alone():
    hidden, weight = torch.ones(6, 4, requires_grad=True), torch.ones(8, 4)
    LigerWithoutKernel.apply(hidden, weight, torch.zeros(6, dtype=torch.int64)).backward()
    assert hidden.grad.shape == hidden.shape
    assert weight.grad is None


test_where_there_is_no_fused_loss = refused(
    (lambda: setup_of(loss="ligre"), "did you mean 'liger'"),
    (lambda: setup_of(loss="cce", precision="fp32"), "in 16 bits"),
    (lambda: setup_of(loss="cce", adapter=Adapter(base="nf4")), "in 16 bits"),
    (lambda: setup_of(split=Split(2, zero=2)), "over several ranks"),
    (lambda: setup_of(split=Split(pipeline=2)), "over several ranks"),
)
