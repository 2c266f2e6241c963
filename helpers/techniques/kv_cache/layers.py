"""What all these caches share: one layer's keys and values, behind the interface that Transformers' models call.

A model calls `update` once per layer and forward with the new tokens' keys and values, [rows, heads, tokens, width],
attends over what comes back, and asks `get_mask_sizes` beforehand how many that will be. Keys arrive rotated: rotary
positions are in them, so a cache never has to know a token's place.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ...catalog.errors import WorkbookError


class KVLayer(CacheLayerMixin):
    """One layer's cache. A subclass says what it holds (`append`) and how many tokens of it will be read (`kept`).

    `seen` counts the tokens that have come, dropped ones too: the position of the next. `is_sliding` marks a layer
    whose model looks back through a window of its own, which gets a mask of its own.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.rows: int | None = None
        self.padding: Tensor | None = None  # padding tokens on the left of each row, for layers that drop tokens

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Take in the new tokens; return all keys and values that they may attend to, themselves last."""

    def kept(self, new: int) -> int:
        """How many earlier tokens will be returned when `new` ones come. All, unless the layer drops some."""
        return self.seen

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        if key_states.requires_grad:  # kept, they would keep the graph of every step
            raise WorkbookError(
                "keys and values that require gradients", "inference", "put the call under torch.no_grad()"
            )
        rows = len(key_states) if self.padding is None else len(self.padding)
        if {len(key_states)} != {rows, self.rows or rows}:  # one row would broadcast over all rows without a word
            raise WorkbookError(
                f"{len(key_states)} sequences for a cache of {self.rows or rows}",
                "the same rows each time",
                "make a new cache for a new batch",
            )
        found = self.append(key_states, value_states)
        self.rows, self.seen, self.is_initialized = len(key_states), self.seen + key_states.shape[2], True
        return found

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that `update` will return, and the position of the first were they consecutive."""
        kept = self.kept(query_length)
        return kept + query_length, self.seen - kept

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1  # none

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Transformers' own layers allocate here; these do when the first tokens come."""

    def reset(self) -> None:
        self.keys = self.values = self.rows = None
        self.seen, self.is_initialized = 0, False

    def _refuse(self, *args: object) -> None:
        raise WorkbookError(
            f"{type(self).__name__} cannot reorder, repeat or take back tokens",
            "greedy decoding or sampling, one cache per batch",
            "leave num_beams and assistants out, or use Transformers' DynamicCache",
        )

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = _refuse


def joined(first: Tensor | None, second: Tensor) -> Tensor:
    """The two one after the other, along the tokens, in a tensor of their own.

    Also when there is no first: GPT-2's keys and values are views of one tensor that holds the queries too.
    """
    return second.clone() if first is None else torch.cat([first, second], dim=2)
