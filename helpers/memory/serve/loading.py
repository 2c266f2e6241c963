"""What loading a model leaves on a GPU beyond its tensors, and the most that it takes on the way: Transformers' way.

Tensors come in the order of the modules, each a block of PyTorch's caching allocator. What is left of a block, up to
1 MiB, is not split off, and counts as allocated: so the answer is the allocator's, asked tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from ...catalog.formats import NumberFormat, number_format
from ...catalog.layers import Linear, LinearGroup
from ...catalog.serve_setup import ServeSetup
from ...catalog.shipped import fp8_block
from ..breakdown import rounded
from .weights import KEPT, is_quantized, scale_bytes, weight_bytes

SMALL_BYTES = 2**20  # up to this, a tensor comes from the small pool, where every rest is split off
STORES_TIED_HEAD = "awq-int4"  # AutoAWQ's checkpoints have the head beside the table; Qwen3's in FP8 blocks do, too


def ends_bytes(setup: ServeSetup) -> int:
    """What blocks of the weights have beyond their tensors once the model is loaded.

    Qwen2.5-7B: 43 MiB in BF16, 53 in GPTQ-Int4, whose 4-bit codes, zeros and scales are tensors of their own. Releases
    that first take one block for all weights (caching_allocator_warmup in modeling_utils.py, read at 5.23) leave less.
    """
    return _ends(tuple(size for size in _tensors(setup) if size > SMALL_BYTES))


@cache
def _ends(sizes: tuple[int, ...]) -> int:
    from ..allocator import Allocator  # above the closed form, whose only question to it this is

    allocator = Allocator()
    for size in sizes:
        allocator.alloc(size)
    return allocator.allocated_bytes - sum(map(rounded, sizes))


def loading_bytes(setup: ServeSetup) -> int:
    """The most that loading takes: the weights, and once more a tied head that the checkpoint has too.

    `tie_weights` in Transformers 5.23 (modeling_utils.py) frees it when all is loaded, if it is equal to the table; so
    did those before. Qwen2.5-0.5B in AWQ: 0.43 GiB and 0.25 for the head, more than 2,048 tokens take afterwards.
    """
    again = tied_head_again(setup)
    return weight_bytes(setup) + ends_bytes(setup) + sum(again) + _ends(again)


def tied_head_again(setup: ServeSetup) -> tuple[int, ...]:
    """Bytes of the second copy of a tied head while the model is loaded, where there is one."""
    model = setup.model
    stored = setup.weights == STORES_TIED_HEAD or (setup.weights.startswith("fp8") and fp8_block(model))
    if not (model.tied and stored):
        return ()
    return (rounded(number_format(KEPT).storage_bytes(model.vocab * model.embedding_width)),)


def _tensors(setup: ServeSetup) -> Iterator[int]:
    """Bytes of each larger tensor, in the order in which modules are given their memory; stacked experts in one."""
    model = setup.model
    plain = number_format(KEPT if number_format(setup.weights).linears_only else setup.weights)
    yield plain.storage_bytes(model.vocab * model.embedding_width)
    for layer in model.layers:
        for group in layer.linears():
            yield from _of_linear(setup, group, plain)
    if not model.tied:
        head = Linear("lm_head", model.embedding_width, model.vocab)
        yield from _of_linear(setup, LinearGroup("lm_head", head, 1), plain)


def _of_linear(setup: ServeSetup, group: LinearGroup, plain: NumberFormat) -> Iterator[int]:
    rule = number_format(setup.weights) if is_quantized(setup, group) else plain
    linear, count = group.linear, group.count if group.part == "experts" else 1
    values, rows = count * linear.weights, count * linear.outputs
    for _ in range(group.count // count):
        yield rule.packed_bytes(values)
        if rule.row_blocks and rule.scale_bits > 16:  # zeros, and scales of 16 bits
            blocks = rows * -(-linear.inputs // rule.block_values)
            yield -(-blocks * (rule.scale_bits - 16) // 8)
            yield 2 * blocks
        else:
            yield count * scale_bytes(setup, rule, linear)
