"""The serving load calculator: NVIDIA's table, the steady state's own numbers, and words that say what is full."""

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, WorkbookError, device
from helpers.lesson.calculators import Efficiencies, Workload, serving_load, serving_load_answer
from helpers.lesson.calculators.serving_load import CUSTOM, USUAL
from helpers.lesson.calculators.workloads import MIXES, NAMED, lengths
from helpers.memory import budget
from helpers.techniques.paging import Request, trace
from helpers.techniques.scheduling import Policy, at_once, nim, simulate, steady

CALCULATOR = serving_load()
SMALL = ServeSetup("llama-3-8b")
CHAT = Workload(330, 180, clients=40)


def at(clients, **choices):
    return serving_load_answer(nim.setup(), "h100", Workload(5000, 500, clients), tensor_parallel=2, **choices)


@pytest.mark.parametrize("row", nim.TABLE, ids=lambda row: row.concurrency)
def test_nvidias_table(row):
    answer = at(row.concurrency)
    assert answer.roof == nim.roofline()
    assert answer.steady == steady(nim.roofline(), row.concurrency, nim.users_that_fit(), nim.PROMPT, nim.ANSWER)
    assert answer.steady.itl_s == pytest.approx(row.itl_s, rel=0.02)
    assert answer.steady.tokens_per_s == pytest.approx(row.tokens_per_s, rel=0.07)
    assert answer.saturation == answer.users_that_fit == nim.users_that_fit()
    assert 85 <= answer.saturation <= 92
    assert answer.saturated_by == "KV room"
    assert 0.99 < row.ttft_s / answer.steady.ttft_s < 2.05  # a lower bound, as the sentence says
    assert ("too many" in answer.sentence) == (row.concurrency > 92)


def test_the_pool_by_hand():
    answer = serving_load_answer(SMALL, "h100", Workload(330, 180, 40, answer_limit=500, shared=100))
    capacity, weights = device("h100").capacity_bytes, budget.weight_bytes(SMALL)
    a_token = 2 * 32 * 8 * 128 * 2
    assert answer.pool.pool_bytes == int(0.9 * (capacity - weights - 2 * 2**30))
    assert answer.pool.request_tokens == 832  # 330 + 500, in blocks of 16
    assert answer.pool.shared_tokens == 96  # six whole blocks
    assert answer.pool.request_bytes == (832 - 96) * a_token
    assert answer.pool.users == (answer.pool.pool_bytes - 96 * a_token) // ((832 - 96) * a_token)
    assert answer.users_that_fit == 256 < answer.pool.users
    assert answer.saturated_by == "max_running"


def test_admission_now_takes_half_the_answer_whatever_its_limit():
    workload = Workload(330, 180, 500, answer_limit=2048)
    full, now = (
        serving_load_answer(SMALL, "l4", workload, Policy(token_budget=2048, admission=admission))
        for admission in ("to-the-end", "now")
    )
    assert (full.pool.request_tokens, now.pool.request_tokens) == (2384, 432)
    assert now.steady.tokens_per_s > full.steady.tokens_per_s
    assert (
        f"admission now would admit {now.users_that_fit:,} requests in place of {full.users_that_fit:,}."
        in full.sentence
    )
    assert "upper bound" in now.sentence
    assert "upper bound" not in serving_load_answer(SMALL, "h100", CHAT, replace(USUAL, admission="now")).sentence


def test_now_is_an_upper_bound_and_not_far_from_the_simulator():
    """The simulator preempts, and computes again what it threw away."""
    answer = serving_load_answer(SMALL, "l4", Workload(500, 250, 60), Policy(token_budget=2048, admission="now"))
    blocks = answer.pool.pool_bytes // (16 * answer.roof.kv_bytes_per_token)
    requests = at_once([Request((1,) * 500, (0,) * 250)] * 300)
    outcome = simulate(requests, answer.policy, answer.roof, blocks, concurrency=60)
    middle = [
        one for one in outcome.served if outcome.seconds / 4 < one.at_s and one.last_token_s < 0.9 * outcome.seconds
    ]
    simulated = 60 * 250 * len(middle) / sum(one.last_token_s - one.at_s for one in middle)
    assert sum(one.preempted for one in outcome.served) > 0
    assert answer.saturated_by == "KV room"
    assert simulated < answer.steady.tokens_per_s < 1.25 * simulated


def test_a_shared_prefix_saves_blocks_and_prefill():
    alone = serving_load_answer(SMALL, "l4", Workload(1500, 100, 40))
    shared = serving_load_answer(SMALL, "l4", Workload(1500, 100, 40, shared=1008))
    assert shared.users_that_fit > alone.users_that_fit
    assert shared.steady.tokens_per_s > alone.steady.tokens_per_s
    assert shared.steady.steps.prefill_seconds(shared.roof) < alone.steady.steps.prefill_seconds(alone.roof) / 2


def test_windows_hold_less_and_share_nothing():
    workload = Workload(6000, 200, 4, shared=4096)
    answer = serving_load_answer(ServeSetup("mistral-7b"), "h100", workload)
    assert answer.pool.shared_bytes == 0
    assert answer.pool.request_bytes == budget.serve(ServeSetup("mistral-7b", context=6208)).held["kv_cache"]
    longer = serving_load_answer(ServeSetup("mistral-7b"), "h100", replace(workload, prompt=24_000))
    assert longer.pool.request_bytes == answer.pool.request_bytes
    assert longer.roof.flops_per_pair < answer.roof.flops_per_pair


@pytest.mark.parametrize(
    ("workload", "policy", "full"),
    [
        (Workload(4000, 400, 10), USUAL, "KV room"),
        (Workload(330, 180, 10), replace(USUAL, max_running=8), "max_running"),
        (Workload(2000, 20, 10), USUAL, "token budget"),
    ],
)
def test_what_is_full_first(workload, policy, full):
    answer = serving_load_answer(SMALL, "l40s", workload, policy)
    assert answer.saturated_by == full
    past = serving_load_answer(SMALL, "l40s", replace(workload, clients=2 * answer.saturation), policy)
    there = serving_load_answer(SMALL, "l40s", replace(workload, clients=answer.saturation), policy)
    assert past.steady.tokens_per_s == pytest.approx(there.steady.tokens_per_s, rel=0.03)
    assert past.steady.ttft_s > 5 * there.steady.ttft_s


def test_the_parts_of_a_step_are_the_step():
    for clients in (1, 25, 150):
        answer = at(clients)
        assert sum(answer.step_seconds.values()) == pytest.approx(answer.steady.itl_s)
    assert at(1).step_bound == "memory reads"
    assert at(150).step_bound == "FLOPs"
    assert "overhead sets" in at(1, efficiencies=Efficiencies(1.0, 1.0, 0.1)).sentence


def test_little_s_law_turns_requests_a_second_into_clients():
    workload = Workload(5000, 500, requests_per_s=1.5)
    answer = serving_load_answer(nim.setup(), "h100", workload, tensor_parallel=2)
    rates = [at(clients).requests_per_s for clients in (answer.clients - 1, answer.clients)]
    assert rates[0] < 1.5 <= rates[1]
    at_once = 1.5 * answer.request_s
    assert answer.clients - 1.5 < at_once <= answer.clients
    assert f"are {at_once:.1f} at once (Little's law)" in answer.sentence
    slow = serving_load_answer(nim.setup(), "h100", replace(workload, requests_per_s=0.001), tensor_parallel=2)
    assert slow.clients == 1


def test_assumptions_are_named():
    for name, shares in NAMED.items():
        answer = at(50, efficiencies=name)
        assert answer.efficiencies == shares
        assert f"Assumed: {shares}; " in answer.sentence
    assert "fitted to NVIDIA's table" in at(50).sentence
    assert "as given" in at(50, efficiencies=Efficiencies(0.6, 0.5, 0.0)).sentence
    assert at(50, efficiencies="datasheet").steady.tokens_per_s > at(50).steady.tokens_per_s


def test_the_mixes_are_the_means_of_the_traces():
    assert lengths("nim") == (5000, 500)
    for mix in MIXES[1:]:
        requests = trace(mix).requests
        assert lengths(mix)[0] == round(sum(len(one.prompt) for one in requests) / len(requests))
        assert lengths(mix)[1] == round(sum(len(one.answer) for one in requests) / len(requests))


def test_the_text():
    assert str(at(100)) == TEXT


TEXT = """\
100 clients of llama-3-70b: 979 tokens/s, first token after 4.51 s, then one each 93.3 ms

KV pool        39.05 GiB   0.9 × (79.22 GiB − 33.83 GiB weights − 2.00 GiB reserve), on each rank
a request     430.00 MiB   5,000 tokens of prompt + 500 of the longest answer, in blocks of 16
users fit             92   39.05 GiB / 430.00 MiB = 92; the policy runs at most 256
decoding            91.2   of 92 admitted; the others are in prefill
with a chunk        46 %   of steps: a prompt in 2.56 chunks, of 2,048 tokens less 91 decoding
a step           93.3 ms   memory reads 13.3 ms + FLOPs 73.3 ms + overhead 6.74 ms
first token       4.51 s   2.56 × a step with a chunk, 166 ms + 4.09 s of waiting
inter-token      93.3 ms   10.7 tokens/s for each who is answered
throughput     979 tok/s   91.2 decoding / 93.3 ms, and the first tokens
requests         1.96 /s   979 tokens/s / 500 tokens
saturation            92   clients: then the KV room is full

The time of a step: FLOPs set 79 %, memory reads 14 %, overhead 7.2 %. From 93 clients on each one more waits and adds no throughput: the KV room holds 92 requests. 8 of the 100 are too many: they only make the first token later. Assumed: 0.9 of the bandwidth, 0.468 of the FLOP rate, 6.74 ms more for each step; fitted to NVIDIA's table of NIM with Llama-70B in FP8 on two H100. The first token is a lower bound, because requests that come together wait for one another: in NVIDIA's table it takes up to twice as long."""  # noqa: E501


def test_the_controls_say_what_the_function_is_given():
    assert str(CALCULATOR.answer(clients=100)) == str(at(100))
    custom = CALCULATOR.answer(mix=CUSTOM, prompt=2048, answer=128, answer_limit=4, shared=512, admission="now")
    workload = Workload(2048, 128, 50, answer_limit=512, shared=512)
    assert custom.workload == workload
    assert str(custom) == str(
        serving_load_answer(nim.setup(), "h100", workload, replace(USUAL, admission="now"), tensor_parallel=2)
    )
    assert CALCULATOR.used({**CALCULATOR.start}) == set(CALCULATOR.options) - {"prompt", "answer"}
    assert CALCULATOR.used({**CALCULATOR.start, "mix": CUSTOM}) == set(CALCULATOR.options)


def test_a_request_longer_than_the_model_was_made_for_is_told():
    assert (
        "was made for 8,192 tokens, and a request may have 8,680."
        in serving_load_answer(SMALL, "h100", Workload(8500, 180, 4)).sentence
    )
    assert "was made for" not in at(50).sentence


BAD = [
    ({"model": "lama-3-8b"}, {}, {}, "did you mean 'llama"),
    ({"weights": "fp9"}, {}, {}, "unknown weight format"),
    ({"model": "llama-3-70b"}, {}, {}, "pass tensor_parallel=2, or weights in fewer bits"),
    ({"model": "llama-3-70b", "weights": "int8"}, {"prompt": 500_000}, {}, "one request of 500,192 tokens"),
    ({"model": "gpt2", "context": 1}, {"prompt": 1000}, {}, "are 1,180 tokens, and gpt2 has 1,024 positions"),
    ({"weights": "fp8-e4m3"}, {}, {"gpu": "a100-80gb"}, "no rate for fp8-e4m3.*\n.*\n.*or weights='int8'"),
    ({}, {}, {"gpu": "v100-32gb"}, "no rate for bf16"),
    ({}, {}, {"gpu": "h1000"}, "unknown device 'h1000'"),
    ({}, {}, {"tensor_parallel": 3}, "pass tensor_parallel=2"),
    ({}, {}, {"reserve_bytes": -1}, "reserve_bytes is -1"),
    ({}, {}, {"free_share": 1.5}, "free_share is 1.5"),
    ({}, {}, {"efficiencies": "nimm"}, "did you mean 'nim'"),
    ({}, {"clients": 0}, {}, "clients is 0"),
    ({}, {"clients": None}, {}, "no load"),
    ({}, {"requests_per_s": 2.0}, {}, "a load twice"),
    ({}, {"clients": None, "requests_per_s": 0}, {}, "requests_per_s is 0"),
    ({}, {"clients": None, "requests_per_s": 1e6}, {}, "more than this service answers"),
    ({}, {"prompt": 0}, {}, "prompt is 0"),
    ({}, {"answer": 1}, {}, "answer is 1"),
    ({}, {"answer_limit": 100}, {}, "answer_limit is 100"),
    ({}, {"shared": 330}, {}, "shared is 330"),
    ({}, {}, {"policy": Policy(token_budget=256, admission="to-the-end")}, "token_budget is 256, and 256 requests"),
    ({}, {}, {"policy": Policy()}, "token_budget=None: no closed form"),
    ({}, {}, {"policy": Policy(batching="static", token_budget=512)}, "static batching"),
]


@pytest.mark.parametrize(("setup", "load", "given", "told"), BAD)
def test_bad_input(setup, load, given, told):
    workload = {"prompt": 330, "answer": 180, "clients": 40, **load}
    with pytest.raises(WorkbookError, match=told):
        serving_load_answer(
            ServeSetup(**{"model": "llama-3-8b", **setup}), **{"gpu": "h100", "workload": Workload(**workload), **given}
        )


@pytest.mark.parametrize("shares", [(0, 0.5, 0.0), (1.01, 0.5, 0.0), (0.5, float("nan"), 0.0), (0.5, 0.5, -0.1)])
def test_bad_efficiencies(shares):
    with pytest.raises(WorkbookError, match=r"efficiency is|overhead_s is"):
        Efficiencies(*shares)
