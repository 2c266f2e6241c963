"""`workbook estimate offload`: the calculator's own answer, and flags that are told when they are wrong."""

import json

import pytest

from helpers.catalog import ServeSetup, TrainSetup
from helpers.catalog.errors import WorkbookError
from helpers.catalog.split import Split
from helpers.cli import main
from helpers.lesson.calculators import offload_serving_answer, offload_training_answer
from tests.cli_errors import require_told

SERVE = ["estimate", "offload", "serve", "--model", "llama-3-70b", "--weights", "fp8-e4m3"]
ON = [*SERVE, "--gpu", "rtx-4090"]
TRAIN = ["estimate", "offload", "train", "--model", "llama-2-70b", "--precision", "megatron-bf16"]
STATES = [*TRAIN, "--zero", "3", "--ranks", "8", "--checkpointing", "full", "--optimizer", "adamw-fused"]
HOST = [*STATES, "--gpu", "h100", "--offload-optimizer", "cpu", "--offload-parameters", "cpu"]
BAD = [
    (["estimate", "offload", "fly"], "unknown command 'fly'"),
    (SERVE, "--gpu"),
    ([*ON, "--from", "desktop-darm"], "did you mean 'desktop-dram'?"),
    ([*ON, "--step", "trian"], "unknown step 'trian'"),
    ([*ON, "--buffers", "3"], "buffers is 3"),
    ([*ON, "--efficiency", "1.1"], "efficiency is 1.1"),
    ([*ON, "--efficiency", "1e-1"], "not a decimal number"),
    ([*ON, "--reserve", "-1"], "reserve is -1"),
    ([*ON, "--host", "desktop"], "unknown flag"),
    ([*SERVE, "--gpu", "m4-max"], "CPU and GPU share one memory"),
    ([*STATES, "--gpu", "h100"], "offloads nothing"),
    ([*STATES, "--gpu", "h100", "--offload-optimizer", "nvme"], "none is named"),
    ([*HOST, "--host", "990-pro"], "no memory of a host"),
    ([*HOST, "--disk", "desktop-darm"], "unknown tier 'desktop-darm'"),
    ([*HOST, "--ranks-per-host", "0"], "ranks_per_host is 0"),
    ([*HOST, "--zero", "2"], "choose zero=3"),
    ([*HOST, "--users", "3"], "unknown flag"),
]


@pytest.mark.parametrize(("argv", "told"), BAD, ids=lambda value: " ".join(value)[-40:])
def test_bad_input_is_told_on_stderr(argv, told, capsys):
    require_told(argv, told, capsys)


def test_serving_is_the_calculator_s_own_answer(capsys):
    answer = offload_serving_answer(ServeSetup("llama-3-70b", "fp8-e4m3"), "rtx-4090", source="990-pro")
    asked = [*ON, "--from", "990-pro"]
    assert main(asked) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.figures


def test_training_is_the_calculator_s_own_answer(capsys):
    places = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    run = {"checkpointing": "full", "split": Split(8, zero=3), **places}
    answer = offload_training_answer(TrainSetup("llama-2-70b", "megatron-bf16", "adamw-fused", **run), "h100")
    assert main(HOST) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    assert main([*HOST, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.figures


def test_every_flag_of_serving_arrives(capsys):
    setup = ServeSetup("llama-3-70b", "fp8-e4m3", "fp8-e5m2", 7, 640, ["lm_head"])
    flags = ["--kv", "fp8-e5m2", "--users", "7", "--context", "640", "--skipped", "lm_head", "--step", "prefill"]
    way = ["--from", "sata", "--buffers", "1", "--efficiency", "0.35", "--reserve", "3000", "--json"]
    assert main([*ON, *flags, *way]) == 0
    answer = offload_serving_answer(setup, "rtx-4090", "prefill", "sata", 1, 0.35, 3000 * 2**20)
    assert json.loads(capsys.readouterr().out) == answer.figures


def test_every_flag_of_training_arrives(capsys):
    setup = TrainSetup(
        "gpt2", "bf16", "lion", 3, 512, "full", split=Split(6, zero=2), offload_optimizer="nvme", micro_batches=5
    )
    run = ["--model", "gpt2", "--precision", "bf16", "--optimizer", "lion", "--micro-batch", "3", "--sequence", "512"]
    spread = ["--checkpointing", "full", "--zero", "2", "--ranks", "6", "--offload-optimizer", "nvme"]
    way = ["--accumulate", "5", "--host", "desktop", "--disk", "t705", "--ranks-per-host", "2", "--efficiency", "0.35"]
    asked = ["estimate", "offload", "train", *run, *spread, *way, "--gpu", "l40s", "--reserve", "3000", "--json"]
    assert main(asked) == 0
    answer = offload_training_answer(setup, "l40s", "desktop", "t705", 2, 0.35, 3000 * 2**20)
    assert json.loads(capsys.readouterr().out) == answer.figures


@pytest.mark.parametrize("name", ["LiquidAI/LFM2-1.2B", "MiniMaxAI/MiniMax-M2"])
def test_layers_that_are_not_known_one_by_one_are_not_streamed(name):
    """Their bytes were all called resident, and their work was divided by zero."""
    with pytest.raises(WorkbookError, match="not known one by one"):
        offload_serving_answer(ServeSetup(name), "h100")
