"""Caches that keep every token as it came: naive concatenation, a buffer that grows in steps, a reservation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...catalog.errors import WorkbookError
from .layers import KVLayer, joined


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
        if end > self.max_tokens:
            raise full(self.max_tokens, self.seen, keys.shape[2])
        if self.batch and rows > self.batch:
            raise WorkbookError(
                f"StaticCache holds {self.batch} sequences, and {rows} came",
                f"at most {self.batch}",
                f"pass batch={rows}, or serve them in turns",
            )
        reserved = self.batch or rows
        self.keys = placed(self.keys, keys, self.seen, self.max_tokens, reserved)
        self.values = placed(self.values, values, self.seen, self.max_tokens, reserved)
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    def get_max_length(self) -> int:
        return self.max_tokens


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


def full(max_tokens: int, seen: int, new: int) -> WorkbookError:
    """Said before anything was written, so the cache is still good for what it holds."""
    return WorkbookError(
        f"StaticCache full: {max_tokens} positions, {seen} of them taken, and {new} more came",
        f"at most {max_tokens - seen} more",
        f"pass max_tokens={seen + new} or more (prompt and answer), or generate fewer tokens",
    )
