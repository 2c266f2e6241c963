"""The training and serving calculators: one answer in widget and terminal, and words that are true by the byte."""

import json
import shlex
from dataclasses import replace
from itertools import product

import pytest

from helpers.catalog import DEVICES, ServeSetup, TrainSetup, device
from helpers.catalog.hardware import AMPERE
from helpers.catalog.split import Split
from helpers.cli import main
from helpers.lesson.calculators import (
    changes_that_fit,
    checkpointing_answer,
    fine_tuning_answer,
    serving_answer,
    training_answer,
    training_memory,
)
from helpers.memory import budget
from helpers.memory.fit import Room, reserve

CALCULATOR = training_memory()
CHOICES = [
    {},
    {"micro_batch": 8, "optimizer": "adamw-8bit"},
    {"model": "tiny-llama", "gpu": "t4-16gb", "precision": "fp32"},
    {"precision": "bf16", "checkpointing": "every:4", "attention": "eager", "sequence": 4096},
    {"micro_batches": 8},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_calculator_and_the_command_give_one_answer(choices, capsys):
    answer = CALCULATOR.answer(**choices)
    options = [*shlex.split(answer.command)[3:], "--no-traced"]
    assert main(["estimate", "train", *options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {part: size for part, size in said["parts"].items() if size} == dict(answer.parts)
    assert said["device"]["capacity_bytes"] == answer.capacity_bytes
    assert main(["estimate", "train", *options]) == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize("model", ["gpt2", "tiny-llama", "tiny-qwen3"])
def test_recipes_optimizers_and_checkpointing_in_every_combination(model):
    names = ("precision", "optimizer", "checkpointing", "attention")
    for values in product(*(CALCULATOR.options[name][1] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        html = CALCULATOR.render({**CALCULATOR.start, "model": model, "sequence": 512, **chosen})
        reasons = {("tiny-qwen3", "fp32", "sdpa"): "grouped heads", ("gpt2", "torchao-fp8", values[3]): "Conv1D"}
        reason = reasons.get((model, values[0], values[3]))
        refused = reason is not None and reason in html
        assert "<svg" in html or ":K with K" in html or refused, values


DOES_NOT_FIT = [
    ({"model": "llama-2-7b"}, "h100-80gb"),
    ({"model": "llama-2-7b", "micro_batch": 2}, "h100-80gb"),
    ({"model": "llama-2-7b", "micro_batch": 16, "optimizer": "adamw"}, "a100-80gb"),
    ({"model": "llama-2-7b", "precision": "megatron-bf16"}, "l40s-48gb"),
    ({"model": "llama-3.2-1b", "micro_batch": 4}, "rtx-4090-24gb"),
    ({"model": "gpt2", "sequence": 1024, "micro_batch": 32, "precision": "fp32"}, "t4-16gb"),
]
# The words of the sentence, turned back into the choices that they name.
NAMED = {
    "fused": {"optimizer": "adamw-fused"},
    "8-bit Adam": {"optimizer": "adamw-8bit"},
    "checkpoint every layer": {"checkpointing": "full"},
    "micro-batch 1": {"micro_batch": 1},
    "ure BF16": {"precision": "bf16"},
}


@pytest.mark.parametrize(("choices", "gpu"), DOES_NOT_FIT, ids=str)
def test_the_change_that_is_named_fits_when_computed_again(choices, gpu):
    setup = TrainSetup(**choices)
    answer, room = training_answer(setup, gpu), Room(device(gpu))
    assert answer.parts.total > room.card.capacity_bytes
    offer = answer.sentence.partition("The cheapest change that fits: ")[2]
    sentence, cost, _ = offer.partition(" Its cost: ")
    assert cost, answer.sentence
    change = {key: value for words, named in NAMED.items() if words in sentence for key, value in named.items()}
    changed = training_answer(replace(setup, **change), gpu)
    assert changed.parts.total <= room.for_tensors_bytes
    assert changed.sentence.startswith("Fits")
    told_gib = float(sentence.rpartition("(")[2].partition(" ")[0])
    assert told_gib == pytest.approx(changed.parts.total / 2**30, abs=0.006)


def test_what_accumulation_costs_is_said():
    sentences = {count: CALCULATOR.answer(micro_batches=count).sentence for count in (1, 8)}
    assert "accumulated" not in sentences[1]
    assert "8 accumulated micro-batches need 25.10 GiB more than one." in sentences[8]
    foreach = CALCULATOR.answer(precision="bf16", optimizer="adamw-foreach", micro_batches=2).sentence
    assert "2 accumulated micro-batches need no more than one." in foreach


@pytest.mark.parametrize(("zero", "ranks", "told"), [(3, 1, True), (1, 1, True), (0, 1, False), (3, 8, False)])
def test_a_single_rank_is_told_that_it_shards_nothing(zero, ranks, told):
    answer = training_answer(TrainSetup("llama-3-8b", split=Split(ranks, zero=zero)))
    assert (f"ZeRO stage {zero} shards nothing on one rank" in answer.sentence) == told


def test_a_quantized_checkpoint_is_trained_dequantized():
    config = {**TrainSetup("llama-3-8b").model.config, "quantization_config": {"quant_method": "awq"}}
    assert "starts from it dequantized" in training_answer(TrainSetup(config)).sentence
    assert "dequantized" not in training_answer(TrainSetup("llama-3-8b")).sentence


def test_when_nothing_fits_it_says_so():
    answer = training_answer(TrainSetup("llama-2-70b"), "l4-24gb")
    assert "No change that is known here makes it fit" in answer.sentence
    assert not list(changes_that_fit(TrainSetup("llama-2-70b"), Room(device("l4-24gb"), 0)))


@pytest.mark.parametrize("gpu", DEVICES)
def test_fits_and_spare_bytes_are_true_on_every_device(gpu):
    for model, sequence in (("gpt2", 256), ("llama-2-7b", 2048), ("llama-2-70b", 2048)):
        attention = "eager" if (device(gpu).capability or AMPERE) < AMPERE else "sdpa"  # no BF16 kernel before Ampere
        answer = training_answer(TrainSetup(model, sequence=sequence, attention=attention), gpu)
        kept = reserve(device(gpu)).size_bytes
        assert answer.sentence.startswith("Fits") == (answer.parts.total + kept <= answer.capacity_bytes)
        assert answer.sentence.startswith("Does not fit") == (answer.parts.total > answer.capacity_bytes)


@pytest.mark.parametrize("answer", [training_answer, serving_answer])
def test_fits_tight_and_does_not_fit_are_decided_by_the_byte(answer):
    setup = {training_answer: TrainSetup, serving_answer: ServeSetup}[answer]("llama-3-8b")
    h100, need = device("h100"), answer(setup, "h100").parts.total
    kept = reserve(h100).size_bytes

    def of(size, reserve=None):
        gpu = replace(h100, title="GPU", capacity=replace(h100.capacity, value=size))
        said = answer(setup, gpu, reserve)
        return said.figures["verdict"], said.sentence

    for size, verdict, words in [
        (need + kept, "fits", "Fits the GPU with 0 B to spare, beside up to 794.00 MiB kept for the CUDA context."),
        (need + kept - 1, "tight", "Tight on the GPU: 794.00 MiB left, and up to 794.00 MiB are kept for"),
        (need, "tight", "Tight on the GPU: 0 B left"),
        (need - 1, "does not fit", "Does not fit the GPU: 794.00 MiB too much, beside up to 794.00 MiB kept for"),
    ]:
        told, sentence = of(size)
        assert told == verdict
        assert sentence.startswith(words)
    assert of(need, reserve=0)[0] == "fits"
    assert "kept" not in of(need, reserve=0)[1]


def test_what_is_tight_is_told_what_would_fit():
    setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", micro_batch=2, sequence=2048)
    need = training_answer(setup, "a100-80gb").parts.total
    a100 = device("a100-80gb")
    gpu = replace(a100, capacity=replace(a100.capacity, value=need + 2**20))
    assert "The cheapest change that fits: checkpoint every layer" in training_answer(setup, gpu).sentence
    assert training_answer(setup, gpu, 2**20).sentence.startswith("Fits")


@pytest.mark.parametrize(("name", "gpu"), [("llama-3-8b", "rtx-4090-24gb"), ("gemma-2-9b", "l40s-48gb")])
def test_the_users_that_would_fit_do_and_one_more_does_not(name, gpu):
    setup = ServeSetup(name, users=500, context=8000)
    sentence = serving_answer(setup, gpu).sentence
    users = int(sentence.partition("At this context ")[2].split()[0].replace(",", ""))
    needs = [budget.serve(replace(setup, users=count)).peak_bytes for count in (users, users + 1)]
    assert needs[0] <= Room(device(gpu)).for_tensors_bytes < needs[1]


def test_the_formula_names_every_part_and_the_peak():
    for choices in CHOICES:
        answer = CALCULATOR.answer(**choices)
        assert [line.split()[0] for line in answer.formula] == [*answer.parts, "peak"]


def test_a_sequence_longer_than_the_positions_says_why():
    assert "position for 1,024 tokens" in CALCULATOR.render({**CALCULATOR.start, "model": "gpt2"})


def test_what_fits_by_its_tensors_alone_asks_for_expandable_segments():
    """The trace of the second step reserves 26.1 GiB for 20.35 and runs out of memory in default segments."""
    plain = TrainSetup("llama-3.2-1b", micro_batch=4)
    assert "checkpoint every layer (20.35 GiB, with expandable segments)" in training_answer(plain, "rtx-4090").sentence
    cured = replace(plain, optimizer="adamw-8bit", checkpointing="full")
    for answer in (training_answer, checkpointing_answer, fine_tuning_answer):
        assert "Set expandable_segments:True" in answer(cured, "rtx-4090").sentence
        assert "expandable_segments" not in answer(cured, "h100").sentence


def test_a_card_without_units_for_bf16_is_told():
    assert (
        "no units for products in BF16" in training_answer(TrainSetup("tiny-llama", attention="eager"), "t4").sentence
    )
    assert "BF16" not in training_answer(TrainSetup("tiny-llama", precision="fp32"), "t4").sentence


def test_the_next_offer_is_not_the_first_with_more():
    """8-bit Adam fits; with checkpoints it fits as well, which is no other way; BF16 is one."""
    said = training_answer(TrainSetup("llama-2-7b", optimizer="adamw-fused"), "h100").sentence
    first, _, other = said.partition("The cheapest change that fits: ")[2].partition("The next: ")
    assert first.startswith("8-bit Adam (")
    assert "Its cost: states rounded to 8 bits" in first
    assert other.startswith("pure BF16 ")
    assert "Its cost: small updates round to nothing." in other
