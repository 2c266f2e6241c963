"""OpenAI's completions, as far as a greedy engine goes: a body is read, or refused with a reason. No tornado."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedTokenizerBase

MOST_URGENCY = 2**31  # priorities lie between minus and plus this
MOST_USER = 256  # characters
# What a greedy engine does anyhow, or ignores: any other value would be a promise that it does not keep.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "temperature": (0,),
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "echo": (False,),
    "stop": ([],),
    "logit_bias": ({},),
    "logprobs": (),
    "suffix": ("",),
}
IGNORED = ("seed", "top_p")  # greedy decoding is the same whatever they are


class RequestError(Exception):
    """A request that gets no answer: the status, and the reason in OpenAI's form. `param` is the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.retry_after_s = status, message, param, retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}


@dataclass(frozen=True)
class CompletionRequest:
    """A request that was understood. `max_tokens` new ones at most; the smaller `priority` goes first."""

    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool = False
    user: str = ""
    priority: int = 0
    usage: bool = False  # a last chunk that counts the tokens
    token_ids: bool = False  # beside the text, as vLLM's `return_token_ids`


def read(body: bytes, served: str, tokenizer: PreTrainedTokenizerBase) -> CompletionRequest:
    """The request in `body`, for the model called `served`. RequestError 400 with the reason if it cannot be read."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise RequestError(400, f"the body is {_short(given)}, not a JSON object")
    given = {name: value for name, value in given.items() if value is not None}
    _refuse_other_promises(given)
    if given.get("model", served) != served:
        raise RequestError(400, f"unknown model {_short(given['model'])}; this server has {served!r}", "model")
    options = _of_type(given, "stream_options", dict, {})
    return CompletionRequest(
        _prompt(given, tokenizer),
        _whole(given, "max_tokens", 16, 1, 2**31),
        _of_type(given, "stream", bool, False),
        _user(given),
        _whole(given, "priority", 0, -MOST_URGENCY, MOST_URGENCY),
        _of_type(options, "include_usage", bool, False),
        _of_type(given, "return_token_ids", bool, False),
    )


def _refuse_other_promises(given: dict[str, Any]) -> None:
    known = {"model", "prompt", "max_tokens", "stream", "stream_options", "user", "priority", "return_token_ids"}
    for name, value in given.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            kept = " or ".join(json.dumps(one) for one in NEUTRAL[name]) or "null"
            raise RequestError(400, f"{name} is {_short(value)}; this engine is greedy and knows {kept} alone", name)
        if name not in known and name not in NEUTRAL and name not in IGNORED:
            raise RequestError(
                400, f"unknown field {_short(name)}; this server knows {', '.join(sorted(known))}", name[:80]
            )


def _prompt(given: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Token ids of the prompt; whether the model knows them is the engine's to say."""
    prompt = given.get("prompt")
    if not isinstance(prompt, (str, list)) or not prompt:
        raise RequestError(
            400, f"prompt is {_short(prompt)}; expected a text or a list of token ids, not empty", "prompt"
        )
    if isinstance(prompt, list):
        odd = next((one for one in prompt if isinstance(one, bool) or not isinstance(one, int)), None)
        if odd is not None or None in prompt:
            raise RequestError(
                400, f"prompt has {_short(odd)} in it; a list must be token ids, of one prompt", "prompt"
            )
        return tuple(prompt)
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise RequestError(400, "prompt is no valid Unicode: half of a surrogate pair", "prompt") from None
    return tuple(tokenizer(prompt).input_ids)


def _user(given: dict[str, Any]) -> str:
    user = _of_type(given, "user", str, "")
    if len(user) > MOST_USER:
        raise RequestError(400, f"user has {len(user)} characters; at most {MOST_USER} are kept", "user")
    return user


def _whole(given: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(400, f"{name} is {_short(value)}; expected a whole number from {least} to {most}", name)
    return value


def _of_type(given: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = given.get(name, default)
    if value is None or isinstance(value, kind):
        return default if value is None else value
    expected = {bool: "true or false", str: "a text", dict: "an object"}[kind]
    raise RequestError(400, f"{name} is {_short(value)}; expected {expected}", name)


def _short(value: object) -> str:
    told = json.dumps(value)
    return told if len(told) <= 80 else told[:77] + "..."


@dataclass
class Text:
    """The text of tokens that come one after the other; all that `add` returned, joined, is the text of all.

    A character whose bytes are spread over several tokens is held back until it is whole, or `last` says so.
    """

    tokenizer: PreTrainedTokenizerBase
    ids: list[int] = field(default_factory=list)
    start: int = 0  # decoding begins here: a few tokens before what is new, since spaces depend on neighbours
    told: int = 0

    def add(self, ids: tuple[int, ...], last: bool = False) -> str:
        self.ids += ids
        before, now = self._decoded(self.ids[self.start : self.told]), self._decoded(self.ids[self.start :])
        if now.endswith("\ufffd") and not last:
            return ""
        if now != before:  # else special tokens, beside which there is no space to see
            self.start, self.told = self.told, len(self.ids)
        return now[len(before) :]

    def _decoded(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def choice(asked: CompletionRequest, text: str, tokens: tuple[int, ...], finish: str | None) -> dict[str, Any]:
    """One entry of `choices`; `finish` is "stop" or "length" on the last."""
    ids = {"token_ids": list(tokens)} if asked.token_ids else {}
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, **ids}


def usage(asked: CompletionRequest, tokens: int) -> dict[str, int]:
    prompt = len(asked.prompt)
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def event(data: object) -> str:
    """One server-sent event."""
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
