"""The memory that block numbers stand for, and the attention function that writes to it and reads from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from ...catalog.errors import WorkbookError
from .attention import ATTENTIONS, BlockTables
from .blocks import Copy

NAME = "workbook_paged"


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
        if layer not in self.layers:
            self.layers[layer] = self._empty(keys, values, self.blocks, keys.device)
            if self.host_blocks:
                self.host[layer] = self._empty(keys, values, self.host_blocks, torch.device("cpu"))
        for pool, states in zip(self.layers[layer], (keys, values), strict=True):
            pool.flatten(0, 1)[slots.flatten()] = states.transpose(1, 2).flatten(0, 1)

    def copy(self, copies: list[Copy]) -> None:
        """Blocks within the device: what copy-on-write asks for."""
        self._move(copies, self.layers, self.layers)

    def swap_out(self, moves: list[Copy]) -> None:
        self._move(moves, self.layers, self.host)

    def swap_in(self, moves: list[Copy]) -> None:
        self._move(moves, self.host, self.layers)

    def _move(self, moves: list[Copy], source: dict, target: dict) -> None:
        if not moves:
            return
        sources, targets = zip(*moves, strict=True)
        for layer in self.layers:
            for read, write in zip(source[layer], target[layer], strict=True):
                write[list(targets)] = read[list(sources)].to(write.device)

    def _empty(self, keys: Tensor, values: Tensor, blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
        # zeros: a NaN in a slot nobody filled would come through the mask, as 0 times NaN
        return tuple(
            torch.zeros(blocks, self.block_size, states.shape[1], states.shape[3], dtype=states.dtype, device=device)
            for states in (keys, values)
        )


@dataclass(frozen=True)
class Step:
    """What one forward needs to find its tokens: passed to the model as `paged=`, and by it to every layer."""

    pool: KVPool
    where: BlockTables
    attention: str = "gathered"  # a key of ATTENTIONS


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    paged: Step | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """An attention function of Transformers: the new keys and values go to the pool, then the queries look there."""
    strange = [name for name in ("softcap", "s_aux") if others.get(name) is not None]
    if paged is None or strange:
        raise WorkbookError(
            f"paged attention in {type(module).__name__}" + (f" with {strange[0]}" if strange else ""),
            "a model of Transformers that hands keyword arguments on to plain softmax attention",
            "try a Llama, Qwen, Mistral or GPT-2",
        )
    new = query.shape[2]
    paged.pool.write(module.layer_idx, key, value, paged.where.slots(new))
    keys, values = paged.pool.layers[module.layer_idx]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = ATTENTIONS[paged.attention](query, keys, values, paged.where, scale, sliding_window)
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
