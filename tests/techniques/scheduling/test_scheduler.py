"""What each policy decides: budgets, order, admission, patience; and what they cost under load."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import ServeSetup, WorkbookError
from helpers.techniques.paging import Request, chat, documents
from helpers.techniques.scheduling import (
    Policy,
    Roofline,
    Scheduler,
    at_once,
    bursts,
    limited,
    mixed,
    percentile,
    poisson,
    simulate,
)
from helpers.techniques.scheduling.simulator import Server
from tests.techniques.scheduling.test_engine import POLICIES


class OneSecond:
    def seconds(self, plan):
        return 1.0


def request(prompt, new):
    return Request((1,) * prompt, (0,) * new)


@settings(max_examples=60, deadline=None)
@given(POLICIES, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=12))
def test_no_step_is_over_its_budget_or_its_blocks(policy, sizes):
    scheduler = Scheduler(policy, blocks=13, block_size=4, host_blocks=5)
    made = [scheduler.submit([1] * prompt, new) for prompt, new in sizes]
    scheduler.more_to_come, now = False, 0.0
    while scheduler.waiting or scheduler.running:
        now += 1.0
        plan = scheduler.schedule(now)
        assert plan.new_tokens <= (policy.token_budget or 10**9)
        assert len(scheduler.running) <= min(policy.max_running, policy.token_budget or 10**9)
        assert all(c.context <= scheduler.manager.lengths[c.sequence] for c in plan.chunks)
        scheduler.complete(plan, dict.fromkeys(scheduler.generates(plan), 5), now)
    assert [len(sequence.tokens) for sequence in made] == [new for _, new in sizes]
    assert len(scheduler.manager.free) == 13
    assert len(scheduler.manager.host_free) == 5


def test_who_is_cancelled_during_a_step_gets_nothing_from_it():
    scheduler = Scheduler(Policy(), blocks=20, block_size=4)
    gone, stays = scheduler.submit([1] * 3, 5), scheduler.submit([1] * 3, 5)
    plan = scheduler.schedule(0.0)
    scheduler.cancel(gone)
    scheduler.complete(plan, {gone: 5, stays: 5}, 1.0)
    assert (gone.tokens, stays.tokens, len(scheduler.manager.free)) == ([], [5], 19)


def test_decodes_ride_with_chunks_of_a_prompt():
    scheduler = Scheduler(Policy(token_budget=8), blocks=20, block_size=4)
    short, long = scheduler.submit([1] * 3, 5), scheduler.submit([1] * 20, 2)
    shown = []
    for now in range(3):
        plan = scheduler.schedule(now)
        shown.append([(c.sequence.number, c.tokens) for c in plan.chunks])
        scheduler.complete(plan, dict.fromkeys(scheduler.generates(plan), 5), now)
    assert shown == [[(0, 3), (1, 5)], [(0, 1), (1, 7)], [(0, 1), (1, 7)]]
    assert len(short.tokens) == 3
    assert not long.tokens
    assert long.uncomputed == 1


def test_without_a_budget_prompts_stop_the_decodes():
    scheduler = Scheduler(Policy(), blocks=20, block_size=4)
    scheduler.submit([1] * 3, 5)
    scheduler.complete(plan := scheduler.schedule(0), dict.fromkeys(scheduler.generates(plan), 5), 0)
    scheduler.submit([1] * 20, 2)
    assert [(c.sequence.number, c.tokens) for c in scheduler.schedule(1).chunks] == [(1, 20)]


def test_the_order_is_the_policys():
    def first(policy, **served):
        scheduler = Scheduler(policy, blocks=50)
        scheduler.served.update(served)
        scheduler.submit([1] * 40, 5, at_s=0.0, user="heavy", priority=2)
        scheduler.submit([1] * 9, 5, at_s=1.0, user="light", priority=1)
        scheduler.submit([1] * 20, 5, at_s=2.0, user="light", priority=0)
        return scheduler.schedule(3.0).chunks[0].sequence.number

    one = {"max_running": 1}
    assert first(Policy(**one)) == 0
    assert first(Policy(**one, order="shortest")) == 1
    assert first(Policy(**one, order="priority")) == 2
    assert first(Policy(**one, order="fair"), heavy=100) == 1
    assert first(Policy(**one, order="priority", aging_s=0.4)) == 0  # three seconds are seven levels and a half


def test_priority_starves_and_aging_ends_it():
    """A stream of urgent requests that fills the service; one patient request waits for a gap that never comes."""
    urgent = bursts([request(1, 4)] * 60, size=1, every_s=3.9, user="urgent")
    patient = at_once([request(1, 4)], "patient", priority=5)
    waited = {}
    for aging in (None, 2.0):
        policy = Policy(order="priority", aging_s=aging, max_running=1)
        outcome = simulate(mixed(urgent, patient), policy, OneSecond(), blocks=10)
        waited[aging] = outcome.of_user("patient")[0].ttft_s
    assert waited[None] > 200
    assert waited[2.0] < 30


def test_fairness_counts_what_each_user_has_had():
    """A user with twenty requests in the queue holds up one who comes later by those that run, and no more."""
    many, one = at_once([request(8, 8)] * 20, "many"), bursts([request(8, 8)], 1, 1.0, user="one")
    waited = {
        order: simulate(mixed(many, one), Policy(order=order, max_running=2), OneSecond(), 50).of_user("one")[0].ttft_s
        for order in ("fcfs", "fair")
    }
    assert waited["fcfs"] > 70
    assert waited["fair"] < 12


def test_who_waits_for_a_full_batch_waits_until_somebody_may_come():
    server = Server(Policy(batching="static", max_running=2), OneSecond(), blocks=10)
    server.submit(at_once([request(4, 2)])[0], 1.0)
    server.run(until=7.25)
    assert (server.now, server.steps) == (7.25, 0)


def test_static_waits_and_dynamic_waits_less():
    arrivals = bursts([request(1, 3)] * 6, size=1, every_s=5.0)
    first = {}
    for batching in ("static", "dynamic", "continuous"):
        policy = Policy(batching=batching, max_running=4, max_wait_s=7.0)
        outcome = simulate(arrivals, policy, OneSecond(), blocks=50)
        first[batching] = min(one.first_token_s for one in outcome.served)
    assert first == {"static": 16.0, "dynamic": 8.0, "continuous": 1.0}


def test_to_the_end_never_preempts_and_runs_fewer():
    arrivals = at_once([request(16, 64)] * 12)
    now, end = (
        simulate(arrivals, Policy(token_budget=256, admission=a), OneSecond(), blocks=20) for a in ("now", "to-the-end")
    )
    assert now.preemptions > 0
    assert end.preemptions == 0
    assert now.computed_tokens > end.computed_tokens == 12 * (16 + 63)
    assert end.peak_running == 4
    assert now.peak_running > 4


def test_whole_prompts_are_computed_together_up_to_a_limit():
    arrivals = at_once([request(10, 2)] * 5)
    steps = {}
    for most in (None, 4, 20, 29, 30):
        scheduler = Scheduler(Policy(max_prefill_tokens=most), blocks=50)
        for arrival in arrivals:
            scheduler.submit(arrival.request.prompt, 2)
        steps[most] = [chunk.tokens for chunk in scheduler.schedule(0.0).chunks]
    assert steps == {None: [10] * 5, 4: [10], 20: [10] * 2, 29: [10] * 2, 30: [10] * 3}


def test_a_limit_reserves_what_the_answer_never_takes():
    """Answers of 8 tokens with a limit of 64: to the end four run where ten could, and twelve are tried."""
    arrivals = limited(at_once([request(16, 8)] * 12), 64)
    now, end = (
        simulate(arrivals, Policy(token_budget=256, admission=a), OneSecond(), blocks=20) for a in ("now", "to-the-end")
    )
    assert (now.peak_running, end.peak_running) == (12, 4)
    assert (now.preemptions, end.preemptions) == (2, 0)
    assert {one.new_tokens for one in (*now.served, *end.served)} == {8}
    assert now.steps < end.steps == 3 * 8


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_load_decides_what_policies_are_worth(seed):
    """Chat beside long documents on an H100: seconds are gained at 42 requests a second, and tenths at 14."""
    tails = {
        (load, name): tail(policy, load, seed)
        for load in (14, 42)
        for name, policy in {
            "fcfs": Policy(),
            "chunked": Policy(token_budget=1024),
            "both": Policy(token_budget=1024, order="priority"),
        }.items()
    }
    assert tails[42, "fcfs"] > 2 * tails[42, "both"]
    assert tails[42, "fcfs"] > tails[42, "chunked"] > tails[42, "both"]
    gained = {load: tails[load, "fcfs"] - tails[load, "both"] for load in (14, 42)}
    assert gained[42] > 3 * gained[14]


def tail(policy, load, seed):
    """p99 of the time to first token of chat."""
    roof = Roofline.of(ServeSetup("llama-3-8b"), "h100")
    asked = poisson(chat(300, seed).requests, load * 0.9, seed, "chat")
    batch = poisson(documents(34, seed, document=6000, max_tokens=8192).requests, load * 0.1, seed + 50, "batch", 1)
    outcome = simulate(mixed(asked, batch), policy, roof, blocks=25_000)
    return percentile([one.ttft_s for one in outcome.of_user("chat")], 0.99)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batching": "rolling"}, "continuous"),
        ({"order": "lifo"}, "fcfs"),
        ({"admission": "never"}, "now"),
        ({"preemption": "kill"}, "recompute"),
        ({"token_budget": 0}, "from 1 up"),
        ({"max_prefill_tokens": 0}, "from 1 up"),
        ({"max_running": 0}, "from 1 up"),
        ({"aging_s": 0}, "above zero"),
        ({"max_wait_s": -1}, "above zero"),
    ],
)
def test_policies_that_are_none(options, words):
    with pytest.raises(WorkbookError, match=words):
        Policy(**options)


def test_a_request_larger_than_the_pool_is_refused_with_its_blocks():
    with pytest.raises(WorkbookError, match=r"100 tokens, 7 blocks of 16\n.*at most 6 blocks"):
        Scheduler(Policy(), blocks=6).submit([1] * 90, 10)


def test_arrivals_out_of_order_are_refused():
    with pytest.raises(WorkbookError, match="in the order of their times"):
        simulate(poisson([request(1, 1)] * 3, 1.0)[::-1], Policy(), OneSecond(), blocks=5)
