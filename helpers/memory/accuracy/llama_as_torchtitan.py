"""A Llama with the operators that torchtitan's runs in eager mode, and its selective checkpointing.

Each tensor lives as long as torchtitan's does: norms and rotary embeddings in FP32, those of Q and K together, K and V
repeated for every query head. Written anew after torchtitan/models/llama/model.py and
torchtitan/parallelisms/parallelize_llama.py at 9dec370; names of modules follow it, for its plan of tensor parallelism
goes by names. Shapes: (sequences, tokens, hidden), heads split as (sequences, tokens, heads, width).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

PRODUCT = torch.ops.aten.mm.default
KEPT = {
    PRODUCT,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


class Norm(nn.Module):
    """RMSNorm written out: the input is converted, and so is each step's result kept."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self._scaled(x.float()).type_as(x)
        return scaled * self.weight

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


class TorchTitanAttention(nn.Module):
    """Grouped-query attention; how many heads this rank has shows in what its projections return."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.width, self.repeats = hidden // heads, heads // kv_heads
        self.wq = nn.Linear(hidden, hidden, bias=False)
        self.wk = nn.Linear(hidden, kv_heads * self.width, bias=False)
        self.wv = nn.Linear(hidden, kv_heads * self.width, bias=False)
        self.wo = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        sequences, tokens, _ = x.shape
        q, k, v = (made.view(sequences, tokens, -1, self.width) for made in (self.wq(x), self.wk(x), self.wv(x)))
        q, k = turned(q, k, turns)
        k, v = self._for_every_query_head(k), self._for_every_query_head(v)
        out = functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        out = out.transpose(1, 2).contiguous().view(sequences, tokens, -1)
        return self.wo(out)

    def _for_every_query_head(self, x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(3).expand(*x.shape[:3], self.repeats, self.width).reshape(*x.shape[:2], -1, self.width)


def turned(q: torch.Tensor, k: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embeddings as products of complex numbers, in FP32."""
    q_pairs, k_pairs = (torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) for x in (q, k))
    turns = turns[: q.shape[1]].view(1, q.shape[1], 1, -1)
    q_turned = torch.view_as_real(q_pairs * turns).flatten(3)
    k_turned = torch.view_as_real(k_pairs * turns).flatten(3)
    return q_turned.type_as(q), k_turned.type_as(k)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.w2 = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class TorchTitanLayer(nn.Module):
    """Attention and feed-forward, each behind its norm."""

    def __init__(self, hidden: int, inner: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = TorchTitanAttention(hidden, heads, kv_heads), FeedForward(hidden, inner)
        self.attention_norm, self.ffn_norm = Norm(hidden), Norm(hidden)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """The model of a config.json, for up to `tokens` positions; build it on the meta device.

    A stage of a pipeline has some of the layers, and None for the embedding or for norm and output.
    """

    def __init__(self, config: Mapping[str, Any], tokens: int) -> None:
        super().__init__()
        hidden, heads, vocab = config["hidden_size"], config["num_attention_heads"], config["vocab_size"]
        sizes = (hidden, config["intermediate_size"], heads, config["num_key_value_heads"])
        self.tok_embeddings: nn.Module | None = nn.Embedding(vocab, hidden)
        self.register_buffer("freqs_cis", torch.empty(tokens, hidden // heads // 2, dtype=torch.complex64))
        self.layers = nn.ModuleList(TorchTitanLayer(*sizes) for _ in range(config["num_hidden_layers"]))
        self.norm: nn.Module | None = Norm(hidden)
        self.output: nn.Module | None = nn.Linear(hidden, vocab, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(x) if self.tok_embeddings else x
        for layer in self.layers:
            x = layer(x, self.freqs_cis)
        x = self.norm(x) if self.norm else x
        return self.output(x) if self.output else x


def checkpointed(layer: nn.Module, mode: str) -> nn.Module:
    """`layer` with "full" checkpointing, or "selective": every second matrix product is computed again."""
    options: dict[str, Any] = {"context_fn": _every_second_product} if mode == "selective" else {}
    return checkpoint_wrapper(layer, preserve_rng_state=False, **options)


def _every_second_product():
    products: Counter[bool] = Counter()

    def policy(context: Any, func: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
        products[context.is_recompute] += func is PRODUCT
        second = func is PRODUCT and products[context.is_recompute] % 2 == 0
        return CheckpointPolicy.MUST_SAVE if func in KEPT and not second else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
