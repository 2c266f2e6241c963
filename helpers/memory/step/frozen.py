"""Bytes of a frozen base as it is loaded, tensor by tensor: in 16 bits, or as bitsandbytes quantizes it. No torch."""

from __future__ import annotations

from collections import Counter

from ...catalog.formats import number_format
from ...catalog.layers import Linear
from ...catalog.train_setup import TrainSetup
from ..breakdown import rounded, tensors_bytes
from .decoders.linears import FP32, StepWidths

DYNAMIC_MAP_BYTES = 4 * 256  # bitsandbytes' levels of an 8-bit scale: one table for all layers
CODE_BYTES, LEVELS_BYTES, OFFSET_BYTES = 16 * 4, 256 * 4, 4  # beside each weight in 4 bits; the last two with "-dq"


def base_bytes(setup: TrainSetup) -> int:
    """Bytes of the frozen base as it is loaded, every tensor rounded up to 512.

    Llama-2-7B: 12.55 GiB in BF16; in NF4 with double quantization, prepared by peft, 3.58 GiB.
    """
    adapter, width = setup.adapter, StepWidths.of(setup).weights
    assert adapter
    total = tensors_bytes(setup.model.tensors(), width)
    if not adapter.base:
        return total
    for layer, count in Counter(setup.model.layers).items():
        for linear in layer.attention.linears + layer.mlp.linears:
            total += count * (four_bit_bytes(linear, adapter.base) - rounded(width * linear.weights))
    return total + (rounded(DYNAMIC_MAP_BYTES) if number_format(adapter.base).superblock_blocks else 0)


def four_bit_bytes(linear: Linear, base: str) -> int:
    """What bitsandbytes keeps of one weight, tensor by tensor: values, scales, and the tables of both."""
    rule = number_format(base)
    blocks = -(-linear.weights // rule.block_values)
    packed = rounded(rule.packed_bytes(linear.weights)) + rounded(CODE_BYTES)
    if not rule.superblock_blocks:
        return packed + rounded(FP32 * blocks)
    superblocks = -(-blocks // rule.superblock_blocks)
    return packed + rounded(blocks) + rounded(FP32 * superblocks) + rounded(LEVELS_BYTES) + rounded(OFFSET_BYTES)
