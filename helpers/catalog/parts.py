"""The pieces that families share: attention, MLPs, experts, windows, and how a model is assembled."""

from __future__ import annotations

from collections.abc import Iterable

from .config import MOST_LAYERS, ConfigKeys
from .layers import Attention, Layer, Linear, Mla, Mlp
from .shape import ModelShape

WINDOW, FULL, PIECES = "sliding_attention", "full_attention", "chunked_attention"


def sizes(
    keys: ConfigKeys,
    hidden: str = "hidden_size",
    layers: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    heads_default: int | None = None,
) -> tuple[int, int, int]:
    """Hidden size, layers and heads: required, but for the heads of a family whose hub configs omit them."""
    return keys.whole(hidden), keys.whole(layers, most=MOST_LAYERS), keys.whole(heads, heads_default)


def require_multiple(keys: ConfigKeys, hidden: int, heads: int) -> None:
    """Refuse a hidden size that its heads do not divide; Llama and Gemma 2 do so even with a head_dim."""
    problem, expected = f"is {hidden}, not a multiple of {heads} heads", f"a multiple of the {heads} attention heads"
    keys.require(hidden % heads == 0, "hidden_size|n_embd", problem, expected)


def derived_head_dim(keys: ConfigKeys, hidden: int, heads: int) -> int:
    """The head_dim of a config that gives none: hidden / heads, refused where that leaves a rest."""
    require_multiple(keys, hidden, heads)
    return hidden // heads


def grouped_attention(
    keys: ConfigKeys,
    hidden: int,
    heads: int,
    *,
    kv_default: int,
    head_dim: int | None = None,
    bias: bool = False,
    out_bias: bool | None = None,
    qk_norm: bool = False,
    window: int | None = None,
    sinks: bool = False,
) -> Attention:
    """Separate q, k, v and o projections; `head_dim` is the family's default, None to derive it.

    `out_bias` is for a family whose output projection has not the bias of the others.
    """
    kv_heads, head_dim = kv_heads_and_dim(keys, hidden, heads, kv_default, head_dim)
    q, kv = heads * head_dim, kv_heads * head_dim
    linears = (
        Linear("q_proj", hidden, q, bias),
        Linear("k_proj", hidden, kv, bias),
        Linear("v_proj", hidden, kv, bias),
        Linear("o_proj", q, hidden, bias if out_bias is None else out_bias),
    )
    norms = (head_dim, head_dim) if qk_norm else ()
    return Attention(heads, kv_heads, head_dim, linears, norms, qk_norm, window, sinks=sinks)


def fused_attention(
    keys: ConfigKeys, hidden: int, heads: int, *, kv_default: int, window: int | None = None
) -> Attention:
    """q, k and v out of one matrix without biases, as Phi-3 has them."""
    kv_heads, head_dim = kv_heads_and_dim(keys, hidden, heads, kv_default, None)
    qkv = Linear("qkv_proj", hidden, (heads + 2 * kv_heads) * head_dim)
    return Attention(heads, kv_heads, head_dim, (qkv, Linear("o_proj", heads * head_dim, hidden)), window=window)


def kv_heads_and_dim(
    keys: ConfigKeys, hidden: int, heads: int, kv_default: int, head_dim: int | None
) -> tuple[int, int]:
    """KV heads, which must divide the heads, and head_dim: given, or the family's, or hidden / heads."""
    kv_heads = kv_heads_of(keys, heads, kv_default)
    if head_dim is None:
        head_dim = keys.optional_whole("head_dim", None) or derived_head_dim(keys, hidden, heads)
    else:
        head_dim = keys.whole("head_dim", head_dim)
    keys.require(heads % kv_heads == 0, "num_key_value_heads", f"is {kv_heads}", f"a divisor of the {heads} heads")
    return kv_heads, head_dim


def kv_heads_of(keys: ConfigKeys, heads: int, absent: int) -> int:
    """An absent key takes the family's default; null means one KV head per query head."""
    return keys.whole("num_key_value_heads", heads if "num_key_value_heads" in keys.values else absent)


def latent_attention(keys: ConfigKeys, hidden: int, heads: int, kv_default: int = 128) -> Attention:
    """DeepSeek's attention: k and v come out of one latent, q out of another (or of one full projection)."""
    mla = Mla(
        keys.whole("kv_lora_rank", 512),
        keys.whole("qk_rope_head_dim", 64),
        keys.whole("qk_nope_head_dim", 128),
        keys.whole("v_head_dim", 128),
        keys.optional_whole("q_lora_rank", 1536),
    )
    bias, head_dim = keys.flag("attention_bias", False), mla.qk_nope_head_dim + mla.qk_rope_head_dim
    kv_heads = kv_heads_of(keys, heads, kv_default)
    down = (Linear("q_a_proj", hidden, mla.q_lora_rank, bias),) if mla.q_lora_rank else ()
    name, inputs = ("q_b_proj", mla.q_lora_rank) if mla.q_lora_rank else ("q_proj", hidden)
    linears = (
        *down,
        Linear(name, inputs, heads * head_dim),
        Linear("kv_a_proj_with_mqa", hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, bias),
        Linear("kv_b_proj", mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim)),
        Linear("o_proj", heads * mla.v_head_dim, hidden, bias),
    )
    norms = (*(linear.outputs for linear in down), mla.kv_lora_rank)
    return Attention(heads, kv_heads, head_dim, linears, norms, mla=mla)


def gated_mlp(
    hidden: int, ffn: int, keys: ConfigKeys, *, bias: bool = False, key: str = "hidden_act", activation: str = "silu"
) -> Mlp:
    """A dense MLP of gate, up and down projections, with `activation` on the gate."""
    return Mlp(ffn, True, keys.word(key, activation), gated_linears(hidden, ffn, bias))


def gated_linears(hidden: int, ffn: int, bias: bool = False) -> tuple[Linear, ...]:
    return (
        Linear("gate_proj", hidden, ffn, bias),
        Linear("up_proj", hidden, ffn, bias),
        Linear("down_proj", ffn, hidden, bias),
    )


def expert_mlp(
    keys: ConfigKeys,
    hidden: int,
    ffn: int,
    key: str,
    default: int,
    used_default: int,
    *,
    shared: int = 0,
    bias: bool = False,
) -> Mlp:
    """Routed experts of width `ffn`, beside `shared` ones fused in one MLP; the router is a matrix.

    `bias` gives each expert's two projections, and the router, a bias: GPT-OSS.
    """
    experts, used = keys.whole(key, default, most=2**16), keys.whole("num_experts_per_tok", used_default)
    keys.require(used <= experts, "num_experts_per_tok", f"is {used}", f"at most the {experts} experts")
    return Mlp(
        ffn,
        True,
        keys.word("hidden_act", "silu"),
        gated_linears(hidden, shared * ffn) if shared else (),
        experts,
        used,
        (Linear("gate_up_proj", hidden, 2 * ffn, bias), Linear("down_proj", ffn, hidden, bias)),
        router_parameters=Linear("router", hidden, experts, bias).parameters,
        router_bias=bias,
    )


def prenorm_layer(attention: Attention, mlp: Mlp, hidden: int) -> Layer:
    """A layer with one RMSNorm before attention and one before the MLP."""
    return Layer(attention, mlp, 2, (hidden, hidden))


def qwen_windows(keys: ConfigKeys, count: int) -> list[int | None]:
    """Qwen2 and Qwen3 keep `sliding_window` in the file even when `use_sliding_window` turns it off."""
    window = keys.optional_whole("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    first = keys.whole("max_window_layers", 28, least=0)
    kinds = keys.per_layer("layer_types", count) or [WINDOW if window and i >= first else FULL for i in range(count)]
    return windows_of(keys, kinds, window)


def rotated_layers(keys: ConfigKeys, count: int) -> list[bool]:
    """Which layers rotate q and k: as `no_rope_layers` has it, 0 where one does not; or all but each fourth."""
    every, told = keys.whole("no_rope_layer_interval", 4), keys.numbers("no_rope_layers")
    expected = f"{count} of 0 and 1, one for each layer"
    keys.require(not told or len(told) >= count, "no_rope_layers", f"has {len(told)} entries", expected)
    return [bool(one) for one in told[:count]] if told else [bool((at + 1) % every) for at in range(count)]


def windows_of(keys: ConfigKeys, kinds: Iterable[str], window: int | None, limited: str = WINDOW) -> list[int | None]:
    """The window of each layer from its kind: `window` where attention is `limited`, None where it is full."""
    for kind in kinds:
        keys.require(kind in (limited, FULL), "layer_types", f"holds {kind!r}", f"{limited} or {FULL}")
    return [window if kind == limited else None for kind in kinds]


def assemble(
    keys: ConfigKeys,
    source: str,
    family: str,
    hidden: int,
    layers: list[Layer],
    *,
    vocab: int,
    tied: bool = False,
    positions: int = 2048,
    positions_key: str = "max_position_embeddings",
) -> ModelShape:
    """A model with rotary positions and RMSNorm around `layers`; the numbers are the family's defaults."""
    return ModelShape(
        name=keys.name,
        family=family,
        hidden=hidden,
        vocab=keys.whole("vocab_size", vocab),
        tied=keys.flag("tie_word_embeddings", tied),
        layers=tuple(layers),
        max_positions=keys.whole(positions_key, positions),
        final_norm_parameters=hidden,
        source=source,
        config=keys.values,
    )
