"""`workbook estimate grpo` and `dpo`; `--lengths`, `--padding-free` and `--packing`."""

import json
import shlex

import pytest

from helpers.cli import main


def said(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


GRPO = ("estimate", "grpo", "--model", "qwen3-0.6b", "--prompt", "256", "--completion", "768")
DPO = ("estimate", "dpo", "--model", "qwen3-0.6b", "--micro-batch", "2", "--prompt", "256", "--completion", "768")
STEP = ("--sequence", "1024", "--scored", "768", "--loss", "trl", "--masked", "--checkpointing", "full")


@pytest.mark.parametrize(
    ("words", "rows"),
    [(GRPO, 8), ((*GRPO, "--no-padding"), 8), (DPO, 4), ((*GRPO, "--lora-rank", "8", "--precision", "bf16"), 8)],
)
def test_the_step_inside_is_the_one_of_estimate_train(words, rows, capsys):
    found = said(capsys, *words, "--gpu", "h100")
    step = [word for word in STEP if word != "--masked" or "--no-padding" not in words]
    own = words[7:] if "--lora-rank" in words else ()
    own = own[own.index("--lora-rank") :] if own else ()
    of = ("--model", "qwen3-0.6b", "--micro-batch", str(rows), "--gpu", "h100", "--no-traced")
    alone = said(capsys, "estimate", "train", *of, *step, *own)
    reference = found["parts"].get("reference", 0)
    highest = max(sum(parts.values()) for stage, parts in found["stages"].items() if stage in TRAINING)
    assert highest - reference == alone["peak_bytes"]


TRAINING = ("forward and loss", "backward", "optimizer step")
ASKED = [
    (*GRPO, "--beta", "0.04", "--accumulate", "2", "--steps-per-generation", "4"),
    (*GRPO, "--generator", "vllm", "--share", "0.4", "--sleep", "--lora-rank", "16"),
    (*GRPO, "--lora-rank", "16", "--lora-base", "nf4", "--lora-targets", "all-linear", "--no-padding"),
    (*DPO, "--precompute", "--checkpointing", "none"),
    (*DPO, "--lora-rank", "16"),
]


@pytest.mark.parametrize("words", ASKED)
def test_the_command_of_an_answer_gives_it_again(words, capsys):
    from helpers.lesson.calculators import preference

    found: list[preference.PreferenceAnswer] = []
    original = preference.PreferenceAnswer.__str__
    preference.PreferenceAnswer.__str__ = lambda self: found.append(self) or ""
    try:
        assert main([*words, "--gpu", "h100"]) == 0
        again = shlex.split(found[0].command)[1:]
        assert main(again) == 0
    finally:
        preference.PreferenceAnswer.__str__ = original
    assert found[0].predicted == found[1].predicted


def test_what_does_not_fit_is_told_with_a_change_that_does(capsys):
    assert main(["estimate", "dpo", "--model", "llama-3.1-8b", "--gpu", "h100", "--micro-batch", "2"]) == 0
    text = capsys.readouterr().out
    assert "Does not fit" in text
    change = ("--precision", "autocast-bf16-on-bf16")  # two copies of 16 bytes a parameter, halved
    assert f"The cheapest change that fits: {' '.join(change)}" in text
    found = said(capsys, "estimate", "dpo", "--model", "llama-3.1-8b", "--gpu", "h100", "--micro-batch", "2", *change)
    assert found["verdict"] == "fits"


TRAIN = ("estimate", "fine-tuning", "--model", "qwen3-0.6b", "--lora-rank", "8", "--gpu", "h100", "--no-traced")


def test_the_longest_counts_or_the_sum(capsys):
    padded = said(capsys, *TRAIN, "--lengths", "1000,200,200,200")
    rows = said(capsys, *TRAIN, "--micro-batch", "4", "--sequence", "1000", "--masked")
    free = said(capsys, *TRAIN, "--lengths", "1000,200,200,200", "--padding-free")
    row = said(capsys, *TRAIN, "--micro-batch", "1", "--sequence", "1600", "--masked")
    assert (padded["peak_bytes"], free["peak_bytes"]) == (rows["peak_bytes"], row["peak_bytes"])
    assert free["peak_bytes"] < padded["peak_bytes"]


@pytest.mark.parametrize("kind", ["train", "fine-tuning"])
def test_no_smaller_micro_batch_is_offered_beside_lengths(kind, capsys):
    words = ("estimate", kind, "--model", "qwen2.5-7b", "--lora-rank", "16", "--lengths", "4096,3000,1200")
    fit = ("--fit",) if kind == "train" else ()
    assert main([*words, "--gpu", "rtx-4090", "--no-traced", *fit]) == 0
    text = capsys.readouterr().out
    assert "micro-batch 1" not in text
    assert "--micro-batch" not in text
    if fit:
        for offer in said(capsys, *words, "--gpu", "rtx-4090", "--no-traced", "--fit")["fit"]:
            typed = [word for name, value in offer["fields"].items() for word in (f"--{name}", value)]
            card = offer["device"] or "rtx-4090"
            again = said(capsys, *words, "--no-traced", *typed, "--gpu", card)
            assert again["peak_bytes"] == offer["peak_bytes"]


def test_packing_by_sdpa_and_by_flash_attention(capsys):
    """Llama's 28 layers keep 2 bytes for each of 4,096 x 4,096 pairs, where nothing is recomputed."""
    how = (*TRAIN, "--packing", "--sequence", "2048", "--micro-batch", "2")
    by_sdpa, by_flash = said(capsys, *how), said(capsys, *how, "--attention", "flash_attention_2")
    plain = said(capsys, *TRAIN, "--sequence", "4096")
    assert by_flash["peak_bytes"] == plain["peak_bytes"]
    assert by_sdpa["peak_bytes"] - by_flash["peak_bytes"] > 28 * 2 * 4096**2


REFUSED = [
    ((*TRAIN, "--packing", "--lengths", "3,4"), "--lengths with --packing"),
    ((*TRAIN, "--lengths", "3,0"), "a length is 0"),
    ((*TRAIN, "--lengths", "3,4", "--micro-batch", "1"), "--micro-batch beside --lengths"),
    ((*TRAIN, "--lengths", "3,4", "--sequence", "2048"), "--sequence beside --lengths"),
    ((*TRAIN[:3], "gemma-3-1b", *TRAIN[4:], "--attention", "flash_attention_2"), "have a window"),
    ((*GRPO, "--generator", "vllm"), "vLLM's share of no card"),
    ((*GRPO, "--share", "0.5"), "--share with transformers"),
    ((*GRPO[:-1], "0"), "completion is 0"),
    ((*GRPO[:5], "0", *GRPO[6:]), "prompt is 0"),
    ((*GRPO, "--gpu", "h100", "--reserve", "999999"), "a reserve of 999,999 MiB"),
    ((*GRPO, "--micro-batch", "4"), "8 generations of a prompt, and 4 completions"),
]


@pytest.mark.parametrize(("words", "text"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_is_refused(words, text, capsys):
    assert main(list(words)) == 2
    assert text in capsys.readouterr().err


ENGINE = ("--model", "qwen2.5-7b", "--generator", "vllm", "--gpu", "h100", "--lora-rank", "16")


@pytest.mark.parametrize("more", [(), ("--sleep",)])
def test_changes_of_a_generation_that_is_too_large_lower_it(more, capsys):
    assert main(["estimate", "grpo", *ENGINE, "--share", "0.9", *more]) == 0
    change = capsys.readouterr().out.partition("The cheapest change that fits: ")[2].split(" (")[0]
    assert change.startswith("--share 0.")
    found = said(capsys, "estimate", "grpo", *ENGINE, *more, *change.split())
    assert found["verdict"] == "fits"


def test_a_change_is_offered_only_if_it_lowers_a_stage_that_is_too_high():
    from helpers.catalog import device
    from helpers.catalog.adapters import Adapter
    from helpers.catalog.preference import GrpoSetup
    from helpers.catalog.train_setup import TrainSetup
    from helpers.lesson.calculators.preference_changes import changes
    from helpers.memory.fit import Room

    train = TrainSetup("qwen2.5-7b", "autocast-bf16-on-bf16", "adamw-fused", 8, 1024, "full", adapter=Adapter())
    setup = GrpoSetup(train, 512, generator="vllm", share=0.9, sleeps=True)
    offers = list(changes(setup, Room(device("h100"))))
    assert offers
    assert not any("--micro-batch" in offer for offer in offers)


def test_controls_ask_as_flags_do():
    """Each method of the live calculator is the command that it shows; sleep matters with an engine alone."""
    from helpers.lesson.calculators import reinforcement

    live = reinforcement(model="qwen2.5-1.5b")
    for method, base in {"full": None, "LoRA": None, "QLoRA": "nf4-dq"}.items():
        adapter = live.answer(method=method).predicted.setup.train.adapter
        assert (adapter.base if adapter else None, adapter is None) == (base, method == "full")
    assert set(live.options) - live.used(live.start) == {"sleep"}
    assert set(live.options) == live.used({**live.start, "generator": "vllm"})
