"""Eviction by attention score: keep the heavy hitters and the newest tokens (H2O, arXiv 2306.14048).

The scores are rows of the attention matrix, which SDPA and FlashAttention exist not to make. So this cache needs a
model with `attn_implementation="eager"`, whose attention modules return their weights, and a hook that reads them:
what it saves in the cache it first spends on that matrix, while the prompt is read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ...catalog.errors import WorkbookError
from .layers import KVLayer, joined
from .window import picked


class EvictingLayer(KVLayer):
    """At most `heavy + recent` tokens for each key head: the newest, and those that drew most attention so far.

    Which they are differs from head to head. What was evicted is gone, also when a later question asks for it.
    `padding` [rows] counts the padding tokens on the left of each row, whose attention is left out.
    """

    def __init__(self, heavy: int, recent: int, padding: Tensor | None = None) -> None:
        super().__init__()
        self.heavy, self.recent, self.padding = heavy, recent, padding
        self.scores: Tensor | None = None  # attention drawn by each held token, [rows, key heads, tokens]

    def kept(self, new: int) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.scores.shape[2] < self.keys.shape[2]:
            raise WorkbookError(
                "an evicting cache that sees no attention weights",
                "a model with eager attention",
                'call model.set_attn_implementation("eager"), then cache_of(model, ...)',
            )
        self.keys, self.values = joined(self.keys, keys), joined(self.values, values)
        if self.scores is None:
            self.scores = keys.new_zeros((*keys.shape[:2], 0), dtype=torch.float32)
        return self.keys, self.values

    def saw(self, weights: Tensor) -> None:
        """Add the attention [rows, query heads, queries, tokens] of this forward to the scores, and evict."""
        rows, heads = self.keys.shape[:2]
        if self.padding is not None:  # a padding token attends to everything alike, for the softmax has to end in 1
            queries = torch.arange(self.seen - weights.shape[2], self.seen, device=weights.device)
            weights = weights * (queries >= self.padding[:, None])[:, None, :, None]
        drawn = weights.float().sum(2).unflatten(1, (heads, -1)).sum(2)  # query heads that share a key head, together
        drawn[:, :, : self.scores.shape[2]] += self.scores
        self.scores = drawn
        surplus = drawn.shape[2] - self.heavy - self.recent
        if surplus > 0:
            older = drawn[:, :, : drawn.shape[2] - self.recent]
            heavy = older.topk(self.heavy, dim=2).indices.sort(dim=2).values  # in the order they came
            newest = torch.arange(older.shape[2], drawn.shape[2], device=drawn.device).expand(rows, heads, -1)
            slots = torch.cat([heavy, newest], 2)
            self.keys, self.values = picked(self.keys, slots), picked(self.values, slots)
            self.scores = drawn.gather(2, slots)

    def reset(self) -> None:
        super().reset()
        self.scores = None


def watch(model: nn.Module) -> None:
    """Let every attention module of `model` show its weights to the EvictingLayer that its forward was given."""
    if getattr(model, "_shows_attention", False):
        return
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.register_forward_hook(_show, with_kwargs=True)
    model._shows_attention = True


def _show(module: nn.Module, args: object, kwargs: dict[str, object], output: object) -> None:
    cache = kwargs.get("past_key_values")
    weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    layer = cache.layers[module.layer_idx] if isinstance(cache, Cache) else None
    if isinstance(layer, EvictingLayer) and isinstance(weights, Tensor) and weights.dim() == 4:
        layer.saw(weights)
