"""The KV cache calculator: weights and cache against one GPU, the users and tokens that fit, the floor of a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from ...catalog.cache_formats import KV_FORMATS
from ...catalog.devices import Device, device
from ...catalog.formats import number_format
from ...catalog.serve_setup import ServeSetup
from ...catalog.shipped import SHIPPED
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.serve.rank_weights import rank_read_bytes, rank_weight_bytes
from ...questions.parameter import Parameter
from ...questions.parameters import ANY_CONFIG, GPU, MODEL, RESERVE, SERVED, TENSOR_PARALLEL, changed
from ...questions.question import Question
from ...techniques.kv_cache.plans import TOKEN, CachePlan, plan_of
from ...techniques.kv_cache.sizes import SCALE_BYTES, channel_group, quantized_tokens
from ..drawing.contexts import Curve, contexts
from ..drawing.pictures import Card
from ..units import percent, si, three_digits
from .answers import MemoryAnswer, plural, weights_do_not_fit
from .calculator import Calculator
from .kv_layers import RankCache, all_heads_values, saved_by_attention
from .quantization import FORMATS

# What the control offers: number formats of the cache, and kinds of cache with what they do not round in BF16.
CACHES = ("bf16", "fp8-e4m3", "q8_0", "q4_0", "nvfp4", "int8", "int4", "int2", "window:1024+4", "window:8192+4")
CONTEXTS = tuple(128 * 2**power for power in range(14))
Row = tuple[str, str, str]  # of the formula: name, value, how it comes about


@dataclass(frozen=True)
class KVCacheAnswer(MemoryAnswer):
    """What one rank holds and reads. Figures of a device are None without one, or where its bandwidth is not known."""

    setup: ServeSetup
    tensor_parallel: int
    cache: RankCache

    @cached_property
    def a_user_bytes(self) -> int:
        """One user's cache on this rank, at the context asked for."""
        return self.cache.total(self.setup.context)

    @property
    def bits_per_value(self) -> float:
        """Scales, and what is not rounded yet, counted in."""
        return 8 * self.a_user_bytes / self.cache.values(self.setup.context)

    @property
    def all_heads_bytes(self) -> int:
        """The cache of all users, on this rank, with keys and values for every query head and token, in BF16."""
        values = all_heads_values(self.setup.model) // self.tensor_parallel
        return self.setup.users * self.setup.context * number_format("bf16").storage_bytes(values)

    @property
    def ranks(self) -> int:
        return self.tensor_parallel

    @property
    def room_bytes(self) -> int | None:
        """What weights and reserve leave of the device; negative where they are too large."""
        return None if self.room is None else self.room.for_tensors_bytes - self.parts["parameters"]

    @property
    def users_that_fit(self) -> int | None:
        return None if self.room_bytes is None else max(0, self.room_bytes // self.a_user_bytes)

    @cached_property
    def longest_context(self) -> int | None:
        """For the users asked for; `cache.most_tokens` where memory sets no limit."""
        return None if self.room_bytes is None else self.cache.longest(self.room_bytes, self.setup.users)

    @cached_property
    def read_bytes(self) -> int | None:
        """Bytes that one decode step reads on this rank: weights once, everybody's cache.

        None for a mixture of experts that only Transformers knows.
        """
        if self.setup.model.experts_unread:
            return None
        return rank_read_bytes(self.setup, self.tensor_parallel) + self.parts["kv_cache"]

    @property
    def seconds_per_step(self) -> float | None:
        return None if self.read_bytes is None else self.seconds_to_read(self.read_bytes)

    @property
    def figures(self) -> dict[str, Any]:
        seconds = self.seconds_per_step
        return {
            **super().figures,
            "tensor_parallel": self.tensor_parallel,
            "kv_bytes_per_token": self.cache.per_token(self.setup.context),
            "bits_per_value": self.bits_per_value,
            "all_heads_bytes": self.all_heads_bytes,
            "users_that_fit": self.users_that_fit,
            "longest_context": self.longest_context,
            "read_bytes": self.read_bytes,
            "seconds_per_step": seconds,
            "tokens_per_s_each": 1 / seconds if seconds else None,
            "tokens_per_s": self.setup.users / seconds if seconds else None,
        }

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Bytes against context for all heads, for the model's own attention, and for the cache that was chosen."""
        asked, users = self.setup, self.setup.users
        longest = min(self.cache.most_tokens, max(CONTEXTS[-1], asked.context))
        contexts = [tokens for tokens in CONTEXTS if tokens < longest] + [longest]
        own = RankCache.of(replace(asked, kv="bf16"), None, self.tensor_parallel)
        a_token = self.all_heads_bytes // asked.context
        rows = {
            "all heads, bf16": [a_token * tokens for tokens in contexts],
            "own attention, bf16": [own.total(tokens, users) for tokens in contexts],
            self.kind: [self.cache.total(tokens, users) for tokens in contexts],
        }
        named = {tuple(sizes): name for name, sizes in rows.items()}  # of equal lines the last name
        return tuple(Curve(name, tuple(zip(contexts, sizes, strict=True))) for sizes, name in named.items())

    @property
    def kind(self) -> str:
        """What the cache is, in words short enough for a curve."""
        plan = self.cache.plan
        if plan.kind == "window":
            return f"window {plan.window:,} + {plan.sinks:,}"
        return f"own attention, {plan.kind if plan.bits else self.setup.kv}{'/token' * (plan.keys == TOKEN)}"

    @property
    def title(self) -> str:
        setup, ranks = self.setup, self.tensor_parallel
        each = f" on each of {ranks:,} GPUs" if ranks > 1 else ""
        asked = f"{plural(setup.users, 'user')} × {setup.context:,} tokens"
        return f"{setup.model.name}, {asked}: {format_bytes(self.parts['kv_cache'])} of KV cache{each}"

    @property
    def question(self) -> Question:
        return KV_CACHE

    @property
    def asked(self) -> dict[str, Any]:
        cache = next(iter(_cache_words(self.cache.plan)), None)
        return {"setup": self.setup, **self.on_card, "cache": cache, "tensor_parallel": self.tensor_parallel}

    def lines(self) -> Iterator[str]:
        return (f"{name:<13}{value:>11}   {text}" for name, value, text in _formula(self))

    def sentences(self) -> Iterator[str]:
        """What the attention saves, what the cache adds to that, whether it fits, and what sets the speed."""
        yield saved_by_attention(self.setup.model, self.setup.context)
        yield from chain(_kind(self), _ranks(self), _room(self), self.setup.shipped_told, _speed(self))

    @property
    def cards(self) -> tuple[Card, ...]:
        saved = self.all_heads_bytes / self.parts["kv_cache"]
        title = f"At {self.setup.context:,} tokens all heads in BF16 would hold {saved:.3g}× this cache"
        here = (self.setup.context, self.parts["kv_cache"])
        return (*super().cards, contexts(title, self.curves, here, self.room_bytes))


def kv_cache_answer(
    setup: ServeSetup,
    gpu: str | Device | None = None,
    cache: str | CachePlan | None = None,
    tensor_parallel: int = 1,
    reserve_bytes: int | None = None,
) -> KVCacheAnswer:
    """`setup` on each of `tensor_parallel` GPUs: weights, cache, users and tokens that fit, and the floor of a step.

    `cache` is a kind of `techniques.kv_cache.plans`, "int4" or "window:1024+4"; None keeps everything in `setup.kv`,
    which is also what a quantized cache keeps its newest tokens in. The floor is bytes over the datasheet's bandwidth:
    no activations, no all-reduce, no time to decode codes. WorkbookError for a model whose cache is not known, an
    unknown name, and heads that ranks cannot share.

    >>> answer = kv_cache_answer(ServeSetup("llama-3-8b", users=16), "h100")
    >>> answer.parts["kv_cache"] / 2**30, answer.users_that_fit, answer.longest_context
    (4.0, 253, 32505)
    >>> round(answer.seconds_per_step * 1e3, 2)
    5.76
    """
    where, held = device(gpu) if gpu else None, RankCache.of(setup, cache, tensor_parallel)
    weights, cached = rank_weight_bytes(setup, tensor_parallel), held.total(setup.context, setup.users)
    parts = Breakdown(parameters=weights, kv_cache=cached)
    return KVCacheAnswer(parts, where, setup, tensor_parallel, held, reserve_bytes=reserve_bytes)


def _cache_words(plan: CachePlan) -> Iterator[str]:
    """A plan by its name, the numbers with it where they are not the usual ones; none for a cache that keeps all."""
    if plan.kind == "window":
        yield f"window:{plan.window}+{plan.sinks}"
    elif plan.bits:
        name = f"{plan.kind}-per-token" if plan.keys == TOKEN else plan.kind
        usual = plan_of(name) == plan
        yield name if usual else f"{name}:{plan.residual}+{plan.group}"


def _formula(answer: KVCacheAnswer) -> Iterator[Row]:
    """Weights, the cache by kinds of layers, what fits, what a step reads and how long that takes at least."""
    setup, ranks = answer.setup, answer.tensor_parallel
    parameters = f"{setup.model.parameters_with_towers:,} {setup.weights_told}"
    divided = f", divided over {ranks:,} ranks" if ranks > 1 else ""
    yield "weights", format_bytes(answer.parts["parameters"]), parameters + divided
    yield from _cache(answer)
    if answer.cache.plan.bits:
        yield "a value", f"{answer.bits_per_value:.2f} bits", _bits(answer)
    yield "a token", format_bytes(answer.cache.per_token(setup.context)), _token(answer)
    if answer.room_bytes is not None and answer.room_bytes > 0:
        room, each = format_bytes(answer.room_bytes), format_bytes(answer.a_user_bytes)
        yield "users fit", f"{answer.users_that_fit:,}", f"{room} beside weights and reserve / {each} each"
        endless = not answer.cache.grows and answer.longest_context == answer.cache.most_tokens
        yield "context fits", "any" if endless else f"{answer.longest_context:,}", _longest(answer)
    yield from _step(answer)


def _cache(answer: KVCacheAnswer) -> Iterator[Row]:
    """One user's, a line for each kind of layers, then everybody's."""
    held, setup, alone = answer.cache, answer.setup, len(answer.cache.kinds) == 1
    for kind in held.kinds:
        if not kind.widths.values and not kind.attention.state:
            continue  # an MLP or experts alone, as in Nemotron-H, keep nothing
        name = "full layers" if kind.attention.window is None else "window layers"
        name = "a user" if alone else name if kind.widths.values else "states"
        yield name, format_bytes(held.of_kind(kind, setup.context)), held.product(kind, setup.context)
    users = f"{plural(setup.users, 'user')} × {format_bytes(answer.a_user_bytes)}"
    yield "KV cache", format_bytes(answer.parts["kv_cache"]), users


def _bits(answer: KVCacheAnswer) -> str:
    plan, setup = answer.cache.plan, answer.setup
    packed = quantized_tokens(setup.context, plan.group, plan.residual)
    rounded = [kind.widths for kind in answer.cache.kinds if kind.attention.window is None and kind.widths.values]
    groups = {channel_group(width, plan.group) for one in rounded for width in (one.key, one.value)} | {plan.group}
    shared = " or ".join(map(str, sorted(groups)))
    plain = f"newest {setup.context - packed:,} tokens" + ", windows" * (len(rounded) < len(answer.cache.kinds))
    return f"codes of {plan.bits}, {SCALE_BYTES} B for {shared} of them; in {setup.kv}: {plain}"


def _token(answer: KVCacheAnswer) -> str:
    """Of what the last token was, since not all layers grow for ever."""
    held, context = answer.cache, answer.setup.context
    most = (kind.window(held.plan) for kind in held.kinds)
    full = [tokens for tokens in most if tokens is not None and tokens < context]
    whose = "of one user" + (", per rank" if answer.tensor_parallel > 1 else "")
    growing = ", in layers that still grow" if len(full) < len(held.kinds) else ", which replaces another"
    return f"{whose}: token {context:,}{growing if full else ''}"


def _longest(answer: KVCacheAnswer) -> str:
    setup, found = answer.setup, answer.longest_context
    users = "for one user" if setup.users == 1 else f"for each of {setup.users:,} users"
    if found == answer.cache.most_tokens:
        reason = "or more" if answer.cache.grows else "the windows hold no more"
        return f"tokens {users}: {'all positions that it has' if setup.model.learned_positions else reason}"
    made_for = setup.model.max_positions
    beyond = f"; it was made for {made_for:,}" if found and made_for and found > made_for else ""
    return f"tokens {users}{beyond}"


def _step(answer: KVCacheAnswer) -> Iterator[Row]:
    if answer.read_bytes is None:
        yield "a step", "not known", "read: its experts are known to Transformers alone, not how many a token uses"
        return
    read, cached = si(answer.read_bytes, "B"), answer.parts["kv_cache"]
    weights = si(answer.read_bytes - cached, "B")
    yield "a step", read, f"read: {weights} of weights, {si(cached, 'B')} of cache"
    if answer.seconds_per_step and answer.gpu:
        seconds, users = answer.seconds_per_step, answer.setup.users
        rate = si(answer.gpu.memory_bytes_per_s, "B/s")
        in_all = f" each, {three_digits(users / seconds)} in all" if users > 1 else ""
        yield "floor", si(seconds, "s"), f"{read} / {rate}: at most {three_digits(1 / seconds)} tokens/s{in_all}"


def _kind(answer: KVCacheAnswer) -> Iterator[str]:
    """What rounding saves of what its bits promise, and what a window forgets."""
    plan, setup = answer.cache.plan, answer.setup
    plain = RankCache.of(setup, None, answer.tensor_parallel).total(setup.context)
    saved = plain / answer.a_user_bytes
    if plan.bits and saved == 1:
        yield f"{plan.kind} has rounded nothing yet: tokens wait in {setup.kv} until a group is full."
    elif plan.bits and saved < 1:
        yield f"{plan.kind} is larger than {setup.kv} here: its scales take more than its codes spare."
    elif plan.bits:
        promised = number_format(setup.kv).value_bits / plan.bits
        yield f"{plan.kind} is {saved:.2f}× smaller than {setup.kv}, not {promised:g}×."
    elif plan.kind == "window" and setup.context > plan.window + plan.sinks:
        kept = f"the last {plan.window:,} and the first {plan.sinks:,} are kept"
        yield f"Of {setup.context:,} tokens {kept}: what was said between them is forgotten."


def _ranks(answer: KVCacheAnswer) -> Iterator[str]:
    """Where tensor parallelism divides the cache less than it seems."""
    one, ranks = answer.setup.model.layers[0].attention, answer.tensor_parallel
    if ranks > 1 and one.mla:
        yield "The latent is whole on every rank: tensor parallelism divides weights, not this cache."
    elif ranks > one.kv_heads > 0:
        heads = f"{one.kv_heads} KV heads" if one.kv_heads > 1 else "One KV head"
        yield f"{heads} on {ranks} ranks: each is held {ranks // one.kv_heads} times."


def _room(answer: KVCacheAnswer) -> Iterator[str]:
    need, room, users = answer.parts.total, answer.room, answer.users_that_fit
    if room is None or users is None:
        yield f"Weights and cache need {format_bytes(need)}; a step's activations come on top."
    elif room.card.capacity_bytes < answer.parts["parameters"]:
        yield weights_do_not_fit(room.card, answer.parts["parameters"] - room.card.capacity_bytes)
    else:
        yield room.sentence(need, " for activations")
        if answer.holds(need):
            yield f"At most {plural(users, 'user')} fit{'s' * (users == 1)} at this context."
        else:
            count = answer.setup.users
            fitting = f"{users:,} of the {count:,} users would fit" if users else "not even one user fits"
            shorter = f"; {'it' if count == 1 else 'all'} would with up to {answer.longest_context:,} tokens"
            yield f"At this context {fitting}{shorter if answer.longest_context else ''}."


def _speed(answer: KVCacheAnswer) -> Iterator[str]:
    """Cache is read for each user, weights once for all: so there is a rate that no number of users exceeds."""
    if answer.read_bytes is None:
        return
    share = answer.parts["kv_cache"] / answer.read_bytes
    text = f"{percent(share)} of what a step reads is cache"
    if answer.seconds_per_step and answer.gpu and share > 0.5:
        most = three_digits(answer.gpu.memory_bytes_per_s / answer.a_user_bytes)
        text += f": however many users share the weights, {most} tokens/s in all are the end"
    yield f"{text}."


def kv_cache(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `kv_cache(model="deepseek-v3", gpu="h200", cache="int4")`."""
    return Calculator(KV_CACHE, start)


def _means(said: dict[str, Any]) -> dict[str, Any]:
    """One control offers number formats and kinds of caches."""
    return said | {"kv": said["cache"], "cache": None} if said["cache"] in KV_FORMATS else said


KV_CACHE = Question(
    "kv",
    "the KV cache on each rank: bytes, users and tokens that fit, tokens/s",
    kv_cache_answer,
    changed(
        (
            MODEL,
            *SERVED,
            GPU,
            RESERVE,
            Parameter(
                "cache",
                "int8, int4, int2, also with -per-token, or window:1024+4: the last 1,024 tokens and the first 4; "
                "default: everything, in --kv",
                metavar="KIND",
                label="cache",
                steps=CACHES,
                start="bf16",
            ),
            TENSOR_PARALLEL,
            ANY_CONFIG,
        ),
        model={"start": "llama-3-8b"},
        weights={"steps": (SHIPPED, *FORMATS)},
        users={"start": 32},
        context={"steps": CONTEXTS, "start": 8192},
        gpu={"start": "h100-80gb"},
    ),
    setup=ServeSetup,
    units="bytes and seconds",
    title="The KV cache",
    asks="How many users and tokens fit, and what sets the speed?",
    invites="Double the users: does it still fit? Then let the cache have 8 bits, or a window.",
    controls=("model", "config", "gpu", "weights", "cache", "context", "users", "tensor_parallel", "reserve"),
    front=("model", "gpu", "cache", "context", "users"),
    means=_means,
)
