"""The service's planner: the plan of the command, a frontier without beaten plans, and an answer where none is."""

import itertools
import json
import shlex

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.lesson.calculators import service_planner, service_planner_answer

ANSWER = service_planner_answer("llama-3.1-8b", cards=8, users=300, latency=40)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"latency": 20},
        {"users": 10},
        {"context": 4096},
        {"formats": "16 bits"},
        {"formats": "8 bits too", "price": "1.00"},
    ],
    ids=str,
)
def test_the_command_prints_the_same_plan_first(changes, capsys):
    answer = service_planner_answer("llama-3.1-8b", **{"cards": 8, "users": 300, "latency": 40, **changes})
    assert answer.in_time
    program, *words = shlex.split(answer.command)
    capsys.readouterr()
    assert (program, main([*words, "--json"])) == ("workbook", 0)
    first = json.loads(capsys.readouterr().out)["plans"][0]
    plan, figures = answer.plan, answer.figures
    assert (first["cards"], first["replicas"], first["users_each"]) == (plan.ranks, plan.replicas, plan.users)
    assert (first["layout"]["weights"], first["layout"]["kv"]) == (plan.layout.weights, plan.layout.kv)
    assert (first["next_token_s"]["middle"], first["rank_bytes"]) == (figures["next_token_s"], figures["rank_bytes"])
    assert first["dollars_per_hour"] == pytest.approx(figures["dollars_per_hour"])


def test_whatever_is_dearer_is_quicker():
    plans = service_planner_answer("llama-3.1-8b", cards=32, users=500).found.plans
    assert len(plans) > 3
    for before, after in itertools.pairwise(plans):
        assert before.per_hour < after.per_hour
        assert before.between_tokens.middle > after.between_tokens.middle


def test_fewer_milliseconds_move_the_point_to_more_cards():
    tight = service_planner_answer("llama-3.1-8b", cards=8, users=300, latency=20)
    assert tight.plan.ranks > ANSWER.plan.ranks
    assert tight.found.plans == ANSWER.found.plans
    assert "which is too long" in tight.sentence


def test_more_bits_that_are_as_cheap_are_taken_and_the_quicker_format_is_told():
    answer = service_planner_answer("llama-3.1-8b", cards=8, users=30, latency=50)
    assert answer.plan.layout.compromises == ()
    assert answer.plan not in answer.found.plans
    assert "At the same price weights in fp8-e4m3" in answer.sentence


def test_a_limit_that_nothing_keeps_gets_the_quickest_and_says_so(capsys):
    slow = service_planner_answer("llama-3.1-8b", cards=1, users=100, latency=10)
    assert (slow.in_time, slow.plan) == (False, slow.found.plans[-1])
    assert slow.title.endswith(", too slow")
    assert "gives each user a token within 10 ms" in slow.sentence
    assert main(shlex.split(slow.command)[1:]) == 1
    assert "No plan" in capsys.readouterr().out


def test_where_nothing_holds_the_users_the_least_number_of_cards_does_and_one_less_does_not():
    with pytest.raises(WorkbookError, match="the least that would do") as refused:
        service_planner_answer("llama-3.1-70b", cards=1, users=100)
    least = int(refused.value.do.split()[1])
    assert service_planner_answer("llama-3.1-70b", cards=least, users=100, latency=500).found.plans[0].ranks == least
    with pytest.raises(WorkbookError):
        service_planner_answer("llama-3.1-70b", cards=least - 1, users=100, latency=500)


def test_money_scales_with_the_price_alone():
    dear = service_planner_answer("llama-3.1-8b", cards=8, users=300, latency=40, price="7.98")
    assert dear.figures["dollars_per_hour"] == pytest.approx(2 * ANSWER.figures["dollars_per_hour"])
    assert dear.figures["next_token_s"] == ANSWER.figures["next_token_s"]


@pytest.mark.parametrize(
    "bad", [{"price": "cheap"}, {"cards": 0}, {"users": 0}, {"latency": 0}, {"formats": "2 bits"}, {"gpu": "h1000"}]
)
def test_nonsense_is_refused(bad):
    with pytest.raises(WorkbookError):
        service_planner_answer(**{"model": "llama-3.1-8b", **bad})


def test_the_live_calculator_stands_on_the_same_answer():
    live = service_planner(model="llama-3.1-8b", cards=8, users=300, latency=40)
    assert str(live.answer()) == str(ANSWER)
