"""What trainers make of a frozen base and of its adapters: against a published run, the trace, and real steps."""

from dataclasses import replace

import pytest

from helpers.catalog import Adapter, TrainSetup, WorkbookError
from helpers.memory import budget, trace
from helpers.memory.breakdown import Phase
from tests.memory.step.test_adapters import ALL, AUTOCAST, EAGER, FULL, GROUPED, LLAMA, QWEN, adapted

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


def phases(predicted):
    forward, *backward, optimizer = (moment.total for moment in predicted.moments)
    return dict(zip(Phase, (forward, max(backward), optimizer), strict=True))


def require_agreement(setup, gpu="a100", near=0.0005):
    """Every phase's peak within 0.05 %, and what is kept."""
    predicted, traced = budget.train(setup, gpu), trace.train(setup, gpu)
    assert phases(predicted) == {phase: pytest.approx(traced.measured.at(phase).total, rel=near) for phase in Phase}
    assert predicted.saved_bytes == pytest.approx(traced.measured.saved_bytes, abs=60_000)
    for part in ("parameters", "optimizer"):
        assert predicted.parts[part] == pytest.approx(traced.parts[part], abs=6_000)


# fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv (2024-12): Mistral-7B on an A100 80 GB, its own QLoRA that
# casts nothing to FP32, rank 16, packed to 4,096 tokens, full checkpointing; peak allocated, in bytes.
MISTRAL = [(4, 16_373_838_336), (8, 28_412_178_944)]


@pytest.mark.parametrize(("micro_batch", "measured"), MISTRAL)
def test_a_base_without_the_upcast_is_the_published_run(micro_batch, measured):
    """Transformers of 2024 copied the FP32 logits to shift them, with the 16-bit ones and the head's input alive."""
    adapter = Adapter("lora", 16, QKVO, "nf4-dq", prepared=False)
    setup = TrainSetup("mistral-7b", "autocast-bf16", "adamw-fused", micro_batch, 4096, "full", adapter=adapter)
    held_then = setup.tokens * 2 * (setup.model.vocab + setup.model.hidden)
    assert budget.train(setup, "a100-80gb").peak_bytes + held_then == pytest.approx(measured, rel=0.001)
    prepared = replace(setup, adapter=adapter.trained_by("peft"))
    assert budget.train(prepared, "a100-80gb").peak_bytes > measured * 1.15


IN_16_BITS = [
    (LLAMA, {"targets": ALL, **FULL}),
    (GROUPED, {"targets": ALL, **AUTOCAST}),
    (QWEN, {"base": "nf4-dq", "targets": ALL, "prepared": False, **AUTOCAST}),
    (LLAMA, {"base": "nf4", "targets": ALL, "prepared": False, **FULL}),
    (QWEN, {"base": "nf4", "targets": ALL}),
    (LLAMA, {"kind": "dora", "targets": ALL, **AUTOCAST}),
    (QWEN, {"kind": "dora", "base": "nf4-dq", "prepared": False, **EAGER}),
]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
@pytest.mark.parametrize(
    ("config", "how"),
    [pytest.param(*case, marks=[] if at in (1, 3) else pytest.mark.all) for at, case in enumerate(IN_16_BITS)],
)
def test_adapters_in_16_bits(config, how):
    pytest.importorskip("peft")
    setup = adapted(config, **how)
    require_agreement(replace(setup, adapter=replace(setup.adapter, adapter_dtype="bf16")))


DROPPED = [
    (LLAMA, {"targets": ALL}),
    (LLAMA, {"targets": ALL, **FULL}),
    (QWEN, {"base": "nf4", "targets": ALL}),
    (GROUPED, {"base": "nf4-dq", "targets": ALL, "prepared": False, **AUTOCAST}),
]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
@pytest.mark.parametrize(
    ("config", "how"),
    [pytest.param(*case, marks=[] if at in (0, 3) else pytest.mark.all) for at, case in enumerate(DROPPED)],
)
def test_dropout(config, how):
    pytest.importorskip("peft")
    setup = adapted(config, **how)
    require_agreement(replace(setup, adapter=replace(setup.adapter, dropout=0.1)))


def test_dropout_keeps_a_byte_for_each_value_and_a_copy_for_each_adapter():
    """By hand, q and v of four layers in FP32: two tensors are kept in place of the norm's one, and masks of a byte.

    What the first layer reads wants no gradient, so there the masks are not kept.
    """
    plain = adapted(LLAMA, precision="fp32")
    dropped = replace(plain, adapter=replace(plain.adapter, dropout=0.05))
    values = plain.tokens * plain.model.hidden
    more = {
        gpu: budget.train(dropped, gpu).saved_bytes - budget.train(plain, gpu).saved_bytes for gpu in ("a100", None)
    }
    assert more == {"a100": 4 * 4 * values + 3 * 2 * values, None: 4 * 4 * values + 3 * 2 * 4 * values}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
@pytest.mark.parametrize("adapter_dtype", ["fp32", "bf16"])
def test_trainer_s_bf16_with_a_base_that_is_bf16_already(adapter_dtype):
    pytest.importorskip("peft")
    setup = adapted(LLAMA, targets=ALL, precision="autocast-bf16-on-bf16")
    setup = replace(setup, adapter=replace(setup.adapter, adapter_dtype=adapter_dtype))
    require_agreement(setup)
    half, full = (budget.train(replace(setup, precision=name)) for name in ("autocast-bf16-on-bf16", "autocast-bf16"))
    frozen = half.setup.model.parameters
    assert full.parts["parameters"] - half.parts["parameters"] == pytest.approx(2 * frozen, rel=0.001)


def test_trl_halves_what_is_trained_and_peft_doubles_what_is_not_quantized():
    """Of Llama-2-7B: 8,388,608 values of adapters; embedding, head and norms are 262,410,240 values."""
    peft, trl, unsloth = (
        budget.train(TrainSetup("llama-2-7b", adapter=Adapter(base="nf4").trained_by(name)), "a100")
        for name in ("peft", "trl", "unsloth")
    )
    assert peft.parts["parameters"] - unsloth.parts["parameters"] == 2 * 262_410_240
    assert unsloth.parts["parameters"] - trl.parts["parameters"] == 2 * 8_388_608
    assert unsloth.parts["optimizer"] == 2 * trl.parts["optimizer"] == 2 * 4 * 8_388_608


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Adapter(adapter_dtype="fp16"), "expected: fp32, bf16"),
        (lambda: Adapter(dtype="fp16", adapter_dtype="bf16"), "expected: fp32, fp16"),
        (lambda: Adapter(dropout=1), "from 0 to below 1"),
        (lambda: Adapter(dropout=True), "from 0 to below 1"),
        (lambda: budget.train(adapted(LLAMA, "dora", dropout=0.1)), "LoRA with dropout"),
        (lambda: Adapter().trained_by("tlr"), "did you mean 'trl'"),
    ],
)
def test_recipes_that_there_are_none_of(wrong, words):
    with pytest.raises(WorkbookError, match=words):
        wrong()
