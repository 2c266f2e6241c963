"""Attention over a block table: keys and values lie in blocks anywhere in a pool, and a table says where.

`gathered` copies them together, `block_by_block` reads them where they are; below are the pool that block numbers stand
for, and the attention function through which a model of Transformers writes to it and reads from it.

Shapes: rows R, new tokens of each N, query heads H, key heads K, blocks of a table B, slots of a block S, head dim D.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ...catalog.errors import WorkbookError
from ..attention.online import Partial, merge
from .blocks import Copy

NAME = "workbook_paged"


@dataclass(frozen=True)
class BlockTables:
    """Where the tokens of each row are. Row r's new tokens are the last N of its `lengths[r]`, already in the pool."""

    tables: Tensor  # [R, B], block numbers; what lies behind a row's length is never looked at
    lengths: Tensor  # [R], tokens with the new ones
    block_size: int

    def positions(self, new: int) -> Tensor:
        """Positions of the new tokens, [R, N]."""
        return self.lengths[:, None] - new + torch.arange(new, device=self.lengths.device)

    def slots(self, new: int) -> Tensor:
        """Their places in the pool laid flat, [R, N]: block number times block size, plus place in the block."""
        positions = self.positions(new)
        blocks = self.tables.gather(1, positions // self.block_size)
        return blocks * self.block_size + positions % self.block_size

    def visible(self, new: int, keys: Tensor, window: int | None = None) -> Tensor:
        """Whether each new token sees the keys at the positions `keys` [T]: [R, 1, N, T], for all heads."""
        own = self.positions(new)[:, None, :, None]
        seen = keys <= own
        return seen if window is None else seen & (keys > own - window)


def gathered(
    query: Tensor, keys: Tensor, values: Tensor, where: BlockTables, scale: float, window: int | None = None
) -> Tensor:
    """[R, H, N, D] attention, by a copy of each row's blocks in order and SDPA over it.

    `query` [R, H, N, D]; `keys` and `values` [blocks, S, K, D] are the pool of one layer. The copy is as long as the
    longest row. Exact, and the naive way: vLLM's kernel reads the table inside, and copies nothing.
    """
    heads, new = query.shape[1:3]
    k, v = (pool[where.tables].flatten(1, 2).transpose(1, 2) for pool in (keys, values))  # [R, K, B * S, D]
    mask = where.visible(new, torch.arange(k.shape[2], device=query.device), window)
    return F.scaled_dot_product_attention(query, k, v, mask, scale=scale, enable_gqa=heads != k.shape[1])


def block_by_block(
    query: Tensor, keys: Tensor, values: Tensor, where: BlockTables, scale: float, window: int | None = None
) -> Tensor:
    """The same, as the kernel does it: a block at a time, with the online softmax, and no copy of the whole.

    Each block's part is merged into what is known so far: for each query the largest score, the sum of exponentials,
    and that sum over the values.
    """
    rows, heads, new, dim = query.shape
    key_heads, groups = keys.shape[2], heads // keys.shape[2]
    q = query.reshape(rows, key_heads, groups, new, dim) * scale
    state = Partial.nothing(q, values.shape[-1])
    for at in range(where.tables.shape[1]):
        k, v = (pool[where.tables[:, at]].transpose(1, 2)[:, :, None] for pool in (keys, values))  # [R, K, 1, S, D]
        here = torch.arange(at * where.block_size, (at + 1) * where.block_size, device=query.device)
        seen = where.visible(new, here, window)[:, :, None]
        scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, float("-inf"))
        state = merge(state, Partial.of(scores, v))
    return state.result()[0].reshape(rows, heads, new, -1)


ATTENTIONS = {"gathered": gathered, "block-by-block": block_by_block}


SentCache = dict[int, tuple[Tensor, ...]]  # by layer: keys and values of a sequence's tokens


class KVPool:
    """Keys and values of every layer, [blocks, block_size, key heads, head dim], on the device and on the host.

    A layer's tensors are made when it first writes: only then are its heads known. `bytes` is what has been made.
    """

    def __init__(self, blocks: int, block_size: int, host_blocks: int = 0) -> None:
        self.blocks, self.block_size, self.host_blocks = blocks, block_size, host_blocks
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.host: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(pool.nbytes for layer in self.layers.values() for pool in layer)

    def write(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """`keys` and `values` [rows, heads, new, dim] to `slots` [rows, new]."""
        self._make(layer, keys, values)
        for pool, states in zip(self.layers[layer], (keys, values), strict=True):
            pool.flatten(0, 1)[slots.flatten()] = states.transpose(1, 2).flatten(0, 1)

    def read(self, table: list[int], tokens: int) -> SentCache:
        """A copy of the first `tokens` tokens of a block table, each [tokens, key heads, head dim]."""
        places = torch.tensor(table)
        return {
            layer: tuple(pool[places.to(pool.device)].flatten(0, 1)[:tokens] for pool in pair)
            for layer, pair in self.layers.items()
        }

    def receive(self, blocks: list[int], cache: SentCache) -> None:
        """What another pool has read, into host blocks of this one."""
        for layer, (keys, values) in cache.items():
            self._make(layer, *(each.transpose(0, 1)[None] for each in (keys, values)))  # laid as `write` has them
            for pool, each in zip(self.host[layer], (keys, values), strict=True):
                places = torch.arange(len(each))
                pool[torch.tensor(blocks)[places // self.block_size], places % self.block_size] = each.cpu()

    def copy(self, copies: list[Copy]) -> None:
        """Blocks within the device: what copy-on-write asks for."""
        self._move(copies, self.layers, self.layers)

    def swap_out(self, moves: list[Copy]) -> None:
        self._move(moves, self.layers, self.host)

    def swap_in(self, moves: list[Copy]) -> None:
        self._move(moves, self.host, self.layers)

    def take(self, block: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of a block of the device in the host's memory: keys and values of each layer."""
        return [(keys[block].cpu().clone(), values[block].cpu().clone()) for keys, values in self.layers.values()]

    def put(self, block: int, contents: list[tuple[Tensor, Tensor]]) -> None:
        """What `take` gave, into a block of the device."""
        for pools, parts in zip(self.layers.values(), contents, strict=True):
            for pool, part in zip(pools, parts, strict=True):
                pool[block] = part.to(pool.device)

    def _move(self, moves: list[Copy], source: dict, target: dict) -> None:
        if not moves:
            return
        sources, targets = zip(*moves, strict=True)
        for layer in self.layers:
            for read, write in zip(source[layer], target[layer], strict=True):
                write[list(targets)] = read[list(sources)].to(write.device)

    def _make(self, layer: int, keys: Tensor, values: Tensor) -> None:
        if layer in self.layers:
            return
        self.layers[layer] = self._empty(keys, values, self.blocks, keys.device)
        if self.host_blocks:
            self.host[layer] = self._empty(keys, values, self.host_blocks, torch.device("cpu"))

    def _empty(self, keys: Tensor, values: Tensor, blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
        # zeros: a NaN in a slot nobody filled would come through the mask, as 0 times NaN
        shapes = ((blocks, self.block_size, states.shape[1], states.shape[3]) for states in (keys, values))
        pool = [torch.zeros(shape, dtype=keys.dtype, device=device) for shape in shapes]
        return pool[0], pool[1]


@dataclass(frozen=True)
class PagedInputs:
    """What one forward needs to find its tokens: passed to the model as `paged=`, and by it to every layer."""

    pool: KVPool
    where: Any  # BlockTables, or what else `attention` reads; it has `slots`
    attention: Callable[..., Tensor] = gathered


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    paged: PagedInputs | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """An attention function of Transformers: the new keys and values go to the pool, then the queries look there."""
    strange = [name for name in ("softcap", "s_aux") if others.get(name) is not None]
    if paged is None or strange:
        what = f"paged attention in {type(module).__name__}" + (f" with {strange[0]}" if strange else "")
        expected = "a model of Transformers that hands keyword arguments on to plain softmax attention"
        raise WorkbookError(what, expected, "try a Llama, Qwen, Mistral or GPT-2")
    layer = cast(int, module.layer_idx)
    paged.pool.write(layer, key, value, paged.where.slots(query.shape[2]))
    keys, values = paged.pool.layers[layer]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = paged.attention(query, keys, values, paged.where, scale, sliding_window)
    return out.transpose(1, 2).contiguous(), None


@contextmanager
def paged_model(model: PreTrainedModel) -> Iterator[None]:
    """`model` with paged attention; its own comes back at the end."""
    AttentionInterface.register(NAME, paged_attention)
    own = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = own
