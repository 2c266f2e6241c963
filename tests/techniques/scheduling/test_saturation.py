"""The steady state in closed form: beside NVIDIA's table, and beside the simulator where nobody has published one."""

import random

import pytest

from helpers.catalog import ServeSetup, WorkbookError
from helpers.techniques.paging import Request
from helpers.techniques.scheduling import Policy, Roofline, at_once, nim, saturation_point, simulate, steady

ROOF = Roofline.of(ServeSetup("llama-3-8b"), "h100", overhead_s=0.002)


@pytest.mark.parametrize("row", nim.TABLE, ids=lambda row: row.concurrency)
def test_nvidias_table(row):
    mine = steady(nim.roofline(), row.concurrency, nim.users_that_fit(), nim.PROMPT, nim.ANSWER)
    assert mine.itl_s == pytest.approx(row.itl_s, rel=0.02)
    assert mine.tokens_per_s == pytest.approx(row.tokens_per_s, rel=0.07)
    assert mine.saturated == (row.concurrency > 92)
    if mine.saturated:
        assert mine.running == pytest.approx(row.running, rel=0.08)


@pytest.mark.parametrize(
    ("clients", "prompt", "answer"), [(1, 500, 200), (8, 500, 200), (60, 500, 200), (30, 2000, 100), (40, 100, 400)]
)
def test_the_simulator(clients, prompt, answer):
    users = 40
    simulated = simulated_means(clients, prompt, answer, users * -(-(prompt + answer - 1) // 16))
    mine = steady(ROOF, clients, users, prompt, answer, token_budget=1024)
    assert (mine.itl_s, mine.tokens_per_s) == pytest.approx(simulated, rel=0.1)


@pytest.mark.parametrize(
    ("clients", "prompt", "answer", "full"),
    [(60, 1000, 20, True), (40, 4000, 50, True), (60, 300, 20, False), (90, 100, 20, False), (8, 1000, 20, False)],
)
def test_prompts_that_take_most_of_the_budget(clients, prompt, answer, full):
    """More than one prompt in a step, and prompts that ask for more than every step has left. Lengths vary: equal ones
    would keep the clients in step with one another."""
    draw, share = random.Random(1), (0.5, 1.5)
    lengths = [
        (round(prompt * draw.uniform(*share)), round(answer * draw.uniform(*share))) for _ in range(10 * clients)
    ]
    simulated = means_of([Request((1,) * asked, (0,) * told) for asked, told in lengths], clients, blocks=20_000)
    mine = steady(ROOF, clients, clients, prompt, answer, token_budget=1024)
    assert (mine.itl_s, mine.tokens_per_s) == pytest.approx(simulated, rel=0.1)
    assert mine.budget_full == full
    assert (mine.steps.share > 0.95) >= full


def test_from_the_saturation_point_on_nothing_is_gained():
    for prompt, answer, bound in ((500, 200, 40), (4000, 50, 13)):
        at = saturation_point(ROOF, 40, prompt, answer, token_budget=1024)
        assert at == bound
        before, there, after = (
            steady(ROOF, clients, 40, prompt, answer, token_budget=1024) for clients in (at // 2, at + 1, 2 * at)
        )
        assert before.tokens_per_s < 0.99 * there.tokens_per_s
        assert after.tokens_per_s == pytest.approx(there.tokens_per_s, rel=0.03)
        assert after.ttft_s > 2 * before.ttft_s


@pytest.mark.parametrize("cached", [0, 480, 1472])
def test_a_prefix_that_is_found_is_not_computed(cached):
    clients, prompt, answer = 24, 1500, 60
    requests = [
        Request((1,) * cached + tuple(range(9 + at, 9 + at + prompt - cached)), (0,) * answer) for at in range(192)
    ]
    simulated = means_of(requests, clients, blocks=20_000, prefix=True)
    mine = steady(ROOF, clients, clients, prompt, answer, token_budget=1024, cached=cached)
    assert (mine.itl_s, mine.tokens_per_s) == pytest.approx(simulated, rel=0.1)


def simulated_means(clients, prompt, answer, blocks):
    """Inter-token latency and throughput (Little's law) of the simulator's requests of the middle."""
    return means_of([Request((1,) * prompt, (0,) * answer)] * (8 * clients), clients, blocks)


def means_of(requests, clients, blocks, **options):
    policy = Policy(token_budget=1024, admission="to-the-end")
    outcome = simulate(at_once(requests), policy, ROOF, blocks, concurrency=clients, **options)
    middle = [s for s in outcome.served if s.at_s > outcome.seconds / 4 and s.last_token_s < 0.9 * outcome.seconds]
    answer = sum(len(request.answer) for request in requests) / len(requests)
    a_request_s = sum(one.last_token_s - one.at_s for one in middle) / len(middle)
    ttft_s = sum(one.ttft_s for one in middle) / len(middle)
    return (a_request_s - ttft_s) / (answer - 1), clients * answer / a_request_s


def test_little_twice():
    mine = steady(nim.roofline(), 150, 92, nim.PROMPT, nim.ANSWER)
    a_request_s = mine.ttft_s + mine.itl_s * (nim.ANSWER - 1)
    assert pytest.approx(mine.tokens_per_s / nim.ANSWER * a_request_s) == 150
    assert mine.running == pytest.approx(mine.tokens_per_s * mine.itl_s * (nim.ANSWER - 1) / nim.ANSWER)
    assert mine.waiting == 58


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 0}, "clients"),
        ({"prompt": 0}, "prompt"),
        ({"answer": 1}, "answer"),
        ({"users_that_fit": 0}, "users_that_fit"),
        ({"token_budget": 10}, "token_budget is 10"),
        ({"token_budget": 20}, "more than 20, a token for each"),
        ({"cached": 500}, "cached is 500"),
        ({"cached": -1}, "cached is -1"),
    ],
)
def test_what_has_no_steady_state(options, words):
    with pytest.raises(WorkbookError, match=words):
        steady(nim.roofline(), **{"clients": 20, "users_that_fit": 92, "prompt": 500, "answer": 20, **options})
