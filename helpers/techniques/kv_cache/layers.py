"""One layer's keys and values, behind the interface that Transformers' models call.

And the caches that keep all of them: naive concatenation, a buffer that grows in steps, a reservation.

A model calls `update` once per layer and forward with the new tokens' keys and values, [rows, heads, tokens, width],
attends over what comes back, and asks `get_mask_sizes` beforehand how many that will be. Keys arrive rotated: rotary
positions are in them, so a cache never has to know a token's place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

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
        self._refuse_gradients_and_other_rows(key_states)
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

    def _refuse_gradients_and_other_rows(self, key_states: Tensor) -> None:
        if key_states.requires_grad:  # kept, they would keep the graph of every step
            do = "put the call under torch.no_grad()"
            raise WorkbookError("keys and values that require gradients", "inference", do)
        rows = len(key_states) if self.padding is None else len(self.padding)
        if {len(key_states)} != {rows, self.rows or rows}:  # one row would broadcast over all rows without a word
            what = f"{len(key_states)} sequences for a cache of {self.rows or rows}"
            raise WorkbookError(what, "the same rows each time", "make a new cache for a new batch")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        expected = "greedy decoding or sampling, one cache per batch"
        do = "leave num_beams and assistants out, or use Transformers' DynamicCache"
        raise WorkbookError(f"{type(self).__name__} cannot reorder, repeat or take back tokens", expected, do)

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = _refuse


class ConcatLayer(KVLayer):
    """The naive cache: each token makes a new tensor, one longer, and copies the old one into it.

    Exactly the bytes that are needed, but old and new stand side by side for a moment, and n tokens copy n²/2 of them.
    Transformers' DynamicCache is this one.
    """

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = joined(self.keys, keys), joined(self.values, values)
        return self.keys, self.values


class GrowingLayer(KVLayer):
    """A buffer with room for the next tokens: most of them are written in place, one in `step` copies.

    What it holds is the tokens rounded up to a multiple of `step`: under `step` positions are empty.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        end = self.seen + keys.shape[2]
        room = -(-end // self.step) * self.step
        self.keys = placed(self.keys, keys, self.seen, room)
        self.values = placed(self.values, values, self.seen, room)
        return self.keys[:, :, :end], self.values[:, :, :end]


class StaticLayer(KVLayer):
    """Everything reserved when the first tokens come: `max_tokens` positions for `batch` sequences (0: for those).

    Nothing is ever copied, the addresses never change, and a request that ends early has wasted the rest. Attention
    reads what is filled. (Transformers' StaticCache returns the whole reservation with a mask, so that shapes stay the
    same for torch.compile, and reads the empty positions too.)
    """

    def __init__(self, max_tokens: int, batch: int = 0) -> None:
        super().__init__()
        self.max_tokens, self.batch = max_tokens, batch

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows, end = len(keys), self.seen + keys.shape[2]
        self._require_room(rows, end)
        reserved = self.batch or rows
        self.keys = placed(self.keys, keys, self.seen, self.max_tokens, reserved)
        self.values = placed(self.values, values, self.seen, self.max_tokens, reserved)
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_max_length(self) -> int:
        return self.max_tokens

    def _require_room(self, rows: int, end: int) -> None:
        """Asked before anything is written, so that the cache is still good for what it holds."""
        if end > self.max_tokens:
            taken, new = self.seen, end - self.seen
            what = f"StaticCache full: {self.max_tokens} positions, {taken} of them taken, and {new} more came"
            do = f"pass max_tokens={end} or more (prompt and answer), or generate fewer tokens"
            raise WorkbookError(what, f"at most {self.max_tokens - taken} more", do)
        if self.batch and rows > self.batch:
            what = f"StaticCache holds {self.batch} sequences, and {rows} came"
            raise WorkbookError(what, f"at most {self.batch}", f"pass batch={rows}, or serve them in turns")


def joined(first: Tensor | None, second: Tensor) -> Tensor:
    """The two one after the other, along the tokens, in a tensor of their own.

    Also when there is no first: GPT-2's keys and values are views of one tensor that holds the queries too.
    """
    return second.clone() if first is None else torch.cat([first, second], dim=2)


def placed(
    buffer: Tensor | None, new: Tensor, at: int, room: int, rows: int = 0, empty: Callable[..., Tensor] | None = None
) -> Tensor:
    """`buffer` with `new` [rows, heads, tokens, width] written at token `at`.

    If the buffer does not reach so far, a new one of `room` tokens, made by `empty` or beside `new`, takes its place.
    """
    end = at + new.shape[2]
    if buffer is None or end > buffer.shape[2]:
        old, shape = buffer, (rows or len(new), new.shape[1], room, new.shape[3])
        buffer = (empty or new.new_empty)(shape, dtype=new.dtype)
        if old is not None:
            buffer[:, :, :at] = old[:, :, :at]
    buffer[: len(new), :, at:end].copy_(new, non_blocking=True)
    return buffer
