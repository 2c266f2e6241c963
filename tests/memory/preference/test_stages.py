"""GRPO and DPO by stages: against TRL's own trainers, the meter on what they run, and hand arithmetic."""

from dataclasses import replace

import pytest
import torch

from helpers.catalog import Adapter, TrainSetup, WorkbookError, device, model
from helpers.catalog.preference import DpoSetup, GrpoSetup
from helpers.catalog.split import Split
from helpers.memory import budget
from helpers.memory.breakdown import Part
from helpers.memory.measure.losses import fused_loss
from helpers.memory.measure.steps import build_model, precision_context
from helpers.memory.meter import Meter
from helpers.memory.preference.generation import generated
from helpers.memory.preference.scoring import QuietForward
from helpers.memory.preference.stages import ENGINE, REFERENCE, PreferenceStage, dpo, grpo

TINY = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 688, "vocab_size": 5000, "max_position_embeddings": 4096,
}  # fmt: skip
TIED = TINY | {"tie_word_embeddings": True}
LORA = Adapter("lora", 16)


def step_of(config=TINY, precision="autocast-bf16", rows=8, sequence=128, policy="full", **choices):
    return TrainSetup(config, precision, "adamw-fused", rows, sequence, policy, **choices)


# GRPOTrainer and DPOTrainer of TRL 1.16 (Transformers 5.23, torch 2.13) on a CPU, the third step of each under a Meter;
# of the fused head's kernels the memory alone. Bytes at the highest moment of: generation, log-probabilities of the old
# policy, those of the reference, the loss, the backward.
GRPO_RUNS = [
    (step_of(), {"beta": 0.04}, (100_381_696, None, 148_407_296, 154_740_736, 174_251_520)),
    (step_of(precision="autocast-bf16-on-bf16"), {}, (35_546_112, None, None, 87_818_752, 113_641_472)),
    (step_of(precision="fp32"), {}, (70_639_104, None, None, 174_479_360, 179_297_792)),
    (
        step_of(micro_batches=2),
        {"steps_per_generation": 1, "beta": 0.04},
        (None, None, 170_278_400, 176_590_848, 196_101_632),
    ),
    (step_of(micro_batches=2), {}, (83_132_416, None, None, 154_755_072, 174_265_856)),
    (step_of(precision="bf16", adapter=LORA), {"beta": 0.04}, (14_332_416, None, 62_953_472, 66_124_800, 86_819_328)),
    (
        step_of(precision="autocast-bf16-on-bf16", adapter=LORA, micro_batches=2),
        {"beta": 0.04},
        (17_038_848, None, 62_995_968, 66_489_344, 87_069_184),
    ),
    (
        step_of(rows=16, sequence=160, masked=True),
        {"prompt": 64, "beta": 0.04},
        (107_119_616, None, 201_582_080, 217_780_224, 251_827_712),
    ),
    (step_of(TIED, policy="none"), {"iterations": 2}, (63_172_096, 111_197_696, None, 169_598_464, 194_909_184)),
    (
        step_of(precision="autocast-bf16-on-bf16", sequence=420, micro_batches=2),
        {"prompt": 400},
        (86_511_104, None, None, 68_328_960, 99_316_224),
    ),
    (step_of(rows=16, sequence=420, masked=True), {"prompt": 400}, (158_610_432, None, None, 146_811_904, 223_000_064)),
]
STAGES = (
    PreferenceStage.GENERATION,
    PreferenceStage.OLD_SCORES,
    PreferenceStage.REFERENCE_SCORES,
    PreferenceStage.FORWARD,
    PreferenceStage.BACKWARD,
)


@pytest.mark.parametrize(("train", "how", "measured"), GRPO_RUNS)
def test_stages_of_grpo_are_those_of_trl_s_trainer(train, how, measured):
    predicted = grpo(GrpoSetup(train, **{"prompt": 32} | how))
    stages = {moment.at for moment in predicted.moments}
    for stage, size in zip(STAGES, measured, strict=True):
        if size is not None:
            assert predicted.at(stage).total == pytest.approx(size, rel=0.01)
    assert (measured[1] is not None) == (PreferenceStage.OLD_SCORES in stages)
    assert (measured[2] is not None) == (PreferenceStage.REFERENCE_SCORES in stages)


DPO_RUNS = [
    (step_of(), {}, (154_711_552, 155_526_144, 174_230_528)),
    (step_of(precision="autocast-bf16-on-bf16", policy="none"), {}, (142_398_976, 142_811_136, 168_226_816)),
    (step_of(precision="bf16", policy="none", adapter=LORA), {}, (103_612_928, 104_034_304, 124_320_768)),
    (step_of(masked=True, micro_batches=2), {}, (176_097_280, 176_902_656, 195_427_328)),  # 751 of 768 are scored
    (step_of(), {"precomputed": True}, (132_862_464, None, 152_381_440)),
]


@pytest.mark.parametrize(("train", "how", "measured"), DPO_RUNS)
def test_stages_of_dpo_are_those_of_trl_s_trainer(train, how, measured):
    predicted = dpo(DpoSetup(train, 32, **how))
    for stage, size in zip(
        (PreferenceStage.FORWARD, PreferenceStage.REFERENCE_SCORES, PreferenceStage.BACKWARD), measured, strict=True
    ):
        if size is not None:
            assert predicted.at(stage).total == pytest.approx(size, rel=0.005)


def metered(net, run):
    """The highest moment beside what the net and its inputs hold."""
    with Meter() as meter:
        meter.adopt((*net.parameters(), *net.buffers()), Part.PARAMETERS)
        before = meter.live_bytes
        run()
    peak = meter.peak_bytes - before
    meter.stop()
    return peak


SCORED = [
    step_of(policy="none", loss="trl", scored=96),
    step_of("tiny-qwen3", "bf16", policy="none", loss="trl", scored=60, masked=True),
    step_of(TIED, "fp32", sequence=400, loss="trl", scored=20),
]


@pytest.mark.parametrize("setup", SCORED, ids=["autocast", "masked", "layers higher than the loss"])
def test_a_forward_without_gradients_is_a_real_one(setup):
    torch.manual_seed(0)
    net, ids = build_model(setup, "cpu"), torch.randint(0, 99, (setup.micro_batch, setup.sequence))

    def score():
        with torch.no_grad(), precision_context(setup, "cpu"):
            fused_loss(setup, net, ids)

    predicted = QuietForward(setup, lambda _: "fused").peak().total
    assert predicted == pytest.approx(metered(net, score), rel=0.01)


@pytest.mark.parametrize(("prompt", "context"), [(32, 128), (300, 308)], ids=["the last token", "the prompts"])
def test_generation_is_a_real_one_s(prompt, context):
    setup = GrpoSetup(step_of("tiny-qwen3", "bf16", sequence=context), prompt)
    torch.manual_seed(0)
    net, ids = build_model(setup.train, "cpu").eval(), torch.randint(3, 99, (8, prompt))  # no pads
    sampled = {"do_sample": True, "top_k": 0, "eos_token_id": None}

    def generate():
        with torch.no_grad():
            net.generate(ids, max_new_tokens=context - prompt, **sampled)

    predicted = generated(setup, lambda of: QuietForward(of, lambda _: "fused", caches=True)).total
    assert predicted == pytest.approx(metered(net, generate), rel=0.01)


def test_the_training_of_grpo_is_the_step_that_a_budget_has():
    setup = GrpoSetup(step_of(loss="trl", scored=96), 32, beta=0.1)
    step, predicted = budget.train(setup.train, "h100"), grpo(setup, "h100")
    reference = 4 * model(TINY).parameters
    assert predicted.parts[REFERENCE] == pytest.approx(reference, rel=0.001)
    assert predicted.peak_bytes == step.peak_bytes + predicted.parts[REFERENCE]


# When are log-probabilities of the old policy wanted (gradient_accumulation_steps % (steps_per_generation x
# num_iterations) != 0 in TRL), and when does a generation find gradients that wait?
OLD = [((1, 1, 1), False, False), ((1, 1, 2), True, False), ((4, 4, 1), False, False), ((4, 2, 1), False, True),
       ((2, 4, 1), True, False), ((4, 3, 1), True, True), ((4, 1, 2), False, True)]  # fmt: skip


@pytest.mark.parametrize(("counts", "old", "between"), OLD)
def test_when_the_old_policy_is_scored(counts, old, between):
    accumulated, steps, iterations = counts
    setup = GrpoSetup(step_of(micro_batches=accumulated), 32, steps_per_generation=steps, iterations=iterations)
    assert (setup.scores_old, setup.generates_between) == (old, between)


def test_an_engine_on_the_same_card_awake_and_asleep():
    setup = GrpoSetup(step_of("llama-3-8b", adapter=LORA, sequence=1024), 512, generator="vllm")
    awake, asleep = grpo(setup, "h100"), grpo(replace(setup, sleeps=True), "h100")
    launch, backward = awake.launch, PreferenceStage.BACKWARD
    share = round(0.3 * device("h100").capacity_bytes)
    assert awake.at(PreferenceStage.GENERATION).parts[ENGINE] == pytest.approx(share, rel=0.05)  # and graphs
    given_back = awake.at(backward).total - asleep.at(backward).total
    assert given_back == launch.weight_bytes + launch.pool_bytes
    assert launch.weight_bytes == pytest.approx(2 * model("llama-3-8b").parameters, rel=0.01)
    assert awake.at(PreferenceStage.GENERATION).total == asleep.at(PreferenceStage.GENERATION).total
    assert PreferenceStage.OLD_SCORES in {moment.at for moment in awake.moments}  # to correct what vLLM says


def test_what_logits_no_longer_cost():
    """Eight completions of 20,480 tokens of Llama-3.1-8B: 78 GiB of logits twice in 16 bits, as Unsloth's page of
    February 2025 counts for TRL; in TRL 1.16 a tile of 4,096 x 32,768 in 16 bits.
    """
    train = step_of("llama-3.1-8b", "autocast-bf16-on-bf16", sequence=20_736, adapter=LORA)
    logits = 8 * 20_480 * 128_256 * 2 * 2
    assert logits / 2**30 == pytest.approx(78.3, abs=0.1)
    found = grpo(GrpoSetup(train, 256), "h100").moments
    assert max(moment.parts.get(Part.LOGITS, 0) for moment in found) <= 2 * 4096 * 32_768
    cache = 8 * 20_735 * 131_072  # 2.5 GiB for each, as that page has it
    assert grpo(GrpoSetup(train, 256)).at(PreferenceStage.GENERATION).parts[Part.KV_CACHE] == cache


REFUSED = [
    (lambda: GrpoSetup(step_of(), 128), "prompt is 128"),
    (lambda: GrpoSetup(step_of(), 0), "prompt is 0"),
    (lambda: GrpoSetup(step_of(rows=3), 32), "8 generations of a prompt, and 3 completions"),
    (lambda: GrpoSetup(step_of(), 32, generations=1), "generations is 1"),
    (lambda: GrpoSetup(step_of(), 32, beta=-1), "beta is -1"),
    (lambda: GrpoSetup(step_of(), 32, generator="vlm"), "did you mean 'vllm'"),
    (lambda: GrpoSetup(step_of(), 32, sleeps=True), "without an engine"),
    (lambda: GrpoSetup(step_of(), 32, share=1.2), "share is 1.2"),
    (lambda: GrpoSetup(step_of(precision="megatron-bf16"), 32), "megatron-bf16 in a trainer of TRL"),
    (lambda: GrpoSetup(step_of(split=Split(2, zero=2)), 32), "one card"),
    (lambda: DpoSetup(step_of(rows=3), 32), "an even number"),
    (lambda: grpo(GrpoSetup(step_of(), 32, generator="vllm")), "no card"),
    (lambda: grpo(GrpoSetup(step_of("llama-3-8b"), 32, generator="vllm", share=0.1), "h100"), "no room for a sequence"),
    (lambda: step_of(scored=20), "computes logits for all tokens"),
    (lambda: step_of(masked=1), "masked is 1"),
]


@pytest.mark.parametrize(("wrong", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(wrong, words):
    with pytest.raises(WorkbookError, match=words):
        wrong()


def test_a_share_too_small_is_told_the_least_that_works():
    setup = GrpoSetup(step_of("qwen2.5-7b", adapter=LORA, sequence=1024), 512, generator="vllm", share=0.1)
    with pytest.raises(WorkbookError, match=r"pass share=0\.21 \(--share 0\.21\)"):
        grpo(setup, "h100")
    assert grpo(replace(setup, share=0.21), "h100").launch.users >= 1
    with pytest.raises(WorkbookError):
        grpo(replace(setup, share=0.2), "h100")


@pytest.mark.parametrize(("name", "gpu"), [("qwen2.5-7b", "rtx-4090"), ("llama-3.1-70b", "h100")])
def test_no_share_is_advised_where_weights_exceed_the_card(name, gpu):
    setup = GrpoSetup(step_of(name, adapter=LORA, sequence=1024), 512, generator="vllm", share=0.5)
    with pytest.raises(WorkbookError, match="exceed the card's memory") as refused:
        grpo(setup, gpu)
    assert "share=" not in refused.value.do
