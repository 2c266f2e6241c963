"""Keys and values in 8, 4 or 2 bits, the newest tokens as they came: KIVI (arXiv 2402.02750), in plain PyTorch.

A key has channels that are large for every token. One scale per token has to reach up to them and rounds the others
away; one scale per channel gives each channel its own reach. Values have no such channels, and one scale per token lets
each be packed as soon as it is old enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError
from ..quantization.packing import Stored, pack, unpack
from .layers import KVLayer, joined
from .plans import CHANNEL, TOKEN
from .sizes import channel_group, quantized_tokens

SCALE = torch.float16


@dataclass(frozen=True, eq=False)
class PackedStates(Stored):
    """Keys or values of some tokens as codes of `bits` bits: value = low + code * step, for groups of neighbours.

    The levels span a group from minimum to maximum, which is KIVI's rule (a `Grid` of the quantization technique always
    has a level at zero, which is of no use to a channel that lies between 9 and 11). `low` and `step` are FP16.
    """

    packed: Tensor
    low: Tensor
    step: Tensor
    shape: torch.Size
    bits: int
    per: str
    dtype: torch.dtype

    @classmethod
    def of(cls, states: Tensor, bits: int, per: str, group: int) -> PackedStates:
        """`states` [rows, heads, tokens, width]; groups of `group` tokens of a channel, or of channels of a token."""
        groups = _grouped(states, per, group).float()
        low = groups.amin(-1, keepdim=True).to(SCALE)
        step = ((groups.amax(-1, keepdim=True) - low) / (2**bits - 1)).to(SCALE)
        if not (low.isfinite() & step.isfinite()).all():
            do = "look for the layer that overflows, or keep this cache in full precision"
            raise WorkbookError("keys or values that FP16 scales cannot reach", "finite numbers below 65,504", do)
        step = step.where(step > 0, 1)  # a constant group, or one flatter than FP16 can say: all codes are 0
        codes = ((groups - low.float()) / step.float()).round().clamp(0, 2**bits - 1).to(torch.uint8)
        return cls(pack(codes, bits), low, step, groups.shape, bits, per, states.dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """[rows, heads, tokens, width] again, in the dtype it came in or in `dtype`."""
        codes = unpack(self.packed, self.bits, self.shape.numel()).reshape(self.shape)
        groups = self.low.float() + codes * self.step.float()
        return _ungrouped(groups.to(dtype or self.dtype), self.per)


class QuantizedLayer(KVLayer):
    """Groups of the oldest tokens packed, and a tail of `residual` to `residual + group - 1` tokens as they came.

    How many are packed depends only on how many have come, so the bytes do too (`sizes.cache_bytes`). Each forward
    decodes one layer's K and V in full, for as long as its attention runs: less is *held*; an engine's fused kernel
    also *reads* less. Packed tokens stay what they became: nothing is rounded twice.
    """

    def __init__(self, bits: int, per: str = CHANNEL, group: int = 32, residual: int = 32) -> None:
        super().__init__()
        self.bits, self.per, self.group, self.residual = bits, per, group, residual
        self.packed: list[tuple[PackedStates, PackedStates]] = []

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self.keys, self.values = joined(self.keys, keys), joined(self.values, values)
        old_keys = [packed.dequantize() for packed, _ in self.packed]
        old_values = [packed.dequantize() for _, packed in self.packed]
        found = torch.cat([*old_keys, self.keys], 2), torch.cat([*old_values, self.values], 2)
        seen = self.seen + keys.shape[2]
        self._pack(quantized_tokens(seen, self.group, self.residual) - (seen - self.keys.shape[2]))
        return found

    def reset(self) -> None:
        super().reset()
        self.packed.clear()

    def _pack(self, count: int) -> None:
        """The oldest `count` tokens of the tail; what stays is copied, or the view would keep all of it."""
        if not count or self.keys is None or self.values is None:
            return
        by_token = channel_group(self.values.shape[3], self.group)
        key_group = self.group if self.per == CHANNEL else channel_group(self.keys.shape[3], self.group)
        keys, self.keys = self.keys[:, :, :count], self.keys[:, :, count:].clone()
        values, self.values = self.values[:, :, :count], self.values[:, :, count:].clone()
        self.packed.append(
            (PackedStates.of(keys, self.bits, self.per, key_group), PackedStates.of(values, self.bits, TOKEN, by_token))
        )


def _grouped(states: Tensor, per: str, group: int) -> Tensor:
    """Per channel [rows, heads, groups, width, group]; per token [rows, heads, tokens, groups, group]."""
    if per == CHANNEL:
        return states.unflatten(2, (-1, group)).transpose(-1, -2)
    return states.unflatten(3, (-1, group))


def _ungrouped(groups: Tensor, per: str) -> Tensor:
    return groups.transpose(-1, -2).flatten(2, 3) if per == CHANNEL else groups.flatten(3)
