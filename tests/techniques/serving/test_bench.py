"""The client's figures against a server that follows a script: counts, order and lower bounds, no exact times."""

import asyncio
import contextlib
import json

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from helpers.catalog import WorkbookError
from helpers.techniques.serving import BenchJob, BenchReport, RequestOutcome, Spread, run_bench
from tests.techniques.serving.running import engine_of, prompts, served

# By prompt: a status, or the script of a stream; a number is a pause in seconds, a text a chunk, the rest an event.
SCRIPTS = {
    "steady": (0.2, "a", 0.05, "b", 0.05, "c", {"completion_tokens": 3}, "[DONE]"),
    "lumps": (0.1, "a", 0.1, "b c", 0.1, "d e", {"completion_tokens": 5}, "[DONE]"),
    "uncounted": ("a", "b", "[DONE]"),
    "busy": 429,
    "ill": 500,
    "broken": ("a", "b"),
    "cut": ("a", None),
    "error": ("a", {"error": {"message": "no"}}),
    "silent": ("[DONE]",),
    "odd": ("a", ["what"], "[DONE]"),
}


class Scripted(RequestHandler):
    seen: list = []  # noqa: RUF012 - shared on purpose; each test makes its own class
    most = 0
    now = 0

    async def post(self):
        kind = type(self)
        body = json.loads(self.request.body)
        kind.seen.append(body)
        kind.now += 1
        kind.most = max(kind.most, kind.now)
        try:
            await self.follow(SCRIPTS[body["prompt"]])
        finally:
            kind.now -= 1

    async def follow(self, script):
        if isinstance(script, int):
            self.set_status(script)
            return
        for one in script:
            if one is None:
                await self.flush()
                self.request.connection.stream.close()
            elif isinstance(one, float):
                await asyncio.sleep(one)
            else:
                self.write(f"data: {one if one == '[DONE]' else json.dumps(self.event(one))}\n\n")
                await self.flush()

    def event(self, one):
        if isinstance(one, str):
            return {"choices": [{"text": one, "finish_reason": None}]}
        return {"choices": [], "usage": one} if "completion_tokens" in one else one


class Models(RequestHandler):
    def get(self):
        self.finish({"data": [{"id": "scripted"}]})


@contextlib.contextmanager
def scripted():
    kind = type("Fresh", (Scripted,), {"seen": []})
    server = HTTPServer(Application([("/v1/completions", kind), ("/v1/models", Models)], log_function=lambda _: None))
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}", kind
    finally:
        server.stop()


def report_of(names, **load):
    async def whole():
        with scripted() as (url, kind):
            return await run_bench(url, [BenchJob(name, 9) for name in names], bar=False, **load), kind

    return asyncio.run(whole())


def test_times_of_a_steady_stream():
    report, kind = report_of(["steady"] * 4, concurrency=2)
    assert (len(report.answered), report.tokens, report.tokens_per_chunk, report.failures) == (4, 12, 1, {})
    assert report.model == "scripted"
    assert kind.most == 2
    for outcome in report.outcomes:
        assert outcome.first_token_s >= 0.19
        assert len(outcome.between_tokens_s) == 2
        assert min(outcome.between_tokens_s) > 0.02
        assert outcome.end_to_end_s >= outcome.first_token_s + sum(outcome.between_tokens_s)
        assert outcome.text == "abc"
    assert report.seconds >= 2 * 0.29  # two rounds of two
    assert report.tokens_per_s == pytest.approx(12 / report.seconds)


def test_a_chunk_of_several_tokens_counts_as_the_server_says():
    (outcome,) = report_of(["lumps"], concurrency=1)[0].outcomes
    assert (outcome.tokens, len(outcome.chunks_s)) == (5, 3)
    first, _, last = outcome.chunks_s
    mean = sum(outcome.between_tokens_s) / len(outcome.between_tokens_s)
    assert mean == pytest.approx((last - first) / 4)


def test_without_usage_each_chunk_is_a_token():
    report, kind = report_of(["uncounted"], concurrency=1)
    assert report.tokens == 2
    assert kind.seen[0]["stream_options"] == {"include_usage": True}


def test_failures_by_status_and_the_rest_still_counts():
    names = ["steady", "busy", "ill", "broken", "cut", "error", "silent", "odd", "busy"]
    report, _ = report_of(names, concurrency=3)
    assert report.failures == {
        "429": 2,
        "500": 1,
        "a stream without [DONE]": 1,
        "RemoteProtocolError": 1,
        "an error in the stream": 1,
        "no tokens": 1,
        "an event that is not OpenAI's": 1,
    }
    assert [outcome.failure is None for outcome in report.outcomes] == [True] + [False] * 8  # in the jobs' order
    assert report.tokens == 3
    assert "failed, 429: 2" in str(report)
    assert report.figures["time_to_first_token_s"]["p99"] >= 0.19


def test_a_rate_does_not_wait_for_answers():
    report, kind = report_of(["steady"] * 12, rate=200.0)
    assert len(report.answered) == 12
    assert kind.most > 4
    sent = [outcome.sent_s for outcome in report.outcomes]
    assert sent == sorted(sent)
    assert sent[-1] < 1


def test_nothing_answered_has_no_times():
    report, _ = report_of(["ill"], concurrency=1)
    assert set(report.spreads.values()) == {None}
    assert report.tokens_per_s == 0
    assert "0 of 1 requests" in str(report)


def test_quantiles():
    assert Spread.of([0.01 * n for n in range(100, 0, -1)]) == Spread(pytest.approx(0.505), 0.5, 0.9, 0.99)
    outcome = RequestOutcome(sent_s=1.0, done_s=3.0, chunks_s=(1.5, 2.5), tokens=3)
    assert (outcome.first_token_s, outcome.end_to_end_s, outcome.between_tokens_s) == (0.5, 2.0, (0.5,))
    assert BenchReport("m", (outcome,), 2.0).tokens_per_s == 1.5


@pytest.mark.parametrize("load", [{}, {"rate": 1.0, "concurrency": 1}, {"rate": 0.0}, {"concurrency": 0}])
def test_a_load_must_be_defined(load):
    with pytest.raises(WorkbookError):
        report_of(["steady"], **load)


def test_our_own_server():
    async def whole():
        async with served(engine_of()) as (server, client):
            jobs = [BenchJob(tuple(prompt), 7) for prompt in prompts(20)]
            report = await run_bench(str(client.base_url), jobs, concurrency=20, bar=False)
            assert report.failures == {}
            assert report.tokens == server.worker.counts.tokens
            assert 0 < report.tokens <= 140

    asyncio.run(whole())
