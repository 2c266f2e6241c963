"""Requests as services see them, made from a seed: chat with a system prompt, documents, code completion. No torch.

Lengths are in tokens and log-normal around a median, cut at the ends: most answers are short, some are very long.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from ...catalog.errors import require_name, require_whole


@dataclass(frozen=True)
class Request:
    """A prompt and the answer that it got, as token ids. An engine that decodes uses `new_tokens` only."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def new_tokens(self) -> int:
        return len(self.answer)

    @property
    def tokens(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class RequestTrace:
    """Requests in the order in which they come, and the longest that the service accepts."""

    name: str
    requests: tuple[Request, ...]
    max_tokens: int

    @property
    def tokens(self) -> int:
        return sum(request.tokens for request in self.requests)


def chat(
    requests: int = 200,
    seed: int = 0,
    system: int = 256,
    turns: int = 1,
    message: int = 60,
    answer: int = 150,
    vocab: int = 32_000,
    max_tokens: int = 2048,
) -> RequestTrace:
    """Conversations of `turns` requests that begin with the same `system` tokens.

    `message` and `answer` are medians. Each turn's prompt holds the conversation so far, and the turns of 16
    conversations come in rotation, as those of many users do.
    """
    draw = _Draw(seed, vocab)
    start = draw.ids(system)
    waves: list[list[Request]] = []
    for at in range(0, math.ceil(requests / turns), 16):
        spoken = [start] * min(16, math.ceil(requests / turns) - at)
        for _ in range(turns):
            wave = [Request(said + draw.some(message), draw.some(answer)) for said in spoken]
            spoken = [request.prompt + request.answer for request in wave]
            waves.append(wave)
    return _trace("chat", [request for wave in waves for request in wave], requests, max_tokens)


def documents(
    requests: int = 100,
    seed: int = 0,
    document: int = 1200,
    answer: int = 100,
    instruction: int = 24,
    vocab: int = 32_000,
    max_tokens: int = 4096,
) -> RequestTrace:
    """One question for each of many long texts: only the short `instruction` before them is shared."""
    draw = _Draw(seed, vocab)
    start = draw.ids(instruction)
    made = [Request(start + draw.some(document), draw.some(answer)) for _ in range(requests)]
    return _trace("documents", made, requests, max_tokens)


def code(
    requests: int = 200,
    seed: int = 0,
    file: int = 600,
    typed: int = 12,
    answer: int = 20,
    files: int = 4,
    vocab: int = 32_000,
    max_tokens: int = 4096,
) -> RequestTrace:
    """Completions while `files` people type: each prompt is the file as it was, and a few tokens more."""
    draw = _Draw(seed, vocab)
    texts = [draw.some(file) for _ in range(files)]
    made = []
    for at in range(requests):
        texts[at % files] += draw.some(typed)
        made.append(Request(texts[at % files], draw.some(answer)))
    return _trace("code", made, requests, max_tokens)


TRACES: dict[str, Callable[..., RequestTrace]] = {"chat": chat, "documents": documents, "code": code}


def trace(name: str, **options: int) -> RequestTrace:
    """The trace called `name`: "chat", "documents" or "code"; the same for the same seed and options."""
    return TRACES[require_name("trace", name, TRACES)](**options)


class _Draw:
    """Token ids and lengths from one seed."""

    def __init__(self, seed: int, vocab: int) -> None:
        self.random, self.vocab = random.Random(seed), require_whole("vocab", vocab, least=10)

    def ids(self, length: int) -> tuple[int, ...]:
        return tuple(self.random.choices(range(4, self.vocab), k=length))  # 0 to 3: padding, begin, end

    def some(self, median: int) -> tuple[int, ...]:
        length = round(self.random.lognormvariate(math.log(median), 0.6))
        return self.ids(min(max(length, 1), 4 * median))


def _trace(name: str, requests: list[Request], wanted: int, max_tokens: int) -> RequestTrace:
    """What is longer than the service takes is cut: the prompt's end stays, and at least one token of the answer."""
    require_whole("requests", wanted)
    require_whole("max_tokens", max_tokens, least=2)
    cut = []
    for request in requests[:wanted]:
        prompt = request.prompt[-(max_tokens - 1) :]
        cut.append(Request(prompt, request.answer[: max_tokens - len(prompt)]))
    return RequestTrace(name, tuple(cut), max_tokens)
