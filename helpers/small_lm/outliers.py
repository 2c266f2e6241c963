"""Activation outliers, planted: the small model has none, models of billions of parameters do."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING

from ..catalog.errors import WorkbookError, require_number

if TYPE_CHECKING:
    from torch import nn
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRMSNorm


def plant(
    model: LlamaForCausalLM, channels: int | Sequence[int] = 2, factor: float = 100.0, seed: int = 0
) -> LlamaForCausalLM:
    """A copy of a Llama-shaped `model` with planted outlier channels, which computes the same function.

    In each layer, what the two RMSNorms write to the chosen channels becomes `factor` times larger, and the columns of
    the linears that read them as much smaller: the products are the same, so are the logits (to within rounding), but
    an activation quantizer now meets channels that are `factor` times larger than their neighbours. They are put there
    by hand: they have the shape of what LLM.int8() (section 3) found in trained models from 6.7 billion parameters up,
    the same few channels in every layer, not their cause. `channels` is their number, drawn by `seed`, or a list.

    WorkbookError for a model without Llama's layers, a channel it has not, or a factor that is not positive.
    """
    import torch

    chosen = _checked(model, channels, factor, seed)
    planted = copy.deepcopy(model)
    with torch.no_grad():
        for norm, readers in _norms_and_readers(planted):
            norm.weight[chosen] *= factor
            for linear in readers:
                linear.weight[:, chosen] /= factor
    return planted


def _norms_and_readers(model: LlamaForCausalLM) -> Iterator[tuple[LlamaRMSNorm, tuple[nn.Linear, ...]]]:
    """Each RMSNorm of the layers with all linears that read its output; nothing else reads it."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        yield layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)
        yield layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)


def _checked(model: LlamaForCausalLM, channels: int | Sequence[int], factor: float, seed: int) -> list[int]:
    """The channel numbers, once everything else is known to be in order."""
    from torch import nn

    try:
        readers = [linear for _, linears in _norms_and_readers(model) for linear in linears]
    except AttributeError:
        readers = []
    if not readers or not all(type(linear) is nn.Linear for linear in readers):
        what, do = f"outliers in a {type(model).__name__}", "plant them before quantizing: plant(load().model)"
        raise WorkbookError(what, "a Llama-shaped model of plain linear layers", do)
    require_number("factor", factor, below=math.inf, expected="a positive number", do="pass factor=100")
    return _numbers(channels, readers[0].in_features, seed)


def _numbers(channels: int | Sequence[int], width: int, seed: int) -> list[int]:
    """The listed channels, or that many drawn by `seed`."""
    count = channels if isinstance(channels, int) and not isinstance(channels, bool) else None
    if count is not None and 1 <= count <= width:
        numbers, random = list(range(width)), Random(seed)
        return sorted(numbers.pop(random.randrange(len(numbers))) for _ in range(count))
    listed = list(channels) if isinstance(channels, (list, tuple, range)) else []
    if not listed or len(set(listed)) < len(listed) or not set(listed) <= set(range(width)):
        expected = f"how many of the {width}, or a list of numbers below {width}"
        raise WorkbookError(f"channels is {channels!r}", expected, "pass channels=2")
    return sorted(listed)
