"""A client that loads any OpenAI-compatible server, and counts what its users would see.

Times are seconds of this machine's clock, network included. A chunk of a stream may hold several tokens: the server's
`usage` says how many the answer had, and where it says nothing each chunk counts as one. The time to the first token is
that of the first chunk. Of an answer with n tokens in c chunks, each of the c - 1 gaps between chunks counts as
(n - 1) / (c - 1) gaps between tokens, so that they add up to the time from first to last: means are exact, and what
a user waits at once is up to that many times more than percentiles say. `tokens_per_chunk` shows whether it matters.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from tqdm import tqdm

from ...catalog.errors import WorkbookError, require_number, require_whole
from ..scheduling import percentile


@dataclass(frozen=True)
class BenchJob:
    """One request: a text or token ids, and the most new tokens."""

    prompt: str | tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True)
class RequestOutcome:
    """One request as the client saw it; seconds since the run began. `failure`: a status or what broke, else None."""

    sent_s: float
    done_s: float
    chunks_s: tuple[float, ...] = ()  # when each chunk with tokens came
    tokens: int = 0
    text: str = ""
    failure: str | None = None

    @property
    def first_token_s(self) -> float:
        return self.chunks_s[0] - self.sent_s

    @property
    def end_to_end_s(self) -> float:
        return self.done_s - self.sent_s

    @property
    def between_tokens_s(self) -> tuple[float, ...]:
        """The gap before each chunk but the first, for each token of it; see the module."""
        if self.tokens < 2:
            return ()
        share = (len(self.chunks_s) - 1) / (self.tokens - 1)
        pairs = zip(self.chunks_s, self.chunks_s[1:], strict=False)
        return tuple((later - earlier) * share for earlier, later in pairs)


@dataclass(frozen=True)
class Spread:
    """Values in seconds: their mean, and the smallest that 50, 90 and 99 % of them do not exceed."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of no values."""
        if not values:
            return None
        return cls(sum(values) / len(values), *(percentile(values, share) for share in (0.5, 0.9, 0.99)))


@dataclass(frozen=True)
class BenchReport:
    """A run: one outcome for each job, in the jobs' order, and `seconds` from its start to the last answer."""

    model: str
    outcomes: tuple[RequestOutcome, ...]
    seconds: float

    @property
    def answered(self) -> tuple[RequestOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.failure is None)

    @property
    def failures(self) -> dict[str, int]:
        """How many by status, or by what broke."""
        return dict(Counter(outcome.failure for outcome in self.outcomes if outcome.failure is not None))

    @property
    def tokens(self) -> int:
        return sum(outcome.tokens for outcome in self.answered)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_chunk(self) -> float:
        return self.tokens / max(1, sum(len(outcome.chunks_s) for outcome in self.answered))

    @property
    def spreads(self) -> dict[str, Spread | None]:
        """By what was timed; None where nothing was."""
        return {
            "time to first token": Spread.of([outcome.first_token_s for outcome in self.answered]),
            "between tokens": Spread.of([gap for outcome in self.answered for gap in outcome.between_tokens_s]),
            "end to end": Spread.of([outcome.end_to_end_s for outcome in self.answered]),
        }

    @property
    def figures(self) -> dict[str, Any]:
        """Plain values for JSON, in seconds and tokens."""
        spreads = {name.replace(" ", "_") + "_s": spread and vars(spread) for name, spread in self.spreads.items()}
        counts = {"requests": len(self.outcomes), "answered": len(self.answered), "failures": self.failures}
        rates = {"tokens": self.tokens, "tokens_per_s": self.tokens_per_s, "tokens_per_chunk": self.tokens_per_chunk}
        return {"model": self.model, **counts, "seconds": self.seconds, **rates, **spreads}

    def __str__(self) -> str:
        rows = [
            f"{len(self.answered)} of {len(self.outcomes)} requests answered by {self.model} in {self.seconds:.2f} s"
        ]
        rows.append(f"{self.tokens:,} tokens, {self.tokens_per_s:,.1f} tokens/s, {self.tokens_per_chunk:.2f} a chunk")
        rows.append(f"{'ms':>20}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}")
        for name, spread in self.spreads.items():
            values = vars(spread).values() if spread else ()
            rows.append(f"{name:>20}" + "".join(f"{1000 * value:>10.1f}" for value in values))
        rows += [f"failed, {what}: {count}" for what, count in sorted(self.failures.items())]
        return "\n".join(rows)


async def run_bench(
    url: str,
    jobs: Sequence[BenchJob],
    rate: float | None = None,
    concurrency: int | None = None,
    seed: int = 0,
    timeout_s: float = 120.0,
    bar: bool = True,
) -> BenchReport:
    """Send `jobs` to the server at `url`: `rate` a second at random (Poisson) times, or `concurrency` at once.

    Give one of the two. `timeout_s` without a byte fails a request. WorkbookError if no such server answers there.
    """
    if (rate is None) == (concurrency is None) or not jobs:
        raise WorkbookError("a load that is not defined", "jobs, and a rate or a concurrency", "pass concurrency=8")
    # A proxy would be measured too.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    options: dict[str, Any] = {"timeout": httpx.Timeout(timeout_s, pool=None), "limits": limits, "trust_env": False}
    async with httpx.AsyncClient(**options) as client:
        base = _base(url)
        run = _BenchRun(client, base, await _model(client, base))
        with tqdm(total=len(jobs), unit="request", disable=None if bar else True) as run.bar:
            if rate is not None:
                outcomes = await run.open_loop(jobs, rate, seed)
            else:
                outcomes = await run.closed_loop(jobs, require_whole("concurrency", concurrency))
    return BenchReport(run.model, tuple(outcomes), max(outcome.done_s for outcome in outcomes))


def _base(url: str) -> str:
    """Without the path that clients of OpenAI's give along."""
    base = url.rstrip("/").removesuffix("/v1")
    try:
        parsed = httpx.URL(base)
    except httpx.InvalidURL as error:
        raise WorkbookError(f"the address {url!r}: {error}", "one like http://127.0.0.1:8000", "check --url") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise WorkbookError(f"the address {url!r}", "one like http://127.0.0.1:8000", "begin it with http://")
    return base


async def _model(client: httpx.AsyncClient, base: str) -> str:
    """The first model that the server names."""
    do = "start one with `workbook serve`, and pass the address that it prints"
    try:
        answer = await client.get(f"{base}/v1/models")
    except httpx.HTTPError as error:
        told = str(error) or type(error).__name__
        raise WorkbookError(f"no server answers at {base}: {told}", "a server that runs", do) from None
    try:
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        what = f"{base}/v1/models answers with status {answer.status_code}, and names no model"
        raise WorkbookError(what, "an OpenAI-compatible server", do) from None


@dataclass
class _BenchRun:
    client: httpx.AsyncClient
    base: str
    model: str
    bar: tqdm = field(init=False)
    began: float = field(default_factory=time.perf_counter)

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    async def open_loop(self, jobs: Sequence[BenchJob], rate: float, seed: int) -> list[RequestOutcome]:
        """Times are drawn beforehand, so that a slow server does not slow the load."""
        require_number("rate", rate, below=1e6, expected="requests per second above zero", do="pass --rate 5")
        draw, at, tasks = random.Random(seed), 0.0, []
        for job in jobs:
            at += draw.expovariate(rate)
            await asyncio.sleep(max(0.0, at - self.now))
            tasks.append(asyncio.create_task(self.one(job)))
        return list(await asyncio.gather(*tasks))

    async def closed_loop(self, jobs: Sequence[BenchJob], concurrency: int) -> list[RequestOutcome]:
        """Each of `concurrency` users sends the next job when the one before is answered."""
        outcomes: dict[int, RequestOutcome] = {}
        left = iter(enumerate(jobs))

        async def user() -> None:
            for number, job in left:
                outcomes[number] = await self.one(job)

        await asyncio.gather(*(user() for _ in range(min(concurrency, len(jobs)))))
        return [outcomes[number] for number in range(len(jobs))]

    async def one(self, job: BenchJob) -> RequestOutcome:
        prompt = job.prompt if isinstance(job.prompt, str) else list(job.prompt)
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": job.max_tokens,
            "temperature": 0,
            "stream": True,
        }
        body["stream_options"] = {"include_usage": True}
        sent = self.now
        try:
            async with self.client.stream("POST", f"{self.base}/v1/completions", json=body) as answer:
                if answer.status_code == 200:
                    return await self._streamed(sent, answer)
                await answer.aread()
                return RequestOutcome(sent, self.now, failure=str(answer.status_code))
        except httpx.HTTPError as error:
            return RequestOutcome(sent, self.now, failure=type(error).__name__)
        except (ValueError, LookupError, TypeError, AttributeError):
            return RequestOutcome(sent, self.now, failure="an event that is not OpenAI's")
        finally:
            self.bar.update()

    async def _streamed(self, sent: float, answer: httpx.Response) -> RequestOutcome:
        chunks, texts, counted = [], [], None
        async for data in _events(answer):
            if data == "[DONE]":
                break
            read = json.loads(data)
            if "error" in read:
                return RequestOutcome(sent, self.now, failure="an error in the stream")
            counted = (read.get("usage") or {}).get("completion_tokens", counted)
            for one in read.get("choices", ())[:1]:
                texts.append(one["text"])
                if one["text"] or not one.get("finish_reason"):
                    chunks.append(self.now)
        else:
            return RequestOutcome(sent, self.now, failure="a stream without [DONE]")
        if not chunks:
            return RequestOutcome(sent, self.now, failure="no tokens")
        tokens = len(chunks) if counted is None else int(counted)
        return RequestOutcome(sent, self.now, tuple(chunks), tokens, "".join(texts))


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    """What stands behind `data:`; a line each, as every such server sends it."""
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield line.removeprefix("data:").strip()
