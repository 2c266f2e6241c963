"""The small model behind HTTP on a free port, and prompts of which no two are alike."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time

import httpx

from helpers.small_lm import load
from helpers.techniques.scheduling import Policy, ScheduledEngine
from helpers.techniques.serving import CompletionServer, listen

TIMEOUT_S = 60.0


@functools.cache
def small():
    return load()


def engine_of(blocks=256, max_running=16, token_budget=64, **options):
    policy = Policy(token_budget=token_budget, max_running=max_running, order="priority", **options)
    return ScheduledEngine(small().model, blocks=blocks, policy=policy)


def slowed(engine, seconds=0.02):
    """Its steps take `seconds` longer, so that a test can meet it at work."""
    step = engine.step

    def slow():
        time.sleep(seconds)
        return step()

    engine.step = slow
    return engine


def prompts(count):
    start = small().tokenizer("they gave anna bread . in autumn").input_ids
    return [[*start, 20 + number % 390, 20 + number // 390, 6] for number in range(count)]


def expected(asked, new_tokens):
    """What the engine itself answers, by prompt."""
    engine = engine_of(blocks=1024)
    made = [engine.submit(prompt, new_tokens) for prompt in asked]
    while engine.busy:
        engine.step()
    return [sequence.tokens for sequence in made]


@contextlib.asynccontextmanager
async def served(engine, **options):
    server = CompletionServer(engine, small().tokenizer, "small", **options)
    opened = listen(0)
    server.start(opened)
    async with client_of("http://{}:{}".format(*opened.getsockname())) as client:
        try:
            yield server, client
        finally:
            await server.stop()


def client_of(url):
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url, trust_env=False, timeout=TIMEOUT_S, limits=limits)


async def streamed(client, prompt, new_tokens, **more):
    """Status, token ids and text as they came, and whether [DONE] did; the error's message in place of the text."""
    body = {"prompt": prompt, "max_tokens": new_tokens, "stream": True, "return_token_ids": True, **more}
    tokens, text, done = [], "", False
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            return answer.status_code, [], json.loads(await answer.aread())["error"]["message"], False
        async for line in answer.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                done = True
            elif data:
                read = json.loads(data)
                text = read["error"]["message"] if "error" in read else text + read["choices"][0]["text"]
                tokens += [] if "error" in read else read["choices"][0]["token_ids"]
    return answer.status_code, tokens, text, done


async def until(true, seconds=20.0):
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not come true"
        await asyncio.sleep(0.01)


async def all_given_back(server):
    def idle():
        counts = server.worker.counts
        return (counts.running, counts.waiting, counts.free_blocks) == (0, 0, counts.blocks)

    await until(idle)
