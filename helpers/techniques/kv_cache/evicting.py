"""Caches that drop tokens: a window with attention sinks, and eviction by attention score.

`WindowLayer` is StreamingLLM's (arXiv 2309.17453): the first few tokens and the last w. Cached keys keep the rotation
they came with and queries have their true position, so every distance that attention sees is the true one, and a sink
drifts away as the text goes on. (StreamingLLM counts positions inside the cache instead and rotates keys when they are
read: that goes on past the longest position the model was trained on. This one does not; it saves memory within it.)

`EvictingLayer` is H2O's (arXiv 2306.14048): the heavy hitters and the newest tokens. The scores are rows of the
attention matrix, which SDPA and FlashAttention exist not to make. So it needs a model with
`attn_implementation="eager"`, whose attention modules return their weights, and a hook that reads them: what it saves
in the cache it first spends on that matrix, while the prompt is read.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ...catalog.errors import WorkbookError
from .layers import KVLayer, joined


class WindowLayer(KVLayer):
    """Keeps the last `window` tokens, the newest among them, and the first `sinks` ones.

    A token decoded alone attends to just those. A prompt read in one piece attends to all of itself and is cut to size
    afterwards; of several tokens at once, the later ones see as many more. `padding` [rows] counts the padding tokens
    on the left of each row, which are dropped first: without it, in a batch of ragged prompts, they would be the sinks.
    `sliding` marks a window that belongs to the model itself, whose mask is exact for any number of tokens at once.
    """

    def __init__(self, window: int, sinks: int = 0, padding: Tensor | None = None, sliding: bool = False) -> None:
        super().__init__()
        self.window, self.sinks, self.padding, self.is_sliding = window, sinks, padding, sliding
        self.room = sinks + window

    @property
    def held(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def kept(self, new: int) -> int:
        """All while there is room; then one less than the room, which the first new token fills."""
        return self.held if self.held + new <= self.room else min(self.held, self.room - 1)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is None:
            self.lead = keys.new_zeros(len(keys), dtype=torch.long) if self.padding is None else self.padding.clone()
        self._cut(self.kept(keys.shape[2]))
        found = self.keys, self.values = joined(self.keys, keys), joined(self.values, values)
        self._cut(self.room)
        return found

    def get_max_length(self) -> int:
        return self.room

    def _cut(self, room: int) -> None:
        """Down to `room` tokens, in tensors of their own: a slice would keep the whole prompt in memory."""
        surplus = self.held - room
        if self.keys is None or self.values is None or surplus <= 0:
            return
        padding = self.lead.clamp(max=surplus)[:, None]  # padding goes first, then what follows the sinks
        self.lead = self.lead - padding[:, 0]
        slot = torch.arange(room, device=self.keys.device)[None]
        slot = slot + padding + (slot >= self.sinks) * (surplus - padding)
        self.keys, self.values = picked(self.keys, slot[:, None]), picked(self.values, slot[:, None])


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
        scored = 0 if self.scores is None else self.scores.shape[2]
        if scored < self.kept(1):
            do = 'call model.set_attn_implementation("eager"), then cache_of(model, ...)'
            raise WorkbookError("an evicting cache that sees no attention weights", "a model with eager attention", do)
        self.keys, self.values = joined(self.keys, keys), joined(self.values, values)
        if self.scores is None:
            self.scores = keys.new_zeros((*keys.shape[:2], 0), dtype=torch.float32)
        return self.keys, self.values

    def saw(self, weights: Tensor) -> None:
        """Add the attention [rows, query heads, queries, tokens] of this forward to the scores, and evict."""
        assert self.keys is not None, "append comes first"
        assert self.values is not None
        assert self.scores is not None
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
    vars(model)["_shows_attention"] = True


def _show(module: nn.Module, args: object, kwargs: dict[str, object], output: object) -> None:
    cache = kwargs.get("cache", kwargs.get("past_key_values"))  # its name from Transformers 5.24 on, and before
    weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    layer = cache.layers[cast(int, module.layer_idx)] if isinstance(cache, Cache) else None
    if isinstance(layer, EvictingLayer) and isinstance(weights, Tensor) and weights.dim() == 4:
        layer.saw(weights)


def picked(states: Tensor, slots: Tensor) -> Tensor:
    """The tokens at `slots` [rows, heads or 1, tokens] of `states` [rows, heads, tokens, width], in a new tensor."""
    rows, heads, _, width = states.shape
    return states.gather(2, slots[..., None].expand(rows, heads, -1, width))
