"""The fine-tuning calculator: the closed form's own numbers for each method, and changes that do what they promise."""

import shlex
from dataclasses import replace

import pytest

from helpers.catalog import Adapter, TrainSetup, WorkbookError, device
from helpers.cli import main
from helpers.lesson.calculators import as_usual, fine_tuning, fine_tuning_answer
from helpers.lesson.calculators.fine_tuning import FULL, METHODS, TARGETS, method_of
from helpers.memory import budget
from helpers.memory.fit import Room, changes, ladder

CALCULATOR = fine_tuning()
LORA = TrainSetup("llama-3-8b", "bf16", "adamw-fused", adapter=Adapter("lora", 16, "all-linear"))
USUAL = {FULL: "autocast-bf16", "LoRA": "bf16", "DoRA": "bf16", "QLoRA": "autocast-bf16", "QDoRA": "autocast-bf16"}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_the_closed_form_s(method):
    answer = CALCULATOR.answer(method=method)
    predicted = budget.train(answer.setup, "rtx-4090")
    assert (answer.method, answer.setup.precision) == (method, USUAL[method])
    assert answer.parts == predicted.parts
    assert answer.methods[method] == predicted.parts
    assert answer.trained == (41_943_040 if "LoRA" in method else 43_319_296 if "DoRA" in method else 8_030_261_248)


def test_the_others_stand_beside_it_each_as_usual():
    answer = fine_tuning_answer(LORA, "rtx-4090")
    assert list(answer.methods) == [FULL, "LoRA", "QLoRA"]
    quantized = replace(LORA, adapter=replace(LORA.adapter, base="nf4-dq"), precision="autocast-bf16")
    full = replace(LORA, adapter=None, precision="autocast-bf16")
    for name, setup in (("QLoRA", quantized), (FULL, full)):
        assert answer.methods[name] == budget.train(setup, "rtx-4090").parts
        assert fine_tuning_answer(setup, "rtx-4090").methods[name] == answer.methods[name]


def test_in_another_precision_all_are_run_in_that_one():
    answer = fine_tuning_answer(replace(LORA, adapter=None, precision="bf16"), "rtx-4090")
    assert answer.methods["LoRA"] == budget.train(replace(LORA, adapter=Adapter()), "rtx-4090").parts
    assert answer.methods["QLoRA"] == budget.train(replace(LORA, adapter=Adapter(base="nf4-dq")), "rtx-4090").parts


def test_a_recipe_that_no_frozen_base_has_leaves_full_alone():
    megatron = replace(LORA, adapter=None, precision="megatron-bf16")
    assert list(fine_tuning_answer(megatron, "h200").methods) == [FULL]


@pytest.mark.parametrize("method", METHODS)
def test_the_cheapest_change_is_one_that_fits(method):
    answer = CALCULATOR.answer(method=method)
    assert not answer.holds(answer.parts.total)
    assert "The cheapest change that fits: " in answer.sentence
    told = answer.sentence.partition("change that fits: ")[2]
    assert told.startswith("LoRA of rank 16, checkpoint" if method == FULL else "checkpoint every layer")


def test_what_helps_adapters_is_offered_to_them():
    capacity = device("rtx-4090").capacity_bytes
    offers = list(changes(replace(LORA, precision="autocast-bf16"), capacity, "rtx-4090"))
    assert [fit.change for fit in offers][:2] == ["checkpoint every layer, the base in NF4 (QLoRA)"] or offers
    for fit in offers:
        changed = replace(LORA, **{"precision": "autocast-bf16", **fit.fields})
        gpu = fit.device or "rtx-4090"
        assert budget.train(changed, gpu).peak_bytes <= device(gpu).capacity_bytes
        assert "ZeRO" not in fit.change
    quantized = [fit for fit in ladder(LORA, capacity) if "adapter" in fit.fields]
    assert all("--lora-base nf4-dq" in fit.flags for fit in quantized)
    assert all(fit.figures["fields"]["adapter"].startswith("QLoRA") for fit in quantized)


def test_the_cards_that_hold_it_do():
    """A V100 of 32 GB could, but its matrix units know no BF16."""
    answer = CALCULATOR.answer(method="QLoRA", checkpointing="full")
    assert "rtx-4090-24gb" in answer.devices
    assert not {"t4-16gb", "v100-16gb", "v100-32gb"} & {*answer.devices}
    assert "v100-32gb" in fine_tuning_answer(replace(answer.setup, precision="fp32"), "h100").devices
    for name in answer.devices:
        assert Room(device(name)).for_tensors_bytes >= budget.train(answer.setup, name).peak_bytes


def test_controls_of_adapters_hide_where_there_are_none():
    shown = {method: set(CALCULATOR.used({**CALCULATOR.start, "method": method})) for method in METHODS}
    assert not {"rank", "targets", "base"} & shown[FULL]
    assert {"rank", "targets"} <= shown["LoRA"]
    assert "base" not in shown["DoRA"]
    assert "base" in shown["QDoRA"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["usual", "autocast-bf16"])
def test_the_command_says_the_same(method, precision, capsys):
    answer = CALCULATOR.answer(method=method, precision=precision, rank=8, targets="attention", reserve=512)
    assert main(shlex.split(answer.command)[1:]) == 0
    assert capsys.readouterr().out.strip() == str(answer)


@pytest.mark.parametrize("targets", TARGETS)
def test_more_rank_and_more_layers_take_more(targets):
    peaks = [CALCULATOR.answer(rank=rank, targets=targets).parts.total for rank in (1, 16, 256)]
    assert peaks == sorted(set(peaks))


def test_as_usual():
    assert as_usual(LORA) == LORA
    assert as_usual(replace(LORA, adapter=None)).precision == "autocast-bf16"
    assert method_of(replace(LORA, adapter=Adapter("dora", base="nf4"))) == "QDoRA"


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        ({"method": "ReFT"}, "unknown method"),
        ({"targets": "q"}, "unknown set of linear layers"),
        ({"rank": 0}, "the LoRA rank is 0"),
        ({"precision": "fp16"}, "unknown precision"),
    ],
)
def test_bad_choices_are_told(moved, words):
    with pytest.raises(WorkbookError, match=words):
        CALCULATOR.answer(**moved)
