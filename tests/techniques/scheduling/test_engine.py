"""Tokens are those of `generate`, whatever the policy, the chunks and the preemptions; and no block is lost."""

import copy
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.techniques.paging import Request
from helpers.techniques.scheduling import Arrival, Policy, ScheduledEngine, at_once
from tests.techniques.kv_cache.models import FAMILIES, tiny

PLAIN = [family for family in FAMILIES if family != "gemma2-hybrid"]  # soft-capped scores: refused
POLICIES = st.builds(
    Policy,
    batching=st.sampled_from(["continuous", "dynamic", "static"]),
    order=st.sampled_from(["fcfs", "priority", "shortest", "fair"]),
    token_budget=st.sampled_from([None, 1, 3, 16, 64]),
    max_running=st.sampled_from([1, 3, 8]),
    admission=st.sampled_from(["now", "to-the-end"]),
    max_prefill_tokens=st.sampled_from([None, 1, 40]),
    preemption=st.sampled_from(["recompute", "swap"]),
    max_wait_s=st.just(0.001),
)


@pytest.fixture(scope="module")
def net():
    model = copy.deepcopy(tiny("llama-gqa"))  # `tiny` is shared
    model.generation_config.eos_token_id = 7
    return model


def answered(net, seed):
    """Twelve requests, four with the same beginning, and what `generate` answers."""
    draw = random.Random(seed)
    shared = [draw.randrange(1, 60) for _ in range(17)]
    made = []
    for at in range(12):
        prompt = (shared if at % 3 == 0 else []) + [draw.randrange(1, 60) for _ in range(draw.randrange(1, 30))]
        new = draw.randrange(1, 14)
        out = net.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=new, pad_token_id=0)
        made.append((tuple(prompt), new, out[0, len(prompt) :].tolist()))
    return made


@pytest.fixture(scope="module")
def answers(net):
    return answered(net, seed=3)


@pytest.fixture(scope="module")
def traces(net):
    return [answered(net, seed) for seed in range(6)]


def arrivals_of(answers):
    return at_once(Request(prompt, (0,) * new) for prompt, new, _ in answers)


def assert_nothing_left(engine):
    manager = engine.scheduler.manager
    assert manager.available == manager.blocks
    assert len(manager.host_free) == engine.pool.host_blocks
    assert not manager.tables
    assert not manager.host_tables
    assert not engine.busy


@settings(max_examples=40, deadline=None)
@given(
    policy=POLICIES,
    blocks=st.integers(15, 40),
    host=st.sampled_from([0, 6, 40]),
    prefix=st.booleans(),
    seed=st.integers(0, 5),
)
def test_tokens_are_those_of_generate(net, traces, policy, blocks, host, prefix, seed):
    answers = traces[seed]
    engine = ScheduledEngine(net, blocks, policy, block_size=4, host_blocks=host, prefix=prefix)
    made = engine.run(arrivals_of(answers))
    assert [sequence.tokens for sequence in made] == [tokens for _, _, tokens in answers]
    assert_nothing_left(engine)


@pytest.mark.parametrize("family", PLAIN)
def test_every_family_in_chunks(family):
    """Windows, shared heads, position tables: what reads the pool must know each token's own place."""
    net = tiny(family)
    answers = answered(net, seed=1)
    engine = ScheduledEngine(net, 30, Policy(token_budget=7, max_running=5), block_size=4)
    assert [sequence.tokens for sequence in engine.run(arrivals_of(answers))] == [tokens for _, _, tokens in answers]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_small_pool_preempts(net, answers, preemption):
    policy = Policy(token_budget=16, preemption=preemption)
    engine = ScheduledEngine(net, 16, policy, block_size=4, host_blocks=16, prefix=False)
    made = engine.run(arrivals_of(answers))
    assert any(sequence.preempted for sequence in made)
    assert [sequence.tokens for sequence in made] == [tokens for _, _, tokens in answers]


def test_admission_to_the_end_never_preempts(net, answers):
    engine = ScheduledEngine(net, 16, Policy(admission="to-the-end"), block_size=4, prefix=False)
    assert not any(sequence.preempted for sequence in engine.run(arrivals_of(answers)))


@settings(max_examples=15, deadline=None)
@given(policy=POLICIES, after=st.integers(0, 8), seed=st.integers(0, 9))
def test_cancelled_requests_leave_no_block(net, answers, policy, after, seed):
    engine = ScheduledEngine(net, 20, policy, block_size=4, host_blocks=8)
    made = [engine.submit(prompt, new) for prompt, new, _ in answers]
    for _ in range(after):
        engine.step()
    gone = random.Random(seed).sample(made, 6)
    for sequence in gone:
        engine.cancel(sequence)
        engine.cancel(sequence)
    while engine.busy:
        engine.step()
    assert_nothing_left(engine)
    assert all(one.tokens == tokens for one, (_, _, tokens) in zip(made, answers, strict=True) if one not in gone)


@pytest.mark.parametrize(
    ("prompt", "new", "words"),
    [
        ([], 3, "at least one token id"),
        ([1, 2.5], 3, "at least one token id"),
        ([10**6], 3, "each from 0 to"),
        ([1], 0, "a whole number from 1 up"),
        ([1], 2.0, "a whole number from 1 up"),
        ([1] * 30, 60, "0 such users fit in the pool"),
        ([1] * 30, 10**6, "the model's context"),
    ],
)
def test_what_can_never_run_is_refused_with_a_reason(net, prompt, new, words):
    engine = ScheduledEngine(net, 16, block_size=4)
    with pytest.raises(WorkbookError, match=words):
        engine.submit(prompt, new)
    assert_nothing_left(engine)


def test_the_engine_knows_the_limit_and_not_the_answer(net):
    """A trace's answer of three tokens is what somebody got; the model ends where it ends, or at the limit."""
    request = Request(tuple(range(10, 20)), (0,) * 3)
    short, long = (
        len(ScheduledEngine(net, 16, block_size=4).run([Arrival(request, max_tokens=most)])[0].tokens)
        for most in (None, 12)
    )
    assert short == 3
    assert 3 < long <= 12
