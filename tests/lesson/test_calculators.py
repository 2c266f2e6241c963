"""Calculators: one pure function in the widget, in text and in the terminal; every choice answers or explains."""

import json
import sys
from base64 import b64decode
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from helpers.catalog import DEVICES, ServeSetup, TrainSetup, WorkbookError, device
from helpers.cli import main
from helpers.lesson.calculators import changes_that_fit, roofline, serving_answer, training_answer, training_memory
from helpers.memory.closed_form import budget

CALCULATOR = training_memory()
CHOICES = [
    {},
    {"micro_batch": 8, "optimizer": "adamw-8bit"},
    {"model": "tiny-llama", "gpu": "t4-16gb"},
    {"precision": "bf16", "checkpointing": "every:4", "attention": "eager", "sequence": 4096},
]


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_the_calculator_and_the_command_give_one_answer(choices, capsys):
    chosen = {**CALCULATOR.start, **choices}
    options = [word for name, value in chosen.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert main(["estimate", "train", *options, "--json"]) == 0
    said, answer = json.loads(capsys.readouterr().out), CALCULATOR.answer(**choices)
    assert {part: size for part, size in said["parts"].items() if size} == dict(answer.parts)
    assert said["device"]["capacity_bytes"] == answer.capacity_bytes
    assert main(["estimate", "train", *options]) == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize("name", CALCULATOR.options)
def test_every_option_of_every_control_answers_or_explains(name):
    for value, model in product(CALCULATOR.options[name][1], ("llama-2-7b", "gpt2", "opt-13b")):
        html = CALCULATOR.render({**CALCULATOR.start, "model": model, name: value})
        assert ("<svg" in html) != ('class="error"' in html), (name, value)


@pytest.mark.parametrize("model", ["gpt2", "tiny-llama", "tiny-qwen3"])
def test_recipes_optimizers_and_checkpointing_in_every_combination(model):
    names = ("precision", "optimizer", "checkpointing", "attention")
    for values in product(*(CALCULATOR.options[name][1] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        html = CALCULATOR.render({**CALCULATOR.start, "model": model, "sequence": 512, **chosen})
        refused = "grouped heads" in html if (model, values[0], values[3]) == ("tiny-qwen3", "fp32", "sdpa") else False
        assert "<svg" in html or "every:K with K" in html or refused, values


def test_start_stands_on_an_option_of_each_control():
    assert set(CALCULATOR.start) == set(CALCULATOR.options)
    for name, (_, options) in CALCULATOR.options.items():
        assert CALCULATOR.start[name] in options


DOES_NOT_FIT = [
    ({"model": "llama-2-7b"}, "h100-80gb"),
    ({"model": "llama-2-7b", "micro_batch": 2}, "h100-80gb"),
    ({"model": "llama-2-7b", "micro_batch": 16, "optimizer": "adamw"}, "a100-80gb"),
    ({"model": "llama-2-7b", "precision": "megatron-bf16"}, "l40s-48gb"),
    ({"model": "llama-3.2-1b", "micro_batch": 4}, "rtx-4090-24gb"),
    ({"model": "gpt2", "sequence": 1024, "micro_batch": 32}, "t4-16gb"),
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
    answer, capacity_bytes = training_answer(setup, gpu), device(gpu).capacity_bytes
    assert answer.parts.total > capacity_bytes
    sentence = answer.sentence.partition("The cheapest change that fits: ")[2]
    assert sentence, answer.sentence
    change = {key: value for words, named in NAMED.items() if words in sentence for key, value in named.items()}
    changed = training_answer(replace(setup, **change), gpu)
    assert changed.parts.total <= capacity_bytes
    assert changed.sentence.startswith("Fits")
    told_gib = float(sentence.rpartition("(")[2].partition(" ")[0])
    assert told_gib == pytest.approx(changed.parts.total / 2**30, abs=0.006)


def test_when_nothing_fits_it_says_so():
    answer = training_answer(TrainSetup("llama-2-70b"), "t4-16gb")
    assert "No choice of optimizer, checkpointing and recipe fits" in answer.sentence
    assert not list(changes_that_fit(TrainSetup("llama-2-70b"), device("t4-16gb").capacity_bytes))


@pytest.mark.parametrize("gpu", DEVICES)
def test_fits_and_spare_bytes_are_true_on_every_device(gpu):
    for model, sequence in (("gpt2", 256), ("llama-2-7b", 2048), ("llama-2-70b", 2048)):
        answer = training_answer(TrainSetup(model, sequence=sequence), gpu)
        assert answer.sentence.startswith("Fits") == (answer.parts.total <= answer.capacity_bytes)


@pytest.mark.parametrize("answer", [training_answer, serving_answer])
def test_fits_is_decided_by_the_byte(answer):
    setup = {training_answer: TrainSetup, serving_answer: ServeSetup}[answer]("llama-3-8b")
    need = answer(setup).parts.total
    exact, short = (SimpleNamespace(title="GPU", capacity_bytes=size) for size in (need, need - 1))
    module = sys.modules[answer.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "device", lambda gpu: gpu)
        assert answer(setup, exact).sentence.startswith("Fits the GPU with 0 B to spare")
        assert answer(setup, short).sentence.startswith("Does not fit the GPU: 1 B too much")


@pytest.mark.parametrize(("name", "gpu"), [("llama-3-8b", "rtx-4090-24gb"), ("gemma-2-9b", "l40s-48gb")])
def test_the_users_that_would_fit_do_and_one_more_does_not(name, gpu):
    setup = ServeSetup(name, users=500, context=8000)
    sentence = serving_answer(setup, gpu).sentence
    users = int(sentence.partition("At this context ")[2].split()[0].replace(",", ""))
    needs = [budget.serve(replace(setup, users=count)).peak_bytes for count in (users, users + 1)]
    assert needs[0] <= device(gpu).capacity_bytes < needs[1]


def test_the_formula_names_every_part_and_the_peak():
    for choices in CHOICES:
        answer = CALCULATOR.answer(**choices)
        assert [line.split()[0] for line in answer.formula] == [*answer.parts, "peak"]


def test_an_error_is_shown_and_escaped_not_raised():
    html = CALCULATOR.render({**CALCULATOR.start, "model": "<script>"})
    assert "unknown model" in html
    assert "<script>" not in html


def test_an_unknown_control_is_refused():
    with pytest.raises(WorkbookError, match="no control named 'colour'"):
        CALCULATOR.answer(colour="red")


@pytest.mark.parametrize(
    ("calculator", "start"),
    [(training_memory, {"gpu": "h100", "micro_batch": 3}), (roofline, {"gpu": "h100", "tokens": 148})],
)
def test_a_start_beside_the_choices_joins_them(calculator, start):
    started = calculator(**start)
    assert started.options["gpu"][1][0] == "h100"
    grid, output = started.widget().children
    assert {name: control.value for name, control in zip(started.options, grid.children, strict=True)} == started.start
    assert output.value == started.answer().as_html()
    name = next(name for name in start if name != "gpu")
    numbers = started.options[name][1]
    assert (numbers == sorted(numbers), start[name] in numbers) == (True, True)


@pytest.mark.parametrize("calculator", [training_memory, roofline])
def test_a_start_for_no_control_and_a_bad_one(calculator):
    with pytest.raises(WorkbookError, match="did you mean 'gpu'"):
        calculator(gpus="h100")
    bad = calculator(gpu="h1000")
    assert 'class="error"' in bad.widget().children[1].value
    with pytest.raises(WorkbookError, match="unknown device 'h1000'"):
        bad.answer()


def displayed(calculator, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    calculator._ipython_display_()
    return shown[0]


@pytest.mark.parametrize("calculator", [CALCULATOR, roofline()], ids=["training_memory", "roofline"])
def test_a_stored_notebook_holds_text_and_two_pictures(calculator, monkeypatch):
    """PNG beside SVG: JupyterLab shows no SVG of a notebook that it does not trust, such as a fresh clone's."""
    bundle, answer = displayed(calculator, monkeypatch), calculator.answer()
    assert bundle["text/plain"] == str(answer) == repr(calculator)
    assert bundle["image/svg+xml"] == answer.picture.svg
    assert b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert "model_id" in bundle["application/vnd.jupyter.widget-view+json"]


def test_without_ipywidgets_text_and_picture_remain(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert set(displayed(CALCULATOR, monkeypatch)) == {"text/plain", "image/svg+xml", "image/png"}


def test_moving_a_control_redraws():
    box = CALCULATOR.widget()
    grid, output = box.children
    controls = {control.description: control for control in grid.children}
    assert list(controls) == [text for text, _ in CALCULATOR.options.values()]
    before = output.value
    controls["micro-batch"].value = 4
    assert output.value == CALCULATOR.render({**CALCULATOR.start, "micro_batch": 4}) != before
    controls["model"].value = "gpt2"
    assert "position for 1,024 tokens" in output.value
    controls["model"].value, controls["micro-batch"].value = CALCULATOR.start["model"], 1
    assert output.value == before
