"""The causes that chapter 14 names, each beside its control: only the supposed cause is changed, the effect goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.small_lm import load
from helpers.techniques import paging, scheduling
from helpers.techniques.scheduling import MeanStep, Policy, Roofline, ScheduledEngine, batching, simulate, steady
from tests.course import prose_numbers_14 as numbers
from tests.course.prose_numbers_14 import CARD, CHAT, SMALL, faster, first_tokens, prefill, seconds

TEN_TIMES = {
    "memory": replace(CARD, bytes_per_s=10 * CARD.bytes_per_s),
    "arithmetic": replace(CARD, flops_per_s=10 * CARD.flops_per_s),
}


def pause(roof: Roofline) -> float:
    return seconds(200, chunk=8000, roof=roof)


def test_a_whole_prompt_s_pause_is_arithmetic_and_no_lack_of_memory():
    assert pause(TEN_TIMES["memory"]) == pause(CARD)
    assert pause(TEN_TIMES["arithmetic"]) < pause(CARD) / 5


def test_continuous_batching_gains_by_different_lengths_alone():
    answers = [one.new_tokens for one in CHAT]
    same = [round(sum(answers) / len(answers))] * len(answers)
    static, continuous = batching.static_forwards(answers, 8), batching.continuous_forwards(answers, 8)
    assert static > 1.8 * continuous
    assert batching.static_forwards(same, 8) == batching.continuous_forwards(same, 8)


def test_a_small_budget_is_slow_for_those_who_run_and_not_for_being_small():
    assert prefill(256)[1] > 4 * prefill(256, users=1)[1]
    assert prefill(256 + 199, users=200)[1] < prefill(256)[1] / 2


def gain_of_room(cached: int) -> float:
    return numbers.given(322, cached).tokens_per_s / numbers.given(161, cached).tokens_per_s


def test_room_pays_where_prompts_are_found_or_arithmetic_is_plenty():
    assert gain_of_room(0) < 1.1
    assert gain_of_room(7000) > 1.3
    plenty = [steady(TEN_TIMES["arithmetic"], n, n, 7692, 500, 8192).tokens_per_s for n in (161, 322)]
    assert plenty[1] > 1.3 * plenty[0]


def ratio(limit: int | None) -> float:
    chats = scheduling.at_once(CHAT)
    arrivals = scheduling.limited(chats, limit) if limit else chats
    ran = [
        simulate(arrivals, Policy(token_budget=1024, admission=admission), CARD, blocks=1000).tokens_per_s
        for admission in ("now", "to-the-end")
    ]
    return ran[0] / ran[1]


def test_caution_is_dear_for_limits_that_nobody_reaches():
    assert ratio(1024) > 2.2
    assert ratio(None) < 1.2
    ran = [
        simulate(scheduling.limited(scheduling.at_once(CHAT), limit), Policy(token_budget=1024), CARD, blocks=1000)
        for limit in (1024, 600)
    ]
    assert ran[0].served == ran[1].served  # *now* reads no limit


def test_a_draft_slows_a_crowd_for_the_arithmetic_of_checks():
    tokens = 1 + 0.7 + 0.49 + 0.343 + 0.2401
    drafting = 4 * seconds(200, roof=SMALL)
    quick = TEN_TIMES["arithmetic"]
    gain = tokens * seconds(200, roof=quick) / (seconds(200, each=5, roof=quick) + drafting)
    assert faster(200) < 1 < gain
    assert faster(200, right=0.8) > 1
    assert faster(200, proposals=1) > faster(200, proposals=2) > faster(200, proposals=4)
    assert faster(1, proposals=4) > faster(1, proposals=2) > faster(1, proposals=1)


def test_prompts_apart_come_later_for_the_queue_of_one_machine_and_not_for_the_transfer():
    assert first_tokens("apart") > first_tokens("both") + 0.05
    assert first_tokens("no transfer") == pytest.approx(first_tokens("apart"), abs=1e-3)
    assert first_tokens("half, apart") < first_tokens("half, both") < first_tokens("both")


def long_pause(policy: Policy) -> float:
    people = paging.chat(100, seed=1).requests
    texts = paging.documents(20, seed=1, document=3000, answer=100, max_tokens=8192).requests
    both = scheduling.mixed(scheduling.poisson(people, 10, 1, user="chat"), scheduling.poisson(texts, 2, 101, user="b"))
    return max(one.longest_gap_s for one in simulate(both, policy, CARD, blocks=25_000).of_user("chat"))


def test_pauses_are_what_a_step_contains():
    """Whole prompts in steps without decodes, whole ones beside them, chunks; an order alone changes nothing."""
    whole, order = (long_pause(Policy(max_prefill_tokens=8192, order=order)) for order in ("fcfs", "priority"))
    beside, chunks = (long_pause(Policy(token_budget=budget)) for budget in (8192, 1024))
    assert whole > 1.3 * beside > 2.5 * chunks
    assert order > 0.9 * whole


@pytest.mark.parametrize("wrong", [0.0, 3.0])
def test_a_draft_changes_no_token_however_bad_it_is(wrong):
    network, draft = load().model, load().model
    network.generation_config.eos_token_id = None
    with torch.no_grad():
        for weight in draft.parameters():
            weight += wrong * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    requests = paging.chat(6, seed=2, system=24, message=20, answer=16, vocab=100, max_tokens=128).requests
    made = []
    for options in ({}, {"draft": draft}):
        policy = Policy(max_running=4, token_budget=64, drafts=4 if options else 0)
        engine = ScheduledEngine(network, 256, policy, block_size=8, prefix=False, **options)
        made.append([one.tokens for one in engine.run(scheduling.at_once(requests))])
    assert made[0] == made[1]
    share = engine.scheduler.accepted / engine.scheduler.proposed
    assert share == 1 if not wrong else share < 0.3


def test_decoding_checks_five_tokens_for_the_time_of_one_while_weights_are_read():
    one, five = (CARD.seconds(MeanStep(n, 4096, n * 4096)) for n in (1, 5))
    assert one == five
