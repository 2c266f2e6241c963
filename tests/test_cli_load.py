"""`workbook estimate load`: the calculator's own answer, and flags that are told when they are wrong."""

import json

import pytest

from helpers.cli import main
from helpers.lesson.calculators import Efficiencies, Workload, serving_load_answer
from helpers.techniques.scheduling import Policy, nim
from tests.cli_errors import require_told

LOAD = ["estimate", "load", "--model", "llama-3-70b", "--weights", "fp8-e4m3", "--kv", "fp8-e4m3"]
ON = [*LOAD, "--gpu", "h100", "--tensor-parallel", "2"]
NIM = [*ON, "--mix", "nim", "--clients", "50"]
BAD = [
    (LOAD, "--gpu"),
    (ON, "no lengths"),
    ([*ON, "--prompt", "500"], "no lengths"),
    ([*NIM, "--answer", "5"], "lengths twice"),
    ([*ON, "--mix", "caht", "--clients", "5"], "did you mean 'chat'?"),
    ([*ON, "--mix", "chat"], "no load"),
    ([*NIM, "--requests-per-s", "1"], "a load twice"),
    ([*ON, "--mix", "nim", "--requests-per-s", "1e9"], "not a decimal number"),
    ([*ON, "--mix", "nim", "--requests-per-s", "3"], "at most 1.96"),
    ([*NIM, "--admission", "nwo"], "did you mean 'now'?"),
    ([*NIM, "--efficiencies", "rond"], "did you mean 'round'?"),
    ([*NIM, "--memory-efficiency", "1.1"], "memory efficiency is 1.1"),
    ([*NIM, "--reserve", "-1"], "reserve is -1"),
    ([*NIM, "--free-share", "0"], "free_share is 0"),
    ([*NIM, "--users", "3"], "unknown flag"),
]


@pytest.mark.parametrize(("argv", "told"), BAD, ids=lambda value: " ".join(value)[-40:])
def test_bad_input_is_told_on_stderr(argv, told, capsys):
    require_told(argv, told, capsys)


def test_the_command_is_the_calculator_s_own_answer(capsys):
    answer = serving_load_answer(nim.setup(), "h100", Workload(5000, 500, 50), tensor_parallel=2)
    assert main(NIM) == 0
    assert capsys.readouterr().out == f"{answer}\n"
    assert main([*NIM, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.figures


def test_every_flag_arrives(capsys):
    asked = [*ON, "--prompt", "900", "--answer", "90", "--requests-per-s", "1.5", "--answer-limit", "300"]
    policy = ["--shared", "64", "--token-budget", "600", "--admission", "now", "--max-running", "40"]
    shares = ["--efficiencies", "round", "--compute-efficiency", "0.4", "--overhead-ms", "5.5"]
    room = ["--reserve", "3000", "--free-share", "0.8", "--json"]
    assert main([*asked, *policy, *shares, *room]) == 0
    answer = serving_load_answer(
        nim.setup(),
        "h100",
        Workload(900, 90, requests_per_s=1.5, answer_limit=300, shared=64),
        Policy(token_budget=600, admission="now", max_running=40),
        Efficiencies(0.7, 0.4, 0.0055),
        2,
        3000 * 2**20,
        0.8,
    )
    assert json.loads(capsys.readouterr().out) == answer.figures


def test_the_longest_answer_is_reserved_to_the_end(capsys):
    assert main([*NIM, "--answer-limit", "2000", "--json"]) == 0
    answer = serving_load_answer(nim.setup(), "h100", Workload(5000, 500, 50, answer_limit=2000), tensor_parallel=2)
    assert json.loads(capsys.readouterr().out) == answer.figures


def test_a_model_with_few_positions_needs_no_context_flag(capsys):
    assert main(["estimate", "load", "--model", "gpt2", "--gpu", "h100", "--mix", "chat", "--clients", "4"]) == 0
    assert "4 clients of gpt2" in capsys.readouterr().out
