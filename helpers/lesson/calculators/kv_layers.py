"""The cache of one rank, by kinds of layers: those that grow with the context, and those that stop at a window."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...catalog.errors import WorkbookError
from ...catalog.formats import NumberFormat
from ...catalog.layers import Attention, Layer
from ...catalog.serve_setup import ServeSetup
from ...catalog.setup_fields import MAX_TOKENS
from ...catalog.shape import ModelShape
from ...memory.breakdown import format_bytes
from ...memory.serve.rank_weights import rank_shape
from ...techniques.kv_cache.plans import QUANTIZED, CachePlan, plan_of
from ...techniques.kv_cache.sizes import KVWidths, cache_bytes, widths_of

COUNTED = ("concat", "window", *QUANTIZED)  # the others reserve, move or choose what no closed form here reads
KIND_EXAMPLES = ("int8", "int4", "int2", "int2-per-token", "window:1024+4")


@dataclass(frozen=True)
class LayerKind:
    """`count` layers that cache alike; `one` is the model cut down to one of them, as a rank holds it."""

    count: int
    one: ModelShape

    @property
    def attention(self) -> Attention:
        return self.one.layers[0].attention

    @property
    def widths(self) -> KVWidths:
        return widths_of(self.attention)

    def window(self, plan: CachePlan) -> int | None:
        """Tokens that such a layer holds at most: its own window, the plan's with its sinks, None without one.

        None at all, 0, where a recurrent state stands in the place of keys and values.
        """
        if not self.widths.values:
            return 0
        if self.attention.window is not None:
            return min(self.attention.window, plan.window or self.attention.window)
        return plan.window + plan.sinks if plan.kind == "window" else None


@dataclass(frozen=True)
class RankCache:
    """Keys and values on one rank, for any number of tokens and users; `kv` is the format of what `plan` leaves."""

    kinds: tuple[LayerKind, ...]
    plan: CachePlan
    kv: NumberFormat
    most_tokens: int
    drafts: int = 0

    @classmethod
    def of(cls, setup: ServeSetup, cache: str | CachePlan | None = None, ranks: int = 1) -> RankCache:
        plan, model = _plan(cache), rank_shape(setup.model, ranks)
        alike: dict[tuple, list[Layer]] = {}
        for layer in model.layers:
            one = layer.attention
            alike.setdefault((widths_of(one), one.window, one.state), []).append(layer)
        kinds = tuple(LayerKind(len(layers), replace(model, layers=tuple(layers[:1]))) for layers in alike.values())
        longest = setup.model.max_positions if setup.model.learned_positions else MAX_TOKENS
        if setup.kv_format.block_values and (plan.bits or plan.kind == "heavy"):
            what, expected = f"a {plan.kind} cache over one in {setup.kv}", "one in bf16, fp16, fp32 or FP8"
            raise WorkbookError(what, expected, f"choose --kv bf16, or --kv {setup.kv} without a kind of cache")
        return cls(kinds, plan, setup.kv_format, longest, setup.drafts)

    @property
    def grows(self) -> bool:
        """Whether some layer holds every token; else the cache stops at its windows."""
        return any(kind.window(self.plan) is None for kind in self.kinds)

    def of_kind(self, kind: LayerKind, context: int, users: int = 1) -> int:
        """Bytes in all layers of one kind; states once more for each draft."""
        state = kind.one.state_bytes() * users
        if self.kv.block_values:
            values = (cache_bytes(kind.one, self.plan, context, users, 2).total - state) // 2
            return kind.count * (self.kv.storage_bytes(values) + (1 + self.drafts) * state)
        plain = cache_bytes(kind.one, self.plan, context, users, self.kv.value_bytes).total
        return kind.count * (plain + self.drafts * state)

    def product(self, kind: LayerKind, context: int) -> str:
        """The factors of one kind's bytes: 2 × layers × KV heads × head dimension × bytes × tokens."""
        widths, tokens = kind.widths, min(context, kind.window(self.plan) or context)
        state = kind.attention.state
        if state and not widths.values:
            rule = kind.one.state_rule
            inputs = f"{state.channels:,} × {state.kernel + rule.columns} inputs × {rule.input_bits // 8} B"
            inputs = f" and {inputs}" if state.channels else ""
            copies = f" × {1 + self.drafts} copies" if self.drafts else ""
            return f"{kind.count:,} layers × a state of {state.values:,} × 4 B{inputs}{copies}"
        bits = 8 * self.of_kind(kind, context) / (kind.count * widths.values * tokens)
        stored = f"{bits / 8:g} B" if bits % 8 == 0 else f"{bits:.2f} bits"
        if kind.attention.mla:
            product = f"{kind.count:,} layers × ({widths.key:,} + {widths.value:,}) of the latent"
        else:
            product = f"2 × {kind.count:,} layers × {widths.heads:,} KV head{'s' * (widths.heads > 1)} × {widths.key:,}"
        return f"{product} × {stored} × {tokens:,} tokens{' kept' * (tokens < context)}"

    def total(self, context: int, users: int = 1) -> int:
        return sum(self.of_kind(kind, context, users) for kind in self.kinds)

    def per_token(self, context: int) -> float:
        """Bytes that the last token added for one user; in a quantized cache a token of its last whole group."""
        step = min(self.plan.group if self.plan.bits else 1, context)
        before = self.total(context - step) if context > step else 0
        return (self.total(context) - before) / step

    def values(self, context: int) -> int:
        """Keys and values of one user, whatever they are stored in."""
        held = ((kind, min(context, kind.window(self.plan) or context)) for kind in self.kinds)
        return sum(kind.count * kind.widths.values * tokens for kind, tokens in held)

    def longest(self, room_bytes: int, users: int) -> int:
        """The longest context at which `users` fit in `room_bytes`: 0 if none does, `most_tokens` where all do.

        A quantized cache shrinks a little whenever a group is full. So first the whole groups, then tokens one by one.
        """

        def fits(context: int) -> bool:
            return context == 0 or self.total(context, users) <= room_bytes

        step, first = (self.plan.group, self.plan.residual) if self.plan.bits else (1, 0)
        base, spare = 0, first + step - 1
        if first <= self.most_tokens and fits(first):
            base = first + step * _most(lambda groups: fits(first + step * groups), (self.most_tokens - first) // step)
            spare = step - 1
        return base + _most(lambda more: fits(base + more), min(spare, self.most_tokens - base))


def all_heads_values(model: ModelShape) -> int:
    """Keys and values of one token if every query head had its own, no layer a window and no latent were kept.

    >>> from helpers.catalog import model
    >>> all_heads_values(model("llama-2-70b")), all_heads_values(model("deepseek-v3")) // 61
    (1310720, 40960)
    """
    whole = (replace(layer.attention, kv_heads=layer.attention.heads) for layer in model.layers)
    return sum(widths_of(attention, expanded=True).values for attention in whole)


def saved_by_attention(model: ModelShape, context: int) -> str:
    """The cache in 16 bits on one GPU, against keys and values for every query head and token, as a sentence."""
    attentions = [layer.attention for layer in model.layers]
    one = next((attention for attention in attentions if attention.kv_values_per_token), attentions[0])
    saved = context * all_heads_values(model) / max(1, model.kv_values(context))
    bounded = sum((layer.attention.window or context) < context for layer in model.layers)
    if recurrent := sum(layer.attention.state is not None for layer in model.layers):
        which = f"{recurrent} of {len(model.layers)} layers" if recurrent < len(model.layers) else "All layers"
        return f"{which} keep a state that does not grow: {format_bytes(model.state_bytes())} for each user."
    if one.mla:
        return f"The latent is {saved:.3g}× smaller than keys and values of all {one.heads} heads."
    shared = one.kv_heads < one.heads
    heads = f"{one.kv_heads} KV head{'s' * (one.kv_heads > 1)} for {one.heads} query heads"
    if bounded:
        windows = f"{bounded} of {len(model.layers)} layers"
        both = f"{heads} and windows in {windows}" if shared else f"Windows in {windows}"
        return f"{both} make this cache {saved:.3g}× smaller than all heads and tokens would."
    if shared:
        return f"{heads} make this cache {saved:.3g}× smaller than one for each would."
    return "Every head has keys and values of its own."


def _plan(cache: str | CachePlan | None) -> CachePlan:
    plan = plan_of("concat" if cache is None else cache)
    if plan.kind not in COUNTED:
        what = f"the {plan.kind} cache reserves, moves or chooses, which this calculator does not count"
        examples, do = ", ".join(KIND_EXAMPLES), "count it with helpers.techniques.kv_cache.cache_bytes"
        raise WorkbookError(what, f"one of {examples}, or none", do)
    return plan


def _most(fits: Callable[[int], bool], asked: int) -> int:
    """The largest count up to `asked` that fits, when all smaller ones do; 0 always does."""
    return bisect_left(range(1, asked + 1), True, key=lambda count: not fits(count))
