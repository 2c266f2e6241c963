"""The same question at every door, put at random: command line, calculators, planner and trace give one answer."""

import json
import random

import pytest

from helpers.catalog import DEVICES, MODELS, TrainSetup, model
from helpers.catalog.adapters import Adapter
from helpers.catalog.cache_formats import KV_FORMATS
from helpers.catalog.hardware import cuda_of
from helpers.cli import main
from helpers.lesson.calculators import training_memory
from helpers.memory import budget, trace

SEEDS = range(25)
CUDA = [name for name, card in DEVICES.items() if cuda_of(card)]
POLICIES = ("none", "none", "full", "selective", "module:attention", "offload", "sqrt-n", "every:2", "first:1")
OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "adamw-8bit-paged", "adafactor", "lion", "muon", "sgd")


def asked(capsys, *words: str) -> dict | None:
    """What a command says in JSON; None where it refuses, which it has to do in a sentence."""
    code = main([*words, "--json"])
    said = capsys.readouterr()
    assert code == 0 or (code == 2 and said.err.startswith("workbook: ") and "\n  do: " in said.err), words
    return json.loads(said.out) if code == 0 else None


def words_of(question: dict[str, object]) -> list[str]:
    return [str(word) for pair in question.items() for word in pair]


def longest(name: str, otherwise: int) -> int:
    """Positions of a learned table, which end."""
    return model(name).max_positions if model(name).learned_positions else otherwise


def training_question(rng: random.Random) -> dict[str, object]:
    name = rng.choice(MODELS)
    question = {
        "--model": name,
        "--gpu": rng.choice(CUDA),
        "--precision": rng.choice(("autocast-bf16", "bf16", "fp32")),
        "--optimizer": rng.choice(OPTIMIZERS),
        "--micro-batch": rng.choice((1, 1, 2, 4)),
        "--sequence": min(longest(name, 8192), rng.choice((512, 1024, 2000, 4096, 8192))),
        "--checkpointing": rng.choice(POLICIES),
        "--accumulate": rng.choice((1, 1, 4)),
    }
    if rng.random() < 0.3:
        question |= {"--adapter": "lora", "--lora-rank": rng.choice((8, 16))}
        question |= {"--lora-base": "nf4"} if rng.random() < 0.5 else {}
    return question


def serving_question(rng: random.Random) -> dict[str, object]:
    name = rng.choice(MODELS)
    return {
        "--model": name,
        "--gpu": rng.choice(("h100", "l40s", "rtx-4090", "b200")),  # Transformers dequantizes FP8 below these
        "--weights": rng.choice(("shipped", "bf16", "fp8-e4m3", "nf4", "awq-int4")),
        "--kv": rng.choice(KV_FORMATS),
        "--users": rng.choice((1, 7, 64)),
        "--context": min(longest(name, 2**17), rng.choice((300, 2048, 32768, 131072))),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_a_training_step_is_one_answer_at_every_door(seed, capsys):
    rng, answered = random.Random(seed), 0
    for _ in range(10):
        question = training_question(rng)
        words = words_of(question)
        found = asked(capsys, "estimate", "train", *words, "--no-traced")
        if found is None:
            continue
        assert all(size >= 0 for size in found["parts"].values()), words
        doors = [asked(capsys, "estimate", "fine-tuning", *words, "--no-traced")]
        if "--adapter" not in question:
            doors += [asked(capsys, "estimate", "checkpointing", *words)]
            doors += [asked(capsys, "estimate", "zero", *words)] if question["--optimizer"] != "muon" else []
        assert [said and said["peak_bytes"] for said in doors] == [found["peak_bytes"]] * len(doors), words
        answered += 1
    assert answered >= 5, "most of these questions have an answer"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_is_one_answer_at_every_door(seed, capsys):
    rng, answered = random.Random(seed), 0
    for _ in range(10):
        question = serving_question(rng)
        words = words_of(question)
        found = asked(capsys, "estimate", "serve", *words, "--no-traced")
        cache = asked(capsys, "estimate", "kv", *words)
        if found is None or cache is None:
            assert found is cache, words  # where one refuses, so does the other
            continue
        answered += 1
        assert cache["parts"]["kv_cache"] == found["held"]["kv_cache"], words
        assert cache["parts"]["parameters"] == found["held"]["parameters"], words
    assert answered >= 5, "most of these questions have an answer"


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b", "gemma-3-1b", "qwen3-8b"])
def test_what_the_planner_counts_is_what_an_estimate_says(name, capsys):
    plans = asked(capsys, "plan", "train", name, "--tokens", "1e8", "--batch", "65536", "--cards", "h200=1")["plans"]
    ours = [plan for plan in plans if plan["layout"]["engine"] == "ZeRO"]
    assert ours
    for plan in ours:
        layout = plan["layout"]
        question = {"--model": name, "--gpu": "h200", "--sequence": 4096}
        question |= {f"--{key.replace('_', '-')}": layout[key] for key in ("precision", "optimizer", "checkpointing")}
        question |= {"--micro-batch": layout["micro_batch"], "--accumulate": layout["micro_batches"]}
        question |= {"--zero": layout["zero"]} | ({"--offload-optimizer": "cpu"} if layout["offload"] else {})
        said = asked(capsys, "estimate", "train", *words_of(question), "--no-traced")
        assert said["peak_bytes"] == plan["peak_bytes"], plan


def test_the_calculators_controls_ask_what_the_flags_ask(capsys):
    start = training_memory().start
    question = {"--model": start["model"], "--gpu": start["gpu"]}
    said = asked(capsys, "estimate", "train", *words_of(question), "--no-traced")
    assert said["peak_bytes"] == training_memory().answer().parts.total


@pytest.mark.parametrize(
    "setup",
    [
        TrainSetup("tiny-llama", "autocast-bf16", "adamw-fused", sequence=256, checkpointing="full"),
        TrainSetup("tiny-qwen3", "bf16", "adamw-8bit", micro_batch=2, sequence=200),
        TrainSetup("tiny-llama", "bf16", "adamw", sequence=128, adapter=Adapter(base="nf4")),
    ],
    ids=["whole, checkpointed", "8-bit Adam", "QLoRA"],
)
def test_a_trace_is_a_door_too(setup):
    assert trace.train(setup, "h100").peak_bytes == pytest.approx(budget.train(setup, "h100").peak_bytes, rel=5e-3)
