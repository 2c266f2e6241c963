"""`workbook plan`: the commands of the README run, JSON has every figure, bad input is told in three parts."""

import json

import pytest

from helpers.cli import main

TRAIN = ["plan", "train", "llama-3.1-8b", "--tokens", "1e9", "--cards", "h100=8", "--deadline", "24h"]
SERVE = [
    "plan",
    "serve",
    "llama-3.1-70b",
    "--users",
    "200",
    "--context",
    "8192",
    "--latency",
    "50ms",
    "--cards",
    "h100=8,h200=4",
]


def test_a_training_plan_is_a_table_and_its_story(capsys):
    assert main(TRAIN) == 0
    told = capsys.readouterr().out
    for words in ("The cheapest plan takes", "What limits it", "What breaks first", "The next cheaper layout fails"):
        assert words in told


def test_a_serving_plan_is_a_table_and_its_story(capsys):
    assert main(SERVE) == 0
    told = capsys.readouterr().out
    for words in ("The first token comes after", "dollars a card and hour", "What breaks first"):
        assert words in told


def test_json_has_bytes_by_part_and_intervals(capsys):
    assert main([*TRAIN, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plans"][0]
    assert sum(plan["parts"].values()) == plan["peak_bytes"]
    assert plan["step_s"]["low"] < plan["step_s"]["middle"] < plan["step_s"]["high"]
    assert main([*SERVE, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plans"][0]
    assert sum(plan["parts"].values()) == plan["rank_bytes"]


def test_an_impossible_goal_ends_with_1_and_the_least_that_would_do(capsys):
    assert main(["plan", "serve", "llama-3.1-405b", "--weights", "bf16", "--cards", "h100=4"]) == 1
    assert "The least that would do" in capsys.readouterr().out


def test_a_price_of_ones_own_counts(capsys):
    main([*TRAIN, "--price", "h100=1", "--json"])
    own = json.loads(capsys.readouterr().out)["plans"][0]
    assert own["dollars"]["middle"] == pytest.approx(own["hours"]["middle"] * own["cards"])


def test_files_are_written(tmp_path, capsys):
    assert main([*TRAIN, "--write", str(tmp_path / "run")]) == 0
    assert list((tmp_path / "run").iterdir())
    assert "wrote " in capsys.readouterr().out


def test_json_says_what_was_confirmed_and_written(tmp_path, capsys):
    words = [*TRAIN, "--json", "--confirm", "--write", str(tmp_path / "run")]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["confirmed"]["predicted_bytes"] == told["plans"][0]["peak_bytes"]
    assert told["confirmed"]["traced_bytes"] or told["confirmed"]["why"]
    assert told["written"]


@pytest.mark.parametrize(
    "bad",
    [
        "--cards h100",
        "--cards h100=x",
        "--cards h100=0",
        "--cards ,",
        "--cards h100=8 --price h100=free",
        "--cards h100=8 --deadline soon",
        "--cards h100=8 --tokens 1.5",
        "--cards h100=8 --efficiency 0.5",
        "--cards h100=8 --efficiency 0.5,0.4,0.3",
        "--cards h1000=8",
        "--cards t4=8",
    ],
)
def test_bad_input_is_told_in_three_parts(bad, capsys):
    assert main(["plan", "train", "llama-3.1-8b", "--tokens", "1e9", *bad.split()]) == 2
    told = capsys.readouterr().err
    assert "expected: " in told
    assert "do: " in told
