"""`workbook estimate serve --engine`: an engine's pool in text and JSON, and what is refused."""

from __future__ import annotations

import json
import shlex

import pytest

from helpers.cli import main
from tests.cli_errors import require_told

SERVE = ["estimate", "serve", "--model", "qwen3-8b", "--gpu", "h100"]
LOGGED = [*SERVE, "--engine", "vllm", "--engine-version", "0.19", "--share", "0.95"]
GIB = 2**30


def figures(argv: list[str], capsys) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_figures_are_those_that_vllm_0_19_logged(capsys) -> None:
    """Qwen3-8B on an H100 at 0.95: 15.27, 2.21, 0.25, 57.50 GiB, 418,688 tokens."""
    found = figures(LOGGED, capsys)
    names = ("weight_bytes", "profile_bytes", "outside_torch_bytes", "pool_bytes")
    assert [found[name] / GIB for name in names] == pytest.approx([15.27, 2.21, 0.25, 57.5], rel=0.002)
    assert found["tokens"] == pytest.approx(418_688, rel=0.001)
    taken = sum(found[name] for name in names)
    assert taken == found["share_bytes"]  # without graphs, which this version does not count


def test_the_text_says_users_and_gives_its_own_command(capsys) -> None:
    assert main([*LOGGED, "--context", "8192"]) == 0
    text = capsys.readouterr().out
    assert "51 users of 8,192 tokens" in text  # "maximum concurrency 51.11x"
    assert "read off vllm 0.19's source, and held against the logs of 40 launches" in text
    assert "vllm" in text.splitlines()[0]


def test_the_command_gives_the_same_answer(capsys) -> None:
    from helpers.catalog import ServeSetup
    from helpers.catalog.engines import engine
    from helpers.lesson.calculators import engine_answer
    from helpers.memory.serve.engines.vllm import launch

    answer = engine_answer(launch(ServeSetup("qwen3-8b", users=9), engine("vllm", "0.19"), "h100", 2, 2, 0.9, 64))
    assert answer.command is not None
    words = shlex.split(answer.command)[1:]
    assert "--engine-version" in words
    assert figures(words, capsys) == answer.figures


def test_transformers_is_as_before(capsys) -> None:
    assert main([*SERVE, "--engine", "transformers"]) == 0
    named = capsys.readouterr().out
    assert main(SERVE) == 0
    assert capsys.readouterr().out == named


def test_a_model_that_does_not_fit_does_not_start(capsys) -> None:
    assert main(["estimate", "serve", "--model", "llama-3.1-70b", "--gpu", "h100", "--engine", "vllm"]) == 0
    assert "vllm does not start" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([*SERVE, "--engine", "vlm"], "did you mean 'vllm'"),
        ([*SERVE, "--share", "0.9"], "--share without an engine"),
        ([*SERVE, "--engine-version", "0.19"], "no version"),
        ([*SERVE, "--engine", "vllm", "--fit"], "--fit with --engine vllm"),
        ([*SERVE, "--engine", "vllm", "--share", "0.995"], "pass 0.99 or less"),
        ([*SERVE, "--engine", "vllm", "--share", "1.5"], "are free"),
        ([*SERVE, "--engine", "vllm", "--tensor", "3"], "cannot share evenly"),
        ([*SERVE, "--engine", "llama.cpp", "--share", "0.5"], "--share with --engine llama.cpp"),
        ([*SERVE, "--engine", "sglang", "--pipeline", "2"], "--pipeline with --engine sglang"),
        (["estimate", "serve", "--model", "gpt2", "--context", "64", "--engine", "vllm"], "add --gpu"),
    ],
)
def test_bad_flags_are_told(argv, told, capsys) -> None:
    require_told(argv, told, capsys)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--engine", "sglang", "--share", "0.8", "--tensor", "2"], "0.8 of the"),
        (["--engine", "llama.cpp", "--users", "4"], "8,192 cells in 36 layers"),
    ],
)
def test_other_engines_say_what_is_not_counted_and_give_their_command(argv, told, capsys) -> None:
    assert main([*SERVE, *argv]) == 0
    text = capsys.readouterr().out
    assert told in text
    assert "Not counted: " in text
    found = figures([*SERVE, *argv], capsys)
    assert found["engine"] == argv[1]


def test_the_commands_of_other_engines_give_the_same_answers(capsys) -> None:
    from helpers.catalog import ServeSetup, device
    from helpers.lesson.calculators import llamacpp_answer, sglang_answer
    from helpers.memory.serve.engines.llamacpp import LlamaCpp
    from helpers.memory.serve.engines.sglang import SglangLaunch

    setup = ServeSetup("qwen3-8b", users=3)
    for answer in (
        sglang_answer(SglangLaunch(setup, device("h100"), 2, 0.8)),
        llamacpp_answer(LlamaCpp(setup), device("rtx-4090"), 0),
    ):
        assert answer.command is not None
        assert figures(shlex.split(answer.command)[1:], capsys) == answer.figures


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("google/gemma-3-27b-it", "encode images or sound is not counted"),
        ("microsoft/phi-2", "counted as one dense MLP"),
    ],
)
def test_what_the_profile_run_does_not_count_is_said(model, told, capsys) -> None:
    assert main(["estimate", "serve", "--model", model, "--context", "1024", "--gpu", "h100", "--engine", "vllm"]) == 0
    assert told in capsys.readouterr().out


def test_a_share_that_leaves_no_room_for_graphs_says_so(capsys) -> None:
    """0.19 takes them after the pool: at 0.99 of 79.22 GiB 0.28 are left, and Qwen3-8B's graphs took 0.96."""
    assert main([*SERVE, "--engine", "vllm", "--engine-version", "0.19", "--share", "0.99"]) == 0
    assert "CUDA graphs need 717" in capsys.readouterr().out
    assert main([*SERVE, "--engine", "vllm", "--engine-version", "0.20", "--share", "0.99"]) == 0
    assert "Beside the share" not in capsys.readouterr().out


def test_more_users_than_sequences_in_a_step_are_told(capsys) -> None:
    """At 256 tokens each the pool holds more than a thousand."""
    assert main([*LOGGED, "--context", "256"]) == 0
    text = capsys.readouterr().out
    assert "1,636 users of 256 tokens" in text
    assert "It runs 1,024 of them in a step at most" in text


LONG = ["--model", "llama-3.1-8b", "--context", "200000"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_no_engine_starts_with_more_tokens_than_the_model_has_positions(engine, capsys) -> None:
    assert main(["estimate", "serve", *LONG, "--gpu", "h100", "--engine", engine]) == 2
    assert "131,072 positions" in capsys.readouterr().err
    assert main(["estimate", "serve", *LONG[:3], "131072", "--gpu", "h100", "--engine", engine]) == 0


def test_scaled_positions_are_the_models_too() -> None:
    from helpers.catalog.models import model
    from helpers.memory.serve.engines.weights import longest_context

    config = {
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
        "intermediate_size": 688, "vocab_size": 5000, "max_position_embeddings": 4096,
    }  # fmt: skip
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert longest_context(model(config)) == 4096
    assert longest_context(model(config | {"rope_scaling": scaling})) == 4 * 4096


def test_without_an_engine_more_tokens_than_positions_are_told(capsys) -> None:
    assert main(["estimate", "serve", *LONG, "--gpu", "h100"]) == 0
    assert "made for 131,072 tokens" in capsys.readouterr().out


def test_a_plan_tells_or_refuses_more_tokens_than_positions(capsys) -> None:
    words = ["plan", "serve", "llama-3.1-8b", "--context", "200000", "--cards", "h100=2"]
    assert main(words) == 0
    assert "made for 131,072 tokens" in capsys.readouterr().out
    assert main([*words, "--engine", "vllm"]) == 2
    assert "131,072 positions" in capsys.readouterr().err


def test_a_pool_that_holds_no_sequence_does_not_start(capsys) -> None:
    assert main([*SERVE[:3], "qwen3-32b", "--gpu", "h100", "--engine", "vllm", "--context", "40000"]) == 0
    text = capsys.readouterr().out
    assert "vllm does not start: its pool holds" in text
    assert "wait" not in text
