"""`workbook estimate kv`: the calculator's own answer, and errors on stderr."""

import json

import pytest

from helpers.catalog import ServeSetup
from helpers.cli import main
from helpers.lesson.calculators import kv_cache_answer
from tests.cli_errors import require_told

KV = ["estimate", "kv", "llama-3-8b"]
RUN = [
    "--users",
    "64",
    "--context",
    "4096",
    "--weights",
    "int4-g128",
    "--kv",
    "fp16",
    "--cache",
    "int4",
    "--tensor-parallel",
    "2",
    "--gpu",
    "h100",
]
ANSWER = kv_cache_answer(ServeSetup("llama-3-8b", "int4-g128", "fp16", 64, 4096), "h100", "int4", 2)
BAD = [
    (["estimate", "kv"], "no model"),
    ([*KV, "--model", "gpt2"], "a model twice"),
    (["estimate", "kv", "lama-3-8b"], "did you mean 'llama-3-8b'?"),
    ([*KV, "--kv", "fp9"], "unknown KV cache format 'fp9'"),
    ([*KV, "--kv", "nf4"], "unknown KV cache format 'nf4'"),
    ([*KV, "--cache", "int5"], "did you mean 'int"),
    ([*KV, "--cache", ""], "unknown KV cache ''"),
    ([*KV, "--cache", "window"], "a window cache without window"),
    ([*KV, "--cache", "static:512"], "reserves, moves or chooses"),
    ([*KV, "--users", "0"], "users is 0"),
    ([*KV, "--users", "1_000"], "is not a whole number"),
    ([*KV, "--context", "-1"], "context is -1"),
    (["estimate", "kv", "gpt2", "--context", "2048"], "position for 1,024 tokens"),
    ([*KV, "--tensor-parallel", "0"], "tensor_parallel is 0"),
    ([*KV, "--tensor-parallel", "3"], "pass tensor_parallel=2"),
    ([*KV, "--gpu", "h1000"], "as 12GiB"),
    ([*KV, "--ranks", "2"], "unknown flag"),
]


@pytest.mark.parametrize(("argv", "told"), BAD, ids=lambda value: " ".join(value)[-40:])
def test_bad_input_is_told_on_stderr(argv, told, capsys):
    require_told(argv, told, capsys)


def test_the_command_is_the_calculator_s_own_answer(capsys):
    assert main([*KV, *RUN]) == 0
    assert capsys.readouterr().out == f"{ANSWER}\n"
    assert main(["estimate", "kv", "--model", "llama-3-8b", *RUN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER.figures


def test_the_defaults_are_those_of_estimate_serve(capsys):
    assert main([*KV, "--json"]) == main(["estimate", "serve", "--model", "llama-3-8b", "--json"]) == 0
    own, serve = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert own["peak_bytes"] == sum(serve["held"].values()) < serve["peak_bytes"] == max(serve["moments"].values())
    assert own["kv_bytes_per_token"] == serve["kv_bytes_per_token"]
    assert own["users_that_fit"] is None


def test_layers_that_keep_nothing_are_left_out(capsys):
    """Nemotron-Nano-9B: 25 of 56 layers are MLPs; 27 states of 5,341,184 bytes and 4 layers of K and V are kept."""
    assert main(["estimate", "kv", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"]) == 0
    text = capsys.readouterr().out
    assert "states        137.53 MiB   27 layers" in text
    assert "full layers    32.00 MiB   2 × 4 layers × 8 KV heads" in text
    assert len([line for line in text.splitlines() if "layers" in line[:14] or line.startswith("states")]) == 2


@pytest.mark.parametrize("command", [["kv"], ["quantize", "--weights", "bf16"]])
@pytest.mark.parametrize("name", ["ibm-granite/granite-4.0-h-small", "moonshotai/Kimi-Linear-48B-A3B-Instruct"])
def test_experts_that_only_transformers_knows_have_no_rate(command, name, capsys):
    """Of Kimi-Linear's 48 B parameters a token uses 3 B: all of them would be a floor 16 times too high."""
    argv = ["estimate", *command, "--model", name, "--gpu", "b300"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "not known" in text
    assert "tokens/s" not in text
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rates = ("seconds_per_step", "tokens_per_s", "tokens_per_s_each", "read_bytes", "seconds_per_token", "decode_bytes")
    assert {found.get(name) for name in rates} == {None}


def test_a_dense_hybrid_that_only_transformers_knows_keeps_its_rate(capsys):
    assert main(["estimate", "kv", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "--gpu", "h100"]) == 0
    assert "tokens/s" in capsys.readouterr().out
