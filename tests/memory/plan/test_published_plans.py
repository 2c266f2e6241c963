"""Published runs: the planner calls them feasible, has their bytes within 3 %, and their seconds in its interval."""

import json
from dataclasses import replace

import pytest

from helpers.memory.plan.published import published, score, services, summary

RUNS = {run.name: run for run in published()}
KNOWN = [run for run in published() if run.layout]
WHOLE = [run for run in published() if not run.layout and (run.card_hours or run.step_s)]


def test_every_published_run_has_its_source():
    assert len(RUNS) == len(published()) == 60
    assert all(len(run.source) > 3 for run in published())


@pytest.mark.parametrize("run", KNOWN, ids=lambda run: run.name)
def test_a_known_layout_is_feasible_with_its_bytes_and_its_seconds(run):
    found = score(run)
    assert found.error is None or abs(found.error) < 0.03
    assert found.is_miss == bool(run.miss)
    assert found.feasible or "1F1B" in run.miss


@pytest.mark.parametrize("run", WHOLE, ids=lambda run: run.name)
def test_a_whole_run_is_feasible_and_the_best_plan_no_dearer_or_a_miss_has_its_reason(run):
    """A reason that is no longer needed fails as well: what was repaired leaves the list."""
    assert score(run).is_miss == bool(run.miss)


@pytest.mark.parametrize("service", services(), ids=lambda service: service.name)
def test_a_published_service_has_a_plan_on_its_cards(service):
    assert service.plan is not None
    assert service.plan.ranks <= service.cards


def test_deepseek_v3_is_planned_at_a_little_more_than_fp8_cost():
    found = score(RUNS["DeepSeek-V3"])
    assert found.feasible
    assert found.best.layout.expert > 1
    assert 1 < found.cost_ratio.middle < 1.3


def test_the_command_prints_each_run_and_the_sum(monkeypatch, capsys):
    from helpers.cli import main

    monkeypatch.setattr("helpers.memory.plan.published.published", lambda: tuple(KNOWN[:2]))
    monkeypatch.setattr("helpers.memory.plan.published.services", lambda: services()[:1])
    assert main(["accuracy", "--only", "plans"]) == 0
    told = capsys.readouterr().out
    assert KNOWN[0].name in told
    assert "2 of 2 runs are called feasible." in told
    assert main(["accuracy", "--only", "plans", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [run.name for run in KNOWN[:2]]
    assert abs(rows[0]["error"]) < 0.01


def test_what_the_planner_gets_right_is_summed_up():
    found = [score(run) for run in KNOWN[:2]]
    lost = replace(found[0], feasible=False, predicted_gib=2 * found[0].run.peak_gib)
    told = summary([*found, lost])
    assert "2 of 3 runs are called feasible." in told
    assert "2 of 3 published peaks are within 10 %, the worst 100.00% off." in told
    assert lost.is_miss
    assert not found[0].is_miss
    assert replace(found[0], feasible=False).is_miss


@pytest.mark.parametrize("name", [run.name for run in published() if "FSDP" in run.name])
def test_torchtitans_runs_are_feasible_on_their_cards(name):
    assert score(RUNS[name]).feasible
