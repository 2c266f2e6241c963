"""What the KV cache calculator says: the formula with its numbers filled in, and the sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...catalog.formats import number_format
from ...catalog.setup import ServeSetup
from ...memory.closed_form.breakdown import format_bytes
from ...techniques.kv_cache.sizes import SCALE_BYTES, channel_group, quantized_tokens
from ..units import percent, si, three_digits
from .kv_layers import LayerKind, RankCache, all_heads_values

if TYPE_CHECKING:
    from .kv_cache import KVCacheAnswer


def formula(answer: KVCacheAnswer) -> Iterator[str]:
    """Weights, the cache by kinds of layers, what fits, what a step reads and how long that takes at least."""
    setup, ranks = answer.setup, answer.tensor_parallel
    divided = f", divided over {ranks:,} ranks" if ranks > 1 else ""
    yield _line(
        "weights", format_bytes(answer.parts["parameters"]), f"{setup.model.parameters:,} in {setup.weights}{divided}"
    )
    yield from _cache(answer)
    if answer.cache.plan.bits:
        yield _line("a value", f"{answer.bits_per_value:.2f} bits", _bits(answer))
    yield _line("a token", format_bytes(answer.cache.per_token(setup.context)), _token(answer))
    if answer.room_bytes is not None and answer.room_bytes > 0:
        yield _line(
            "users fit",
            f"{answer.users_that_fit:,}",
            f"{format_bytes(answer.room_bytes)} beside the weights / {format_bytes(answer.a_user_bytes)} each",
        )
        endless = not answer.cache.grows and answer.longest_context == answer.cache.most_tokens
        yield _line("context fits", "any" if endless else f"{answer.longest_context:,}", _longest(answer))
    yield from _step(answer)


def _line(name: str, value: str, text: str) -> str:
    return f"{name:<13}{value:>11}   {text}"


def _cache(answer: KVCacheAnswer) -> Iterator[str]:
    """One user's, a line for each kind of layers, then everybody's."""
    held, setup, alone = answer.cache, answer.setup, len(answer.cache.kinds) == 1
    for kind in held.kinds:
        name = "a user" if alone else "full layers" if kind.attention.window is None else "window layers"
        yield _line(name, format_bytes(held.of_kind(kind, setup.context)), _product(held, kind, setup.context))
    users = f"{setup.users:,} user{'s' * (setup.users > 1)}"
    yield _line("KV cache", format_bytes(answer.parts["kv_cache"]), f"{users} × {format_bytes(answer.a_user_bytes)}")


def _product(held: RankCache, kind: LayerKind, context: int) -> str:
    """The factors of one kind's bytes: 2 × layers × KV heads × head dimension × bytes × tokens."""
    widths, window = kind.widths, kind.window(held.plan)
    tokens = min(context, window or context)
    bits = 8 * held.of_kind(kind, context) / (kind.count * widths.values * tokens)
    stored = f"{bits / 8:g} B" if bits % 8 == 0 else f"{bits:.2f} bits"
    if kind.attention.mla:
        made = f"{kind.count:,} layers × ({widths.key:,} + {widths.value:,}) of the latent"
    else:
        made = f"2 × {kind.count:,} layers × {widths.heads:,} KV head{'s' * (widths.heads > 1)} × {widths.key:,}"
    return f"{made} × {stored} × {tokens:,} tokens{' kept' * (tokens < context)}"


def _bits(answer: KVCacheAnswer) -> str:
    plan, setup = answer.cache.plan, answer.setup
    packed = quantized_tokens(setup.context, plan.group, plan.residual)
    rounded = [kind.widths for kind in answer.cache.kinds if kind.attention.window is None]
    groups = {channel_group(width, plan.group) for one in rounded for width in (one.key, one.value)} | {plan.group}
    others = ", windows" if len(rounded) < len(answer.cache.kinds) else ""
    shared = " or ".join(map(str, sorted(groups)))
    return (
        f"codes of {plan.bits}, {SCALE_BYTES} B for {shared} of them; in {setup.kv}: newest "
        f"{setup.context - packed:,} tokens{others}"
    )


def _token(answer: KVCacheAnswer) -> str:
    """Of what the last token was, since not all layers grow for ever."""
    held, context = answer.cache, answer.setup.context
    full = [kind for kind in held.kinds if (kind.window(held.plan) or context) < context]
    whose = "of one user" + (", per rank" if answer.tensor_parallel > 1 else "")
    growing = ", in layers that still grow" if len(full) < len(held.kinds) else ", which replaces another"
    return f"{whose}: token {context:,}{growing if full else ''}"


def _longest(answer: KVCacheAnswer) -> str:
    setup, found = answer.setup, answer.longest_context
    users = "for one user" if setup.users == 1 else f"for each of {setup.users:,} users"
    if found == answer.cache.most_tokens:
        reason = (
            "all positions that it has"
            if setup.model.learned_positions
            else ("or more" if answer.cache.grows else "the windows hold no more")
        )
        return f"tokens {users}: {reason}"
    beyond = setup.model.max_positions and found > setup.model.max_positions
    return f"tokens {users}{f'; it was made for {setup.model.max_positions:,}' * bool(beyond)}"


def _step(answer: KVCacheAnswer) -> Iterator[str]:
    read, cached = si(answer.read_bytes, "B"), answer.parts["kv_cache"]
    weights = si(answer.read_bytes - cached, "B")
    yield _line("a step", read, f"read: {weights} of weights, {si(cached, 'B')} of cache")
    if answer.seconds_per_step:
        seconds, users = answer.seconds_per_step, answer.setup.users
        rate = si(answer.gpu.memory_bytes_per_s, "B/s")
        in_all = f" each, {three_digits(users / seconds)} in all" if users > 1 else ""
        yield _line("floor", si(seconds, "s"), f"{read} / {rate}: at most {three_digits(1 / seconds)} tokens/s{in_all}")


def sentences(answer: KVCacheAnswer) -> Iterator[str]:
    """What the attention saves, what the cache adds to that, whether it fits, and what sets the speed."""
    yield _attention(answer.setup)
    yield from _kind(answer)
    yield from _ranks(answer)
    yield _room(answer)
    yield from _speed(answer)


def _attention(setup: ServeSetup) -> str:
    """The cache in 16 bits on one GPU, against keys and values for every query head and token."""
    one = setup.model.layers[0].attention
    saved = setup.context * all_heads_values(setup.model) / setup.model.kv_values(setup.context)
    bounded = sum(1 for layer in setup.model.layers if (layer.attention.window or setup.context) < setup.context)
    if one.mla:
        return f"The latent is {saved:.3g}× smaller than keys and values of all {one.heads} heads."
    shared = one.kv_heads < one.heads
    heads = f"{one.kv_heads} KV head{'s' * (one.kv_heads > 1)} for {one.heads} query heads"
    if bounded:
        windows = f"windows in {bounded} of {len(setup.model.layers)} layers"
        both = f"{heads} and {windows}" if shared else windows[0].upper() + windows[1:]
        return f"{both} make this cache {saved:.3g}× smaller than all heads and tokens would."
    if shared:
        return f"{heads} make this cache {saved:.3g}× smaller than one for each would."
    return "Every head has keys and values of its own."


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
        yield (
            f"Of {setup.context:,} tokens the last {plan.window:,} and the first {plan.sinks:,} are kept: what was "
            "said between them is forgotten."
        )


def _ranks(answer: KVCacheAnswer) -> Iterator[str]:
    """Where tensor parallelism divides the cache less than it seems."""
    one, ranks = answer.setup.model.layers[0].attention, answer.tensor_parallel
    if ranks > 1 and one.mla:
        yield "The latent is whole on every rank: tensor parallelism divides weights, not this cache."
    elif ranks > one.kv_heads:
        heads = f"{one.kv_heads} KV heads" if one.kv_heads > 1 else "One KV head"
        yield f"{heads} on {ranks} ranks: each is held {ranks // one.kv_heads} times."


def _room(answer: KVCacheAnswer) -> str:
    need = answer.parts.total
    if answer.room_bytes is None:
        return f"Weights and cache need {format_bytes(need)}; a step's activations come on top."
    if answer.room_bytes <= 0:
        return f"Does not fit the {answer.device}: the weights alone are {format_bytes(-answer.room_bytes)} too large."
    spare = answer.capacity_bytes - need
    fits, count = answer.users_that_fit, answer.setup.users
    if spare >= 0:
        return (
            f"Fits the {answer.device} with {format_bytes(spare)} to spare for activations and the CUDA context: "
            f"at most {fits:,} user{'s' * (fits > 1)} at this context."
        )
    told = f"{fits:,} of the {count:,} users would fit" if fits else "not even one user fits"
    shorter = f"; {'it' if count == 1 else 'all'} would with up to {answer.longest_context:,} tokens"
    return (
        f"Does not fit the {answer.device}: {format_bytes(-spare)} too much. At this context {told}"
        f"{shorter if answer.longest_context else ''}."
    )


def _speed(answer: KVCacheAnswer) -> Iterator[str]:
    """Cache is read for each user, weights once for all: so there is a rate that no number of users exceeds."""
    share = answer.parts["kv_cache"] / answer.read_bytes
    told = f"{percent(share)} of what a step reads is cache"
    if answer.seconds_per_step and share > 0.5:
        most = three_digits(answer.gpu.memory_bytes_per_s / answer.a_user_bytes)
        told += f": however many users share the weights, {most} tokens/s in all are the end"
    yield f"{told}."
