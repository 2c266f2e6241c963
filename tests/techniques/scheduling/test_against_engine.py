"""The simulator beside the real engine on the same traces: steps and order exactly, seconds within 15 %."""

import random
import time

import pytest
import torch

from helpers.small_lm import load
from helpers.techniques.paging import Request, chat, transformers_batch
from helpers.techniques.scheduling import FittedStep, Policy, ScheduledEngine, at_once, simulate
from helpers.techniques.scheduling.batching import static_forwards

# (requests, prompt tokens, new tokens, policy); the first is the one that the step time is fitted on.
TRACES = {
    "mixed": (30, (4, 120), (4, 60), Policy(token_budget=64, max_running=8)),
    "long prompts": (24, (100, 300), (4, 20), Policy(token_budget=64, max_running=8)),
    "long answers": (16, (4, 30), (40, 120), Policy(token_budget=64, max_running=8)),
    "small budget": (24, (4, 120), (4, 60), Policy(token_budget=24, max_running=16)),
}
BLOCKS = 200


class OneSecond:
    def seconds(self, plan):
        return 1.0


@pytest.fixture(scope="module")
def net():
    model = load().model
    ends, model.generation_config.eos_token_id = model.generation_config.eos_token_id, None
    yield model
    model.generation_config.eos_token_id = ends


def requests_of(name, vocab):
    count, prompts, answers, _ = TRACES[name]
    draw = random.Random(name)
    return at_once(
        Request(
            tuple(draw.randrange(4, vocab) for _ in range(draw.randrange(*prompts))), (0,) * draw.randrange(*answers)
        )
        for _ in range(count)
    )


def run(net, name):
    engine = ScheduledEngine(net, BLOCKS, TRACES[name][3], prefix=False, clock=time.process_time, keep_history=True)
    return engine, engine.run(requests_of(name, net.config.vocab_size))


@pytest.mark.parametrize("name", ["mixed", pytest.param("small budget", marks=pytest.mark.slow)])
def test_steps_and_the_order_of_ends_are_the_engines(net, name):
    engine, sequences = run(net, name)
    outcome = simulate(requests_of(name, net.config.vocab_size), TRACES[name][3], OneSecond(), BLOCKS)
    assert outcome.steps == engine.forwards
    assert [one.number for one in outcome.served] == [
        one.number for one in sorted(sequences, key=lambda s: s.times[-1])
    ]


@pytest.mark.slow
@pytest.mark.alone
def test_seconds_fitted_on_one_trace_hold_for_three(net):
    """Processor time, each step's least of five rounds in turn, so that a busy neighbour counts for none of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rounds = [{name: run(net, name)[0].history for name in TRACES} for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    plans = {name: [step.plan for step in rounds[0][name]] for name in TRACES}
    seconds = {
        name: [min(s.seconds for s in steps) for steps in zip(*(r[name] for r in rounds), strict=True)]
        for name in TRACES
    }
    fitted = FittedStep.of(plans["mixed"], seconds["mixed"])
    for name in TRACES:
        outcome = simulate(requests_of(name, net.config.vocab_size), TRACES[name][3], fitted, BLOCKS)
        assert outcome.seconds == pytest.approx(sum(seconds[name]), rel=0.15), name


@pytest.mark.slow
def test_transformers_engine_gives_the_same_tokens(net):
    """Static, continuous and in chunks, ours; and Transformers' continuous batching: 32 requests of chat."""
    asked = chat(32, system=24, message=20, answer=40, vocab=net.config.vocab_size, max_tokens=512).requests
    theirs = transformers_batch(net, [(one.prompt, one.new_tokens) for one in asked], blocks=256, batch_tokens=256)
    forwards = {}
    for batching, budget in (("static", None), ("continuous", None), ("continuous", 64)):
        engine = ScheduledEngine(net, 256, Policy(batching=batching, token_budget=budget, max_running=8))
        assert [sequence.tokens for sequence in engine.run(at_once(asked))] == theirs
        forwards[batching, budget] = engine.forwards
    new_tokens = [one.new_tokens for one in asked]
    assert forwards["static", None] == static_forwards(new_tokens, 8)
    assert forwards["static", None] > 1.3 * forwards["continuous", 64]
    assert forwards["continuous", 64] < forwards["continuous", None]  # prefills ride along
