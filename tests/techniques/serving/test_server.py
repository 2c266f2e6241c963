"""The server: the engine's tokens come through HTTP to whom they belong, and whatever goes wrong frees its blocks."""

import asyncio
import json
import logging
import os
import sys
import time

import psutil
import pytest
import torch

from helpers.techniques.serving.protocol import CompletionRequest
from helpers.techniques.serving.worker import EngineWorker
from tests.techniques.serving.running import (
    all_given_back,
    client_of,
    engine_of,
    expected,
    prompts,
    served,
    slowed,
    small,
    streamed,
    until,
)

PROMPT = "they gave anna bread ."
BAD = [
    (b"", "the body is not JSON"),
    (b'{"prompt": ', "the body is not JSON"),
    (b"\xff", "the body is not JSON"),
    (b"[" * 100_000, "the body is not JSON"),
    (b"[1]", "not a JSON object"),
    ({}, "prompt is null"),
    ({"prompt": ""}, "prompt is"),
    ({"prompt": []}, "prompt is []"),
    ({"prompt": 7}, "prompt is 7"),
    ({"prompt": ["a", "b"]}, 'prompt has "a" in it'),
    ({"prompt": [[5]]}, "prompt has [5] in it"),
    ({"prompt": [5, None]}, "prompt has null in it"),
    ({"prompt": [True]}, "prompt has true in it"),
    ({"prompt": [5.0]}, "prompt has 5.0 in it"),
    ({"prompt": [416]}, "each from 0 to 415"),
    ({"prompt": [-1]}, "each from 0 to 415"),
    ({"prompt": [10**30]}, "each from 0 to 415"),
    (b'{"prompt": "\\ud800"}', "no valid Unicode"),
    ({"prompt": PROMPT, "model": "gpt-4"}, "unknown model"),
    ({"prompt": PROMPT, "model": 4}, "unknown model"),
    ({"prompt": PROMPT, "max_tokens": 0}, "max_tokens is 0"),
    ({"prompt": PROMPT, "max_tokens": -1}, "max_tokens is -1"),
    ({"prompt": PROMPT, "max_tokens": 1.5}, "max_tokens is 1.5"),
    ({"prompt": PROMPT, "max_tokens": "5"}, "max_tokens is"),
    ({"prompt": PROMPT, "max_tokens": True}, "max_tokens is true"),
    ({"prompt": PROMPT, "max_tokens": 5000}, "at most 4096"),
    ({"prompt": PROMPT, "max_tokens": 900}, "fit in the pool"),
    (b'{"prompt": "a", "max_tokens": NaN}', "max_tokens is NaN"),
    ({"prompt": PROMPT, "stream": "yes"}, "stream is"),
    ({"prompt": PROMPT, "stream_options": 3}, "stream_options is 3"),
    ({"prompt": PROMPT, "user": 3}, "user is 3"),
    ({"prompt": PROMPT, "user": "x" * 300}, "user has 300 characters"),
    ({"prompt": PROMPT, "priority": "high"}, "priority is"),
    ({"prompt": PROMPT, "priority": 10**400}, "priority is 1000"),
    ({"prompt": PROMPT, "temperature": 0.7}, "this engine is greedy"),
    ({"prompt": PROMPT, "n": 2}, "this engine is greedy"),
    ({"prompt": PROMPT, "logprobs": 0}, "this engine is greedy"),
    ({"prompt": PROMPT, "max_token": 5}, "unknown field"),
]


def run(scene, engine=None, **options):
    """`scene(server, client)` against a server of its own; then everything must have been given back."""

    async def whole():
        async with served(engine or engine_of(), **options) as (server, client):
            await scene(server, client)
            await all_given_back(server)

    asyncio.run(whole())


def test_every_bad_request_has_its_reason():
    async def scene(server, client):
        for body, reason in BAD:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = await client.post("/v1/completions", content=content)
            assert answer.status_code == 400, (content[:80], answer.text)
            assert reason in answer.json()["error"]["message"], content[:80]
            assert len(answer.text) < 1000
        assert (await streamed(client, prompts(1)[0], 3))[0] == 200

    run(scene, engine_of(blocks=50))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("POST", "/v1/chat/completions", 404), ("GET", "/v1/completions", 405)],
)
def test_what_is_not_there_says_so(method, path, status):
    async def scene(server, client):
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert path in answer.json()["error"]["message"]

    run(scene)


def test_answers_are_those_of_generate():
    model, tokenizer = small()
    ids = tokenizer(PROMPT).input_ids
    out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24, pad_token_id=0)
    tokens = out[0, len(ids) :].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=True)

    async def scene(server, client):
        for prompt in (PROMPT, ids):
            assert await streamed(client, prompt, 24) == (200, tokens, text, True)
            body = {"model": "small", "prompt": prompt, "max_tokens": 24, "return_token_ids": True}
            answer = (await client.post("/v1/completions", json=body)).json()
            (choice,) = answer["choices"]
            assert (choice["token_ids"], choice["text"], choice["finish_reason"]) == (tokens, text, "length")
            assert answer["usage"] == {"prompt_tokens": 6, "completion_tokens": 24, "total_tokens": 30}

    run(scene)


def test_the_end_token_is_a_stop():
    engine = engine_of()
    first = expected(prompts(1), 3)[0]
    engine.ends = frozenset(first[2:3])

    async def scene(server, client):
        body = {"prompt": prompts(1)[0], "max_tokens": 9, "return_token_ids": True}
        (choice,) = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert choice["token_ids"] == first
        assert choice["finish_reason"] == "stop"

    run(scene, engine)


def test_forty_streams_at_once_are_not_mixed_up():
    asked = prompts(40)
    right = expected(asked, 12)
    assert len({tuple(tokens) for tokens in right}) > 10

    async def scene(server, client):
        answers = await asyncio.gather(*(streamed(client, prompt, 12) for prompt in asked))
        assert [(status, tokens, done) for status, tokens, _, done in answers] == [(200, t, True) for t in right]

    run(scene)


def test_the_smaller_priority_goes_first():
    async def scene(server, client):
        order = []

        async def one(number, priority):
            await streamed(client, prompts(9)[number], 4, priority=priority, user=str(number))
            order.append(priority)

        first = asyncio.create_task(one(0, -5))
        await until(lambda: server.worker.counts.running == 1)
        await asyncio.gather(first, *(one(1 + number, priority) for number, priority in enumerate((3, 1, 2))))
        assert order == [-5, 1, 2, 3]

    run(scene, slowed(engine_of(max_running=1), 0.05))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("waiting", [True, False])
def test_who_hangs_up_gives_his_blocks_back(stream, waiting):
    async def scene(server, client):
        tasks = [asyncio.create_task(streamed(client, prompts(2)[0], 2000 if not waiting else 40))]
        await until(lambda: server.worker.counts.running == 1)
        body = {"prompt": prompts(2)[1], "max_tokens": 2000, "stream": stream}
        leaving = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: server.worker.counts.waiting == 1)
        if not waiting:
            tasks[0].cancel()
            await until(lambda: (server.worker.counts.running, server.worker.counts.waiting) == (1, 0))
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        if waiting:
            assert (await tasks[0])[3]
        await all_given_back(server)
        assert server.worker.counts.tokens < 500
        assert server.open == set()

    run(scene, slowed(engine_of(max_running=1), 0.01))


def test_a_full_waiting_room_says_try_again():
    async def scene(server, client):
        tasks = [asyncio.create_task(streamed(client, prompt, 30)) for prompt in prompts(3)]
        await until(lambda: (server.worker.counts.running, server.worker.counts.waiting) == (1, 2))
        answer = await client.post("/v1/completions", json={"prompt": PROMPT})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) > 0
        assert "2 requests wait already" in answer.json()["error"]["message"]
        never = await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 5000})
        assert never.status_code == 400
        assert [status for status, *_ in await asyncio.gather(*tasks)] == [200] * 3

    run(scene, slowed(engine_of(max_running=1)), max_waiting=2)


def test_a_burst_fills_free_rows_before_anybody_is_refused():
    async def scene():
        worker = EngineWorker(engine_of(), 4, asyncio.get_running_loop())
        tickets = [
            worker.submit(CompletionRequest(tuple(prompt), 2)) for prompt in prompts(30)
        ]  # before the first step
        worker.start()
        problems = [(await asyncio.wait_for(ticket.updates.get(), 60)).problem for ticket in tickets]
        worker.stop(60)
        assert problems[: 16 + 4] == [None] * 20
        assert [problem.status for problem in problems[16 + 4 :]] == [429] * 10

    asyncio.run(scene())


def test_a_step_that_fails_is_the_end_of_its_requests_alone(caplog):
    engine = slowed(engine_of(max_running=2))
    forward, left = engine._forward, [10]

    def failing(plan):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("out of luck")
        return forward(plan)

    engine._forward = failing

    async def scene(server, client):
        answers = await asyncio.gather(*(streamed(client, prompt, 200) for prompt in prompts(4)))
        begun, waited = sorted(answers, key=lambda one: one[0])[:2], sorted(answers, key=lambda one: one[0])[2:]
        assert [(status, bool(tokens), done) for status, tokens, _, done in begun] == [(200, True, False)] * 2
        assert [status for status, *_ in waited] == [500, 500]
        assert all("out of luck" in text for _, _, text, _ in answers)
        await all_given_back(server)
        assert left[0] > -10  # at once: nobody was computed to his end
        assert (await streamed(client, prompts(1)[0], 5))[1] == expected(prompts(1), 5)[0]

    with caplog.at_level(logging.CRITICAL, "helpers.techniques.serving.worker"):
        run(scene, engine)


@pytest.mark.parametrize("grace_s", [20.0, 0.2])
def test_stopping_refuses_who_comes_and_ends_who_is_there(grace_s):
    async def scene(server, client):
        task = asyncio.create_task(streamed(client, prompts(1)[0], 60))
        await until(lambda: server.worker.counts.running == 1)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.05)
        assert (await client.post("/v1/completions", json={"prompt": PROMPT})).status_code == 503
        assert (await client.get("/health")).status_code == 503
        _, tokens, text, done = await task
        assert done == (grace_s > 1)
        assert len(tokens) == 60 if done else "the server has stopped" in text
        await stopping

    run(scene, slowed(engine_of()), grace_s=grace_s)


def test_models_health_and_metrics():
    async def scene(server, client):
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "small"
        assert (await client.get("/health")).json() == {"status": "ok"}
        await streamed(client, prompts(1)[0], 5)
        await all_given_back(server)
        lines = (await client.get("/metrics")).text.splitlines()
        told = dict(line.split() for line in lines if not line.startswith("#"))
        assert {name.removeprefix("workbook_"): int(value) for name, value in told.items()} == {
            "requests_running": 0,
            "requests_waiting": 0,
            "free_blocks": 256,
            "blocks": 256,
            "generated_tokens_total": 5,
        }

    run(scene)


SOAK_S, WARM_S, USERS = 60.0, 20.0, 200
SERVE = ["--port", "0", "--blocks", "1024", "--max-running", "200", "--token-budget", "256", "--max-waiting", "200"]


@pytest.mark.slow
@pytest.mark.alone
def test_two_hundred_streams_for_a_minute():
    """None is lost, none mixed up, and the server's resident memory does not grow."""
    asked = prompts(USERS)
    right = expected(asked, 12)
    asyncio.run(soak(asked, right))


async def soak(asked, right):
    command = [sys.executable, "-m", "helpers.cli", "serve", *SERVE]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env={**os.environ})
    try:
        url = next(word for word in (await server.stdout.readline()).decode().split() if "http" in word).strip(",")
        async with client_of(url) as client:
            began, wrong, answered = time.monotonic(), [], [0] * USERS

            async def user(number):
                while time.monotonic() - began < WARM_S + SOAK_S:
                    status, tokens, _, done = await streamed(client, asked[number], 12)
                    answered[number] += 1
                    if (status, tokens, done) != (200, right[number], True):
                        wrong.append((number, status, tokens))

            users = asyncio.gather(*(user(number) for number in range(USERS)))
            await asyncio.sleep(WARM_S)
            warm = psutil.Process(server.pid).memory_info().rss
            await users
            grown = psutil.Process(server.pid).memory_info().rss - warm
            assert wrong == []
            assert min(answered) >= 2
            assert grown < 16 * 2**20, f"{grown / 2**20:.1f} MiB more, {sum(answered)} answers"
            told = (await client.get("/metrics")).text
            assert "\nworkbook_free_blocks 1024\n" in told
        server.terminate()
        assert await server.wait() == 0
    finally:
        if server.returncode is None:
            server.kill()
