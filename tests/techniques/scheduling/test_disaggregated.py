"""Prompts on one instance, tokens on another: by hand for one request, and for a trace what must hold for any."""

import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.techniques.paging import OutOfBlocksError, Request
from helpers.techniques.scheduling import (
    Arrival,
    Instance,
    KVLink,
    Policy,
    ScheduledEngine,
    at_once,
    poisson,
    simulate,
    simulate_disaggregated,
)
from tests.techniques.kv_cache.models import tiny

from .test_engine import answered

SLOW = KVLink(bytes_per_token=10, bytes_per_s=20.0)  # half a second a token
FAST = KVLink(bytes_per_token=10, bytes_per_s=1e12)


class Seconds:
    """A step takes `base` and `each` for a token."""

    def __init__(self, base, each=0.0):
        self.base, self.each = base, each

    def seconds(self, plan):
        return self.base + self.each * plan.new_tokens


def served(requests, link, prefill_blocks=50, policy=None):
    first = Instance(policy or Policy(), Seconds(5.0), prefill_blocks, 4)
    return simulate_disaggregated(at_once(requests), first, Instance(Policy(), Seconds(1.0), 50, 4), link)


def test_one_request_waits_for_its_cache():
    """Eight tokens: prefilled at 5 s, sent until 9 s, then a token a second."""
    told = served([Request((1,) * 8, (0,) * 4)], SLOW)
    (one,) = told.served
    assert one.first_token_s == 5.0
    assert one.last_token_s == 5.0 + 4.0 + 3 * 1.0
    assert one.longest_gap_s == 4.0 + 1.0
    assert one.new_tokens == 4
    assert told.transfers[0].exposed_s == 4.0


@pytest.mark.parametrize(("pieces", "exposed"), [(1, 4.0), (2, 2.0), (5, 0.8), (80, 0.05)])
def test_layers_that_are_sent_early_hide_the_transfer(pieces, exposed):
    """The step has 5 s for a transfer of 4 s: the last piece alone comes after it."""
    link = KVLink(10, 20.0, pieces=pieces)
    assert served([Request((1,) * 8, (0,) * 4)], link).transfers[0].exposed_s == pytest.approx(exposed)


def test_a_slow_link_hides_no_more_than_the_step():
    """Sixteen seconds of transfer, five of prefill: what is left is eleven and a piece's wait."""
    link = KVLink(10, 5.0, pieces=1000)
    assert served([Request((1,) * 8, (0,) * 4)], link).transfers[0].exposed_s == pytest.approx(11.005)


def test_one_transfer_at_a_time():
    told = served([Request((1,) * 8, (0,) * 4)] * 2, SLOW)
    assert [transfer.end_s for transfer in told.transfers] == [9.0, 13.0]


def test_blocks_stay_taken_until_they_are_sent():
    """The first instance has room for one prompt: the second prompt begins when the first is gone, at 9 s."""
    told = served([Request((1,) * 8, (0,) * 4)] * 2, SLOW, prefill_blocks=3)
    assert [one.first_token_s for one in told.served] == [5.0, 14.0]
    assert told.prefill.peak_blocks <= 3


def test_chunks_are_sent_while_the_next_is_computed():
    """Two chunks of four tokens, 2 s each to send: the first is gone when the second ends at 10 s."""
    told = served([Request((1,) * 8, (0,) * 4)], SLOW, policy=Policy(token_budget=4))
    assert told.transfers[0].end_s == 12.0
    assert told.transfers[0].tokens == 8


def test_answers_of_one_token_are_never_sent():
    told = served([Request((1,) * 8, (0,)), Request((1,) * 8, (0,) * 2)], SLOW)
    assert len(told.transfers) == 1
    assert [one.new_tokens for one in told.served] == [1, 2]


def test_no_prompt_delays_a_token():
    """On one instance each long prompt is a gap for everybody who decodes; here only the transfer is."""
    requests = [Request((1,) * 4, (0,) * 60), *[Request((1,) * 400, (0,) * 2)] * 6]
    arrivals = [Arrival(request, 10.0 * number) for number, request in enumerate(requests)]
    step = Seconds(0.5, 0.1)
    alone = simulate(arrivals, Policy(), step, 500)
    both = simulate_disaggregated(arrivals, Instance(Policy(), step, 500), Instance(Policy(), step, 500), FAST)
    longest = [max(outcome.served, key=lambda one: one.new_tokens).longest_gap_s for outcome in (alone, both)]
    assert longest[0] > 40
    assert longest[1] < 1.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    budget=st.sampled_from([None, 3, 16]),
    batching=st.sampled_from(["continuous", "dynamic", "static"]),
    preemption=st.sampled_from(["recompute", "swap"]),
    pieces=st.integers(1, 9),
    first=st.integers(10, 40),
    second=st.integers(16, 40),
)
def test_every_request_is_served_in_order_of_its_clock(seed, budget, batching, preemption, pieces, first, second):
    draw = random.Random(seed)
    requests = [Request((1,) * draw.randrange(1, 30), (0,) * draw.randrange(1, 20)) for _ in range(25)]
    arrivals = poisson(requests, per_s=0.7, seed=seed)
    policy = Policy(batching=batching, token_budget=budget, preemption=preemption)
    link = KVLink(10, 30.0, 0.1, pieces)
    ends = Instance(policy, Seconds(0.3, 0.02), first, 4), Instance(policy, Seconds(0.2), second, 4)
    told = simulate_disaggregated(arrivals, *ends, link)
    assert [one.at_s for one in told.served] == [arrival.at_s for arrival in arrivals]
    assert [one.new_tokens for one in told.served] == [request.new_tokens for request in requests]
    assert sum(transfer.tokens for transfer in told.transfers) == sum(
        len(request.prompt) for request in requests if request.new_tokens > 1
    )
    for one in told.served:
        assert one.at_s <= one.first_token_s <= one.last_token_s
    for before, after in zip(told.transfers, told.transfers[1:], strict=False):
        assert before.end_s <= after.end_s
    assert all(transfer.start_s <= transfer.end_s and transfer.exposed_s > 0 for transfer in told.transfers)


@pytest.mark.parametrize(
    ("link", "words"),
    [({"bytes_per_s": 0.0}, "bytes a second above zero"), ({"pieces": 0}, "a whole number from 1 up")],
)
def test_bad_links_say_what_to_do(link, words):
    with pytest.raises(WorkbookError, match=words):
        KVLink(**{"bytes_per_token": 10, "bytes_per_s": 1.0, **link})


@pytest.mark.parametrize("family", ["llama-gqa", "llama-mqa"])
def test_two_engines_give_the_tokens_of_one_and_send_what_the_simulator_sends(family):
    """Prompts on one real engine, the rest on another: tokens of `generate`; steps and bytes as simulated."""
    net = copy.deepcopy(tiny(family))
    net.generation_config.eos_token_id = None
    answers = [one for one in answered(net, seed=2) if one[1] > 1]
    sent, made = [], []
    decode = ScheduledEngine(net, 60, Policy(), 4, host_blocks=80, prefix=False)

    def send(sequence, cache):
        sent.append(sum(part.nbytes for pair in cache.values() for part in pair))
        made.append(decode.receive(sequence, cache, answers[sequence.number][1]))

    prefill = ScheduledEngine(net, 100, Policy(), 4, prefix=False, send=send)
    prefill.run(at_once(Request(prompt, (0,)) for prompt, *_ in answers))
    while decode.busy:
        decode.step()
    assert [sequence.tokens for sequence in made] == [tokens for *_, tokens in answers]
    a_token = 2 * sum(pool[0].shape[2] * pool[0].shape[3] * 4 for pool in decode.pool.layers.values())
    requests = at_once(Request(prompt, (0,) * new) for prompt, new, _ in answers)
    ends = Instance(Policy(), Seconds(1.0), 100, 4), Instance(Policy(), Seconds(1.0), 60, 4)
    told = simulate_disaggregated(requests, *ends, KVLink(a_token, 1e30))
    assert [transfer.tokens * a_token for transfer in told.transfers] == sent
    assert (told.prefill.steps, told.decode.steps) == (prefill.forwards, decode.forwards)
    assert len(decode.scheduler.manager.host_free) == 80


def test_an_engine_without_room_on_its_host_says_so():
    net = tiny("llama-gqa")
    decode = ScheduledEngine(net, 60, Policy(), 4, host_blocks=1)
    prefill = ScheduledEngine(net, 60, Policy(), 4, send=lambda sequence, cache: decode.receive(sequence, cache, 4))
    with pytest.raises(OutOfBlocksError, match="host"):
        prefill.run(at_once([Request((1,) * 8, (0,))]))
