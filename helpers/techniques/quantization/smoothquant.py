"""SmoothQuant: move the range that makes activations hard to round into the weights, where there is room for it.

Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
arXiv:2211.10438, equation 4. Every input channel j of a linear layer is divided by

    s_j = max|x_j|^alpha / max|w_j|^(1 - alpha)

and column j of its weight multiplied by it: the layer computes what it did. The division is free, for it is folded into
the norm in front. The result is an ordinary float model, ready for 8-bit weights *and* activations.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError
from .calibration import layer_by_layer

# Each norm and the linear layers that read it. o_proj and down_proj have no norm in front: the paper leaves them.
NORM_PAIRS: dict[str, tuple[str, ...]] = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}


def smooth(model: nn.Module, batches: Sequence[Tensor], alpha: float = 0.5) -> nn.Module:
    """A copy of `model` that computes the same function with calmer activations.

    `batches` are token ids to calibrate on; `alpha` is the share of the difficulty that the weights take over.
    """
    smoothed = copy.deepcopy(model)
    for step in layer_by_layer(smoothed, batches):
        seen = step.observe()
        for norm, names in NORM_PAIRS.items():
            linears = [submodule(step.layer, name) for name in names]
            max_weight = torch.stack([linear.weight.abs().amax(0) for linear in linears]).amax(0)
            scale = smoothing_scale(seen[names[0]].max_abs, max_weight, alpha)
            fold(submodule(step.layer, norm), linears, scale)
    return smoothed


def smoothing_scale(max_input: Tensor, max_weight: Tensor, alpha: float = 0.5) -> Tensor:
    """s [inputs] from the largest |x_j| and the largest |w_j| of each channel, both [inputs].

    With alpha 0.5 both sides end up with the same maximum, the geometric mean: inputs up to 100 on weights up to 1
    become 10 and 10.

    >>> smoothing_scale(torch.tensor([100.0, 4.0]), torch.tensor([1.0, 1.0]))
    tensor([10.,  2.])
    """
    if not 0 <= alpha <= 1:
        expected = "a share from 0 (all in the activations) to 1 (all in the weights)"
        raise WorkbookError(f"alpha is {alpha}", expected, "pass alpha=0.5")
    floor = 1e-5  # a channel that is never fed, or never read
    x, w = max_input.detach().float().clamp(min=floor), max_weight.detach().float().clamp(min=floor)
    return x**alpha / w ** (1 - alpha)


@torch.no_grad()
def fold(producer: nn.Module, consumers: Sequence[nn.Linear], scale: Tensor) -> None:
    """Divide what `producer` puts out by `scale` [channels] and multiply the consumers' columns by it, in place.

    The producer is a norm, or a linear layer whose output reaches the consumers channel by channel.
    """
    weight, generator = cast(Tensor, producer.weight), torch.Generator().manual_seed(0)
    probe = torch.randn(4, weight.shape[-1], generator=generator).to(weight.device, weight.dtype)
    expected = producer(probe).float() / scale
    _multiply(producer, 1 / scale)
    found = producer(probe).float()
    if not torch.allclose(found, expected, rtol=1e-2, atol=1e-4 * float(expected.abs().amax())):
        _multiply(producer, scale)
        what, do = f"{type(producer).__name__} does not scale with its weight", "use a Llama, Mistral or Qwen model"
        raise WorkbookError(what, "a norm that computes weight * x; Gemma's computes (1 + weight) * x", do)
    for linear in consumers:
        linear.weight.mul_(scale)


def submodule(layer: nn.Module, name: str) -> Any:
    """The part of a decoder layer of that name; WorkbookError where the family has none."""
    try:
        return layer.get_submodule(name)
    except AttributeError:
        do = "use a Llama, Mistral or Qwen model"
        raise WorkbookError(f"{type(layer).__name__} has no {name}", "a layer built like Llama's", do) from None


def _multiply(producer: nn.Module, factor: Tensor) -> None:
    for parameter in producer.parameters(recurse=False):  # the weight and, where there is one, the bias
        parameter.mul_(factor.reshape(-1, *[1] * (parameter.dim() - 1)))
