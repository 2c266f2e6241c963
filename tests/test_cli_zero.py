"""`workbook estimate zero`, and the flags of ZeRO and offload in `estimate train`."""

import json

import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.split import Split
from helpers.cli import main
from helpers.lesson.calculators import zero_answer
from helpers.memory import budget
from tests.cli_errors import require_told

ZERO = ["estimate", "zero", "llama-2-70b"]
RUN = [
    "--zero",
    "3",
    "--ranks",
    "16",
    "--precision",
    "megatron-bf16",
    "--optimizer",
    "adamw-fused",
    "--checkpointing",
    "full",
    "--offload-optimizer",
    "cpu",
]
SETUP = TrainSetup(
    "llama-2-70b",
    "megatron-bf16",
    "adamw-fused",
    checkpointing="full",
    split=Split(16, zero=3),
    offload_optimizer="cpu",
)
BAD = [
    (["estimate", "train", "--model", "tiny-llama", "--fsdp", "2", "--ranks", "4"], "counts those of all dimensions"),
    (["estimate", "train", "--model", "tiny-llama", "--fsdp", "2", "--lora-rank", "8"], "ask for one GPU"),
    (["estimate", "train", "--model", "tiny-llama", "--pipeline", "2"], "--accumulate 4"),
    (["estimate", "train", "--model", "tiny-llama", "--rank", "1"], "0 to 0"),
    (["estimate", "zero"], "no model"),
    ([*ZERO, "--model", "gpt2"], "a model twice"),
    (["estimate", "zero", "lama-2-70b"], "did you mean 'llama-2-70b'?"),
    (["estimate", "zero", "mixtral-8x7b", "--checkpointing", "offload"], "no closed form"),
    ([*ZERO, "--zero", "4"], "zero is 4"),
    ([*ZERO, "--ranks", "0"], "ranks is 0"),
    ([*ZERO, "--offload-optimizer", "cpu"], "choose zero=1"),
    ([*ZERO, "--zero", "2", "--offload-parameters", "nvme"], "choose zero=3"),
    ([*ZERO, "--zero", "3", "--offload-parameters", "disk"], "none, cpu, nvme"),
    ([*ZERO, "--link", "nvlink"], "of no GPU"),
    ([*ZERO, "--gpu", "h100", "--link", "nvlnk"], "did you mean 'nvlink'?"),
    ([*ZERO, "--gpu", "h100", "--link", "0"], "rate is 0"),
    ([*ZERO, "--gpu", "h100", "--link", "-3"], "unknown link"),
    ([*ZERO, "--gpu", "h100", "--link", "1e9"], "unknown link"),
    ([*ZERO, "--gpu", "h100", "--link", ""], "unknown link"),
    ([*ZERO, "--gpu", "h1000"], "as 12GiB"),
    ([*ZERO, "--users", "3"], "unknown flag"),
    (["estimate", "train", "--model", "gpt2", "--offload-optimizer", "nvme"], "choose zero=1"),
]


@pytest.mark.parametrize(("argv", "told"), BAD, ids=lambda value: " ".join(value)[-40:])
def test_bad_input_is_told_on_stderr(argv, told, capsys):
    require_told(argv, told, capsys)


def test_the_command_is_the_calculator_s_own_answer(capsys):
    asked = [*ZERO, *RUN, "--gpu", "a100-80gb"]
    assert main(asked) == 0
    assert capsys.readouterr().out == f"{zero_answer(SETUP, 'a100-80gb')}\n"
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == zero_answer(SETUP, "a100-80gb").figures


def test_a_link_is_a_name_or_gigabytes_a_second(capsys):
    for given, link in (("12.5", 12.5e9), ("pcie", "pcie")):
        assert (
            main(["estimate", "zero", "--model", "llama-2-70b", *RUN, "--gpu", "h100", "--link", given, "--json"]) == 0
        )
        assert json.loads(capsys.readouterr().out)["link_s"] == zero_answer(SETUP, "h100", link).link_s


def test_estimate_train_takes_the_same_flags(capsys):
    assert main(["estimate", "train", "--model", "llama-2-70b", *RUN, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["peak_bytes"] == budget.train(SETUP, "a100-80gb").peak_bytes
    assert said["parts"]["optimizer"] == 0
