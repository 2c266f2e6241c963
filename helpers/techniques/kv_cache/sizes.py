"""What each kind of cache holds, to the byte, from a model's shape and the number of tokens. Integers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from ...catalog.layers import Attention
from ...catalog.shape import ModelShape
from .plans import CHANNEL, CachePlan, plan_of

SCALE_BYTES = 4  # of a group of values: the lowest, and the step between levels, FP16 each
SCORE_BYTES = 4  # of a token in a cache that evicts by attention: what it has drawn so far, FP32, for each key head


@dataclass(frozen=True)
class CacheBytes:
    """Bytes of keys and values on the device between two forwards, and in host memory."""

    device: int
    host: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host


@dataclass(frozen=True)
class KVWidths:
    """What one token adds to one layer: `heads` keys of `key` values each and as many values of `value`."""

    heads: int
    key: int
    value: int

    @property
    def values(self) -> int:
        return self.heads * (self.key + self.value)


def widths_of(attention: Attention, expanded: bool = False) -> KVWidths:
    """The tensors that Transformers caches for `attention`.

    Multi-head latent attention is one head: the latent in the place of the key, the rotary part that all heads share in
    that of the value (Transformers 5.15 and later); the key that a sparse attention is indexed by counts with the
    latent. A layer with a recurrent state in attention's place adds nothing. With `expanded`, every head's own key and
    value, as engines hold them that know no MLA and as Transformers did: DeepSeek-V3 has 40,960 values per token and
    layer instead of 576.
    """
    mla = attention.mla
    if attention.delta or attention.crossed:  # to an image's patches
        return KVWidths(0, 0, 0)
    if mla and expanded:
        return KVWidths(attention.heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim)
    if mla:
        return KVWidths(1, mla.kv_lora_rank + attention.indexer, mla.qk_rope_head_dim)
    return KVWidths(attention.kv_heads, attention.head_dim, attention.head_dim)


def cache_bytes(
    model: ModelShape, name: str | CachePlan, context: int, users: int = 1, value_bytes: int = 2, **numbers: int
) -> CacheBytes:
    """Bytes that a cache of this kind holds after `context` tokens of each of `users` sequences.

    `name` and `numbers` as for `cache_of`; `value_bytes` of the model's format. Layers with a window of their own hold
    no more than that, whatever the kind. An offloaded cache has its first layer on the device, for the next forward.

    >>> from helpers.catalog import model
    >>> cache_bytes(model("llama-2-70b"), "concat", 2048, users=128).device / 2**30
    80.0
    >>> cache_bytes(model("llama-2-70b"), "int2", 2048, users=128).device / 2**30  # 3 bits a value, 32 tokens of 16
    16.015625
    """
    plan = plan_of(name, **numbers)
    for what, value in (("context", context), ("users", users), ("value_bytes", value_bytes)):
        require_whole(what, value, do=f"pass {what}=1 or more")
    model.kv_values(1)  # refuses a family whose cache is of another kind
    device = users * model.state_bytes()
    device += sum(_kept_bytes(layer.attention, plan, context, users, value_bytes) for layer in model.layers)
    if plan.kind != "offloaded":
        return CacheBytes(device)
    growing = (widths_of(layer.attention) for layer in model.layers if layer.attention.window is None)
    turns = [widths for widths in growing if widths.values]
    room = _up(context, plan.step)
    fetched = users * (context + 1) * turns[0].values * value_bytes if turns else 0
    return CacheBytes(device + fetched, sum(users * room * widths.values * value_bytes for widths in turns))


def _kept_bytes(attention: Attention, plan: CachePlan, context: int, users: int, value_bytes: int) -> int:
    """K and V of one layer on the device; 0 if they are offloaded."""
    widths = widths_of(attention)
    if not widths.values:
        return 0
    if attention.window is not None:
        own = attention.window if plan.kind != "window" else min(attention.window, plan.window)
        return users * min(context, own) * widths.values * value_bytes
    if plan.kind == "offloaded":
        return 0
    if plan.bits:
        return users * _quantized_bytes(widths, plan, context, value_bytes)
    positions = max(users, plan.batch) * _positions(plan, context)
    scores = positions * widths.heads * SCORE_BYTES if plan.kind == "heavy" else 0
    a_token = attention.sparse_fp8_bytes if value_bytes == 1 else 0
    return positions * (a_token or widths.values * value_bytes) + scores


def _positions(plan: CachePlan, context: int) -> int:
    """Positions that a layer has memory for after `context` tokens."""
    if plan.kind == "static":
        if context > plan.max_tokens:
            what = f"{context} tokens in a static cache of {plan.max_tokens}"
            raise WorkbookError(what, f"up to {plan.max_tokens}", f"pass max_tokens={context}")
        return plan.max_tokens
    if plan.kind == "window":
        return min(context, plan.window + plan.sinks)
    if plan.kind == "heavy":
        return min(context, plan.heavy + plan.recent)
    return _up(context, plan.step) if plan.kind == "dynamic" else context


def quantized_tokens(context: int, group: int, residual: int) -> int:
    """How many of `context` tokens are packed: whole groups of the oldest, `residual` of the newest left over."""
    return max(0, context - residual) // group * group


def channel_group(width: int, group: int) -> int:
    """Channels of one token that share a scale: `group`, or the whole head where that does not divide it."""
    return group if width % group == 0 else width


def _quantized_bytes(widths: KVWidths, plan: CachePlan, context: int, value_bytes: int) -> int:
    """Codes, scales and the tail of one sequence in one layer."""
    packed = quantized_tokens(context, plan.group, plan.residual)
    codes = widths.heads * packed * (widths.key + widths.value) * plan.bits // 8
    key_groups = packed // plan.group * widths.key if plan.keys == CHANNEL else packed * _per_token(widths.key, plan)
    scales = widths.heads * (key_groups + packed * _per_token(widths.value, plan)) * SCALE_BYTES
    return codes + scales + (context - packed) * widths.values * value_bytes


def _per_token(width: int, plan: CachePlan) -> int:
    """Scales of one token's key or value in one head."""
    return width // channel_group(width, plan.group)


def _up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step
