"""A small model proposes: the tokens are those of `generate` all the same, and nothing of a wrong proposal is left."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.techniques.paging import Request
from helpers.techniques.scheduling import Policy, ScheduledEngine, SpeculativeStep, agreed, at_once, simulate
from tests.techniques.kv_cache.models import tiny

from .test_engine import answered, arrivals_of, assert_nothing_left


def noisy(net, noise):
    """The same model with weights a little off: it is right about some tokens, and wrong about others."""
    other = copy.deepcopy(net)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight += noise * weight.std() * torch.randn(weight.shape, generator=draw)
    return other


@pytest.fixture(scope="module")
def net():
    model = copy.deepcopy(tiny("llama-gqa"))
    model.generation_config.eos_token_id = 7
    return model


@pytest.fixture(scope="module")
def traces(net):
    return [answered(net, seed) for seed in range(4)]


@pytest.fixture(scope="module")
def drafts(net):
    return {"itself": net, "near": noisy(net, 0.1), "far": noisy(net, 1.0)}


@settings(max_examples=25, deadline=None)
@given(
    who=st.sampled_from(["itself", "near", "far"]),
    policy=st.builds(
        Policy,
        drafts=st.integers(1, 6),
        batching=st.sampled_from(["continuous", "dynamic", "static"]),
        order=st.sampled_from(["fcfs", "shortest", "fair"]),
        token_budget=st.sampled_from([None, 1, 3, 16, 64]),
        max_running=st.sampled_from([1, 3, 8]),
        admission=st.sampled_from(["now", "to-the-end"]),
        preemption=st.sampled_from(["recompute", "swap"]),
        max_wait_s=st.just(0.001),
    ),
    blocks=st.integers(15, 40),
    host=st.sampled_from([0, 6, 40]),
    prefix=st.booleans(),
    seed=st.integers(0, 3),
)
def test_tokens_are_those_of_generate(net, drafts, traces, who, policy, blocks, host, prefix, seed):
    answers = traces[seed]
    engine = ScheduledEngine(net, blocks, policy, 4, host_blocks=host, prefix=prefix, draft=drafts[who])
    made = engine.run(arrivals_of(answers))
    assert [sequence.tokens for sequence in made] == [tokens for _, _, tokens in answers]
    assert_nothing_left(engine)


def test_a_model_that_proposes_for_itself_is_always_right(net, traces):
    """Then a step gives five tokens. Its keys and values must be those of what was accepted, or it would err."""
    answers = traces[0]
    engine = ScheduledEngine(net, 60, Policy(drafts=4), 4, prefix=False, draft=net)
    plain = ScheduledEngine(net, 60, Policy(), 4, prefix=False)
    engine.run(arrivals_of(answers))
    plain.run(arrivals_of(answers))
    assert engine.scheduler.proposed == engine.scheduler.accepted > 20
    assert engine.forwards < plain.forwards / 2


def test_a_worse_draft_is_right_less_often(net, drafts, traces):
    shares = []
    for who in ("itself", "near", "far"):
        engine = ScheduledEngine(net, 60, Policy(drafts=4), 4, prefix=False, draft=drafts[who])
        engine.run(arrivals_of(traces[1]))
        shares.append(engine.scheduler.accepted / engine.scheduler.proposed)
    assert shares[0] > shares[1] > shares[2]


def test_both_caches_lie_under_the_same_numbers(net, traces):
    """Two key heads of four, one layer of two: the small model's pool is what its own shape says."""
    small = copy.deepcopy(net)
    small.model.layers = small.model.layers[:1]
    small.config.num_hidden_layers = 1
    engine = ScheduledEngine(net, 30, Policy(drafts=2), 4, draft=small)
    engine.run(arrivals_of(traces[2]))
    layers = net.config.num_hidden_layers
    assert engine.drafter.pool.bytes * layers == engine.pool.bytes


def test_the_simulator_counts_what_the_engine_counts(net, traces):
    """A draft that is always right, answers without an end token: the same steps, proposals and tokens."""
    requests = [Request(prompt, (0,) * new) for prompt, new, _ in traces[3]]
    never = copy.deepcopy(net)
    never.generation_config.eos_token_id = None
    policy = Policy(token_budget=24, drafts=3)
    engine = ScheduledEngine(never, 60, policy, 4, prefix=False, draft=never)
    engine.run(at_once(requests))
    told = simulate(at_once(requests), policy, Constant(1.0), 60, 4, acceptance=1.0)
    assert (told.steps, told.proposed, told.accepted) == (
        engine.forwards,
        engine.scheduler.proposed,
        engine.scheduler.accepted,
    )


class Constant:
    """Every forward takes the same time."""

    def __init__(self, seconds):
        self.a_step_s = seconds

    def seconds(self, plan):
        return self.a_step_s


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
def test_tokens_of_a_step_follow_the_geometric_sum(acceptance):
    """1 + a + a^2 + ... + a^drafts tokens a step, far from the answer's end (Leviathan 2023, equation 1)."""
    requests = [Request((1,) * 4, (0,) * 4000)]
    told = simulate(at_once(requests), Policy(drafts=4), Constant(1.0), 400, acceptance=acceptance)
    expected = sum(acceptance**n for n in range(5))
    assert told.new_tokens / told.steps == pytest.approx(expected, rel=0.05)


def test_seconds_are_the_small_model_s_forwards_and_the_large_one_s():
    """One sequence, three drafts: 3 x 1 s and 10 s a step, 4 tokens each; the prompt's step is 1 s and 10 s."""
    step = SpeculativeStep(target=Constant(10.0), draft=Constant(1.0))
    told = simulate(at_once([Request((1,) * 5, (0,) * 9)]), Policy(drafts=3), step, 40, acceptance=1.0)
    assert told.steps == 3
    assert told.seconds == pytest.approx(11 + 13 + 13)


def test_nobody_is_preempted_for_a_proposal():
    """Three blocks: the short answer needs one and is over before the long one needs three; its proposals wait."""
    requests = at_once([Request((1, 2, 3), (0,) * 9), Request((1, 2, 3), (0,) * 2)])
    told = simulate(requests, Policy(drafts=6), Constant(1.0), 3, 4, acceptance=1.0)
    assert told.preemptions == 0
    assert told.proposed > 0


@pytest.mark.parametrize(
    ("proposed", "best", "tokens"),
    [((), (9,), (9,)), ((1, 2), (1, 2, 3), (1, 2, 3)), ((1, 2), (7, 2, 3), (7,)), ((1, 2), (1, 7, 3), (1, 7))],
)
def test_agreed(proposed, best, tokens):
    assert agreed(proposed, best) == tokens


def test_bad_input_says_what_to_do(net):
    with pytest.raises(WorkbookError, match="both or neither"):
        ScheduledEngine(net, 20, Policy(drafts=4), 4)
    with pytest.raises(WorkbookError, match="both or neither"):
        ScheduledEngine(net, 20, Policy(), 4, draft=net)
    other = copy.deepcopy(net)
    other.config.vocab_size += 1
    with pytest.raises(WorkbookError, match="the same vocabulary"):
        ScheduledEngine(net, 20, Policy(drafts=4), 4, draft=other)
    with pytest.raises(WorkbookError, match="a share from 0 to 1"):
        simulate([], Policy(drafts=2), Constant(1.0), 20, acceptance=1.5)
