"""Adapters of a frozen base in closed form: held against the trace, which runs peft's and bitsandbytes' own code.

With what trainers make of base and adapters: in 16 bits, with dropout, cast to FP32 or not.
"""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import Adapter, ServeSetup, TrainSetup, WorkbookError, model
from helpers.catalog.split import Split
from helpers.memory import budget, measure, trace
from helpers.memory.breakdown import GIB, Phase, Point
from helpers.memory.step import frozen
from tests.memory.configs import GEMMA2, QWEN2, variant

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft

FEW_WORDS = {"vocab_size": 64}  # so that the peaks lie in the layers, and not in the loss
LLAMA = {**model("tiny-llama").config, **FEW_WORDS}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
QWEN, GEMMA, QWEN3 = {**QWEN2, **FEW_WORDS}, {**GEMMA2, **FEW_WORDS}, variant("tiny-qwen3", **FEW_WORDS).config
QV, ALL = ("q_proj", "v_proj"), "all-linear"


OF_ADAPTER = ("prepared", "dropout", "adapter_dtype", "dtype")


def adapted(config, kind="lora", targets=QV, base=None, gpu=None, **choices):
    own = {name: choices.pop(name) for name in OF_ADAPTER if name in choices}
    adapter = Adapter(kind, 8, targets, base, **own)
    return TrainSetup(config, **{"precision": "bf16", "micro_batch": 2, "sequence": 128, **choices}, adapter=adapter)


AUTOCAST, FULL, EAGER = {"precision": "autocast-bf16"}, {"checkpointing": "full"}, {"attention": "eager"}
LORA = [
    (LLAMA, {}),
    (LLAMA, {"targets": ALL, **FULL}),  # the peak is in a recomputation
    (GROUPED, {"targets": ALL, "checkpointing": "every:3"}),
    (LLAMA, {"targets": ALL, "precision": "fp32"}),
    (LLAMA, {"targets": ALL, **AUTOCAST, **FULL}),
    (GROUPED, {"targets": ("o_proj", "up_proj"), **EAGER}),  # the peak is in the last layer's forward
    (QWEN, {"targets": ALL}),
    (QWEN3, {"targets": ALL, **FULL}),
    (GEMMA, {**EAGER}),
    (GEMMA, {"targets": ALL, **EAGER, **FULL}),
]
QLORA = [
    (LLAMA, {"base": "nf4"}),
    (LLAMA, {"base": "nf4-dq", "targets": ALL, **FULL}),
    (LLAMA, {"base": "nf4-dq", "targets": ALL, "prepared": False}),
    (GROUPED, {"base": "nf4-dq", "targets": ALL, **AUTOCAST}),
    (QWEN, {"base": "nf4-dq", "targets": ALL, **AUTOCAST, **FULL}),
    (GEMMA, {"base": "nf4", "targets": ALL, **AUTOCAST, **EAGER}),
]
DORA = [
    (LLAMA, {}),
    (GROUPED, {"targets": ALL, **FULL}),
    (LLAMA, {"targets": ALL, **AUTOCAST}),
    (QWEN, {"targets": ALL}),
    (LLAMA, {"base": "nf4"}),
    (QWEN, {"base": "nf4-dq", "targets": ALL, "prepared": False, **EAGER}),
]
BARE, ON_16_BITS = {"prepared": False}, {"precision": "autocast-bf16-on-bf16"}
IN_16_BITS = [
    (GROUPED, {"targets": ALL, **AUTOCAST}),
    (LLAMA, {"base": "nf4", "targets": ALL, **BARE, **FULL}),
    (LLAMA, {"targets": ALL, **FULL}),
    (QWEN, {"base": "nf4-dq", "targets": ALL, **BARE, **AUTOCAST}),
    (QWEN, {"base": "nf4", "targets": ALL}),
    (LLAMA, {"kind": "dora", "targets": ALL, **AUTOCAST}),
    (QWEN, {"kind": "dora", "base": "nf4-dq", **BARE, **EAGER}),
    (LLAMA, {"targets": ALL, **ON_16_BITS}),  # Trainer's bf16 with a base that is bf16 already
]
DROPPED = [
    (LLAMA, {"targets": ALL}),
    (GROUPED, {"base": "nf4-dq", "targets": ALL, **BARE, **AUTOCAST}),
    (LLAMA, {"targets": ALL, **FULL}),
    (QWEN, {"base": "nf4", "targets": ALL}),
]
FP16 = {"dtype": "fp16"}
FORMULA = [  # no fused kernel: a base that peft prepared has attention in FP32, which takes no groups; a T4 has no BF16
    (GROUPED, {"base": "nf4"}),
    (GROUPED, {"targets": ALL, **FP16, "gpu": "t4"}),
    (QWEN, {"base": "nf4-dq", "targets": ALL, **FULL}),
    (QWEN, {"base": "nf4-dq", "targets": ALL, "prepared": False, **FP16, **FULL, "gpu": "t4"}),
    (GROUPED, {"base": "nf4-dq", **AUTOCAST, **FULL, "gpu": "t4"}),
]
WHOLE_LAYERS = [
    (LLAMA, {"targets": ALL, "checkpointing": "first:2", **AUTOCAST}),
    (LLAMA, {"targets": ALL, "checkpointing": "recursive", **AUTOCAST}),
    (LLAMA, {"targets": ALL, "checkpointing": "sqrt-n"}),
]
CASES = [*LORA, *QLORA, *(({**config}, {"kind": "dora", **how}) for config, how in DORA)]
RECIPES = [*((config, {**how, "adapter_dtype": "bf16"}) for config, how in IN_16_BITS), (LLAMA, IN_16_BITS[-1][1])]
RECIPES += [(config, {**how, "dropout": 0.1}) for config, how in DROPPED]
QUICK = {0, 1, 5, 11, 13, 17, *(len(CASES) + at for at in (0, 1, 7, 8, 9, 10))}
RECIPES += FORMULA + WHOLE_LAYERS
QUICK |= {len(CASES + RECIPES) - at for at in (8, 7, 3, 2)}


@pytest.mark.parametrize(
    ("config", "how"),
    [pytest.param(*case, marks=[] if at in QUICK else pytest.mark.all) for at, case in enumerate(CASES + RECIPES)],
    ids=lambda value: value.get("model_type") or "-".join(map(str, value.values())),
)
def test_the_peak_of_every_phase_is_where_peft_has_it(config, how):
    setup = adapted(config, **how)
    near = 0.006 if setup.adapter.kind == "dora" and setup.precision == "autocast-bf16" else 0.002
    near = 0.0005 if how.get("adapter_dtype") or how.get("dropout") else near
    gpu = how.get("gpu", "a100")
    predicted, traced = budget.train(setup, gpu), trace.train(setup, gpu)
    forward, *backward, optimizer = (moment.total for moment in predicted.moments)
    found = dict(zip(Phase, (forward, max(backward), optimizer), strict=True))
    assert found == {phase: pytest.approx(traced.measured.at(phase).total, rel=near) for phase in Phase}
    assert predicted.library_bytes == traced.library_bytes
    assert predicted.saved_bytes == pytest.approx(traced.measured.saved_bytes, abs=60_000)
    for part in ("parameters", "optimizer"):
        assert predicted.parts[part] == pytest.approx(traced.parts[part], abs=6_000)


def of_7b(name="llama-2-7b", **how):
    targets = how.pop("targets", ALL)
    adapter = Adapter(how.pop("kind", "lora"), 16, targets, how.pop("base", None))
    return TrainSetup(name, **{"precision": "bf16", "sequence": 2048, **how}, adapter=adapter)


LARGE = [
    of_7b(),
    of_7b(base="nf4-dq"),
    of_7b(base="nf4-dq", checkpointing="full"),
    of_7b("llama-3-8b", base="nf4-dq", checkpointing="full", **AUTOCAST),
    of_7b("llama-3-8b", targets=QV, micro_batch=4, sequence=1024),
    of_7b("llama-3-8b", kind="dora", targets=QV, base="nf4-dq", checkpointing="full", **AUTOCAST),
    of_7b("llama-3.2-1b", kind="dora", sequence=1024),
    of_7b("qwen2.5-7b", base="nf4-dq", checkpointing="full", **AUTOCAST),
    of_7b("qwen3-8b", checkpointing="full"),
    of_7b("gemma-2-9b", targets=QV, sequence=1024, checkpointing="full", **EAGER),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "setup", [pytest.param(one, marks=[] if at == 2 else pytest.mark.all) for at, one in enumerate(LARGE)], ids=str
)
def test_the_large_ones_are_within_a_percent(setup):
    predicted, traced = budget.train(setup, "a100"), trace.train(setup, "a100")
    assert predicted.peak_bytes == pytest.approx(traced.peak_bytes, rel=0.001)


def test_what_the_chapter_says_of_a_7b():
    """1.2 % of the parameters are trained, and half of the bytes stay; only with checkpointing does a 24 GB card do."""
    plain, quantized, checkpointed = (budget.train(setup, "a100") for setup in LARGE[:3])
    trained = LARGE[0].adapter.parameters(LARGE[0].model)
    assert trained == 39_976_960
    found = [round(one.peak_bytes / GIB, 2) for one in (plain, quantized, checkpointed)]
    assert found == [30.5, 24.07, 6.32]
    assert plain.at(Point.OPTIMIZER).parts["gradients"] == 4 * trained


def test_a_prediction_takes_milliseconds():
    """A calculator redraws while a slider moves."""
    budget.train(LARGE[3], "a100")
    begin = time.process_time()
    for setup in LARGE:
        budget.train(setup, "a100")
    assert time.process_time() - begin < 0.05 * len(LARGE)


@pytest.mark.parametrize("base", ["nf4", "nf4-dq"])
def test_a_base_is_the_served_model_with_every_tensor_rounded_up(base):
    setup = adapted(LLAMA, base=base, prepared=False)
    rest = frozen.base_bytes(setup) - budget.weight_bytes(ServeSetup(LLAMA, weights=base))
    assert 0 < rest < 512 * (28 * (6 if base == "nf4-dq" else 3) + 16)


def test_of_micro_batches_all_gradients_stay():
    one, four = (budget.train(adapted(LLAMA, targets=ALL, micro_batches=n)) for n in (1, 4))
    gradients = one.at(Point.OPTIMIZER).parts["gradients"]
    assert four.at(Point.LOSS).parts["gradients"] == four.at(Point.OPTIMIZER).parts["gradients"] == gradients
    assert "gradients" not in one.at(Point.LOSS).parts


# fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv (2024-12): Mistral-7B on an A100 80 GB, its own QLoRA that
# casts nothing to FP32, rank 16, packed to 4,096 tokens, full checkpointing; peak allocated, in bytes.
MISTRAL = [(4, 16_373_838_336), (8, 28_412_178_944)]


@pytest.mark.parametrize(("micro_batch", "measured"), MISTRAL)
def test_a_base_without_the_upcast_is_the_published_run(micro_batch, measured):
    """Transformers of 2024 copied the FP32 logits to shift them, with the 16-bit ones and the head's input alive."""
    qkvo = ("q_proj", "k_proj", "v_proj", "o_proj")
    adapter = Adapter("lora", 16, qkvo, "nf4-dq", prepared=False)
    setup = TrainSetup("mistral-7b", "autocast-bf16", "adamw-fused", micro_batch, 4096, "full", adapter=adapter)
    held_then = setup.tokens * 2 * (setup.model.vocab + setup.model.hidden)
    assert budget.train(setup, "a100-80gb").peak_bytes + held_then == pytest.approx(measured, rel=0.001)
    prepared = replace(setup, adapter=adapter.trained_by("peft"))
    assert budget.train(prepared, "a100-80gb").peak_bytes > measured * 1.15


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


def test_a_base_in_bf16_under_autocast_is_half_of_one_in_fp32():
    half, full = (budget.train(adapted(LLAMA, targets=ALL, **how)) for how in (ON_16_BITS, AUTOCAST))
    frozen_values = half.setup.model.parameters
    assert full.parts["parameters"] - half.parts["parameters"] == pytest.approx(2 * frozen_values, rel=0.001)


def test_trl_halves_what_is_trained_and_peft_doubles_what_is_not_quantized():
    """Of Llama-2-7B: 8,388,608 values of adapters; embedding, head and norms are 262,410,240 values."""
    peft, trl, unsloth = (
        budget.train(TrainSetup("llama-2-7b", adapter=Adapter(base="nf4").trained_by(name)), "a100")
        for name in ("peft", "trl", "unsloth")
    )
    assert peft.parts["parameters"] - unsloth.parts["parameters"] == 2 * 262_410_240
    assert unsloth.parts["parameters"] - trl.parts["parameters"] == 2 * 8_388_608
    assert unsloth.parts["optimizer"] == 2 * trl.parts["optimizer"] == 2 * 4 * 8_388_608


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([LLAMA, QWEN, QWEN3]),
    st.sampled_from(["none", "full", "every:2", "first:1", "recursive"]),
    st.sampled_from([QV, ALL, ("down_proj",)]),
    st.sampled_from([None, "nf4-dq"]),
    st.integers(65, 300),
)
def test_more_of_anything_takes_more(config, checkpointing, targets, base, sequence):
    setup = adapted(config, targets=targets, base=base, checkpointing=checkpointing, sequence=sequence, **AUTOCAST)
    peak = budget.train(setup).peak_bytes
    for more in ({"sequence": sequence + 16}, {"micro_batch": 3}, {"optimizer": "adamw-foreach"}):
        changed = {"optimizer": "adamw-fused", "checkpointing": checkpointing, "sequence": sequence, **more}
        assert budget.train(
            adapted(config, targets=targets, base=base, **{**AUTOCAST, **changed})
        ).peak_bytes >= peak - (512 * 512 if "optimizer" in more else 0)
    dora = adapted(config, "dora", targets, base, checkpointing=checkpointing, sequence=sequence, **AUTOCAST)
    assert budget.train(dora).peak_bytes > peak


REFUSED = [
    (lambda: Adapter("lokr"), "unknown kind of adapter"),
    (lambda: Adapter(rank=0), "the LoRA rank is 0"),
    (lambda: Adapter(targets=()), "the targets of the adapters"),
    (lambda: Adapter(targets=("all-linear", "q_proj")), "all-linear alone"),
    (lambda: Adapter(base="int9"), "unknown format of a frozen base"),
    (lambda: budget.train(adapted(LLAMA, base="int8")), "no closed form"),
    (lambda: TrainSetup("tiny-llama", adapter="lora"), "an Adapter"),
    (lambda: TrainSetup("tiny-llama", adapter=Adapter(targets="q_poj")), "did you mean 'q_proj'"),
    (lambda: adapted(LLAMA, precision="megatron-bf16"), "no master copy"),
    (lambda: adapted(LLAMA, split=Split(2, zero=3)), "ZeRO stage 3"),
    (lambda: budget.train(adapted(LLAMA, checkpointing="offload")), "peak has no closed form"),
    (lambda: adapted(LLAMA, in_backward=True), "hardly worth freeing"),
    (lambda: measure.training_step(adapted(LLAMA), "cpu"), "trace.lora"),
    (lambda: trace.lora(adapted(LLAMA), rank=8), "in one place"),
    (lambda: trace.lora(TrainSetup("tiny-llama")), "or a rank"),
    (lambda: Adapter(adapter_dtype="fp16"), "expected: fp32, bf16"),
    (lambda: Adapter(dtype="fp16", adapter_dtype="bf16"), "expected: fp32, fp16"),
    (lambda: Adapter(dropout=1), "from 0 to below 1"),
    (lambda: Adapter(dropout=True), "from 0 to below 1"),
    (lambda: budget.train(adapted(LLAMA, "dora", dropout=0.1)), "LoRA with dropout"),
    (lambda: Adapter().trained_by("tlr"), "did you mean 'trl'"),
]


@pytest.mark.parametrize(("wrong", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_cannot_be_told_is_refused(wrong, words):
    with pytest.raises(WorkbookError, match=words):
        wrong()
