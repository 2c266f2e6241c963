"""AWQ: a weight matters as much as the activations that it meets, so give the salient channels a finer grid.

Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", arXiv:2306.00978.
Keeping the 1 % of channels with the largest inputs in FP16 would repair most of the damage, but a mixed matrix is slow.
Multiplying those columns by s_j > 1 before rounding, and dividing their inputs by it, does nearly as well: their
rounding error shrinks by s_j while the group's step hardly grows. s = (mean |x_j|)^alpha, with the alpha in [0, 1] that

    L(s) = E‖ (Q(W diag(s)) diag(s)⁻¹ - W) x ‖²                                            (equation 4)

asks for. The division is folded into what comes before. Then each group's range is clipped where that helps. (The
authors' code compares what attention and MLP put out as a whole; here it is each linear layer, as in the equation.)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError
from .calibration import CalibrationStep, InputStatistics, layer_by_layer, output_error, require_hessian
from .grids import TENSOR, Grid, require_finite
from .linears import dense_linears
from .smoothquant import NORM_PAIRS, fold, submodule

STEPS = 20  # of alpha from 0 to 1, and of the clipping range: the paper's
UNCLIPPED = ("self_attn.q_proj", "self_attn.k_proj")  # their errors multiply in the scores; the authors leave them


def awq(model: nn.Module, batches: Sequence[Tensor], grid: Grid, *, clip: bool = True) -> nn.Module:
    """A copy of `model` in floating point that survives rounding on `grid` better.

    It computes the same function but for the clipping. Round it to nearest, or store it, as any other model.
    `batches` are token ids to calibrate on; as in the paper's code every layer sees the float model's inputs.
    """
    prepared = copy.deepcopy(model)
    for step in layer_by_layer(prepared, batches, follow=False):
        seen = step.observe()
        hessians = {name: layer.hessian for name, layer in seen.items()}
        for producer, names in _pairs(step):
            linears = [submodule(step.layer, name) for name in names]
            weights = [linear.weight.detach() for linear in linears]
            scale = search_scale(weights, seen[names[0]], grid)
            fold(submodule(step.layer, producer), linears, scale)
            for name in names:
                hessians[name] /= scale[:, None] * scale
        if clip:
            for name, linear in dense_linears(step.layer).items():
                if name not in UNCLIPPED:
                    linear.weight.data = clip_weight(linear.weight.detach(), hessians[name], grid)
    return prepared


def search_scale(weights: Sequence[Tensor], seen: InputStatistics, grid: Grid) -> Tensor:
    """The s [inputs] with the least L(s), summed over linear layers [rows, inputs] that read the same input."""
    hessian = seen.hessian
    for weight in weights:
        require_hessian(hessian, require_finite(weight).shape[-1])
    best, least = torch.ones_like(seen.mean_abs), float("inf")
    for step in range(STEPS + 1):
        scale = salience_scale(seen.mean_abs, alpha=step / STEPS)
        deltas = [grid.round(weight * scale) / scale - weight for weight in weights]
        loss = sum(output_error(delta.float(), hessian) for delta in deltas)
        if loss < least:
            best, least = scale, loss
    return best


def salience_scale(mean_abs: Tensor, alpha: float) -> Tensor:
    """(mean |x_j|)^alpha, divided by a constant so that the largest and the smallest have a product of 1.

    >>> salience_scale(torch.tensor([1.0, 16.0]), alpha=0.5)
    tensor([0.5000, 2.0000])
    """
    scale = mean_abs.pow(alpha).clamp(min=1e-4)
    return scale / (scale.amax() * scale.amin()).sqrt()


def clip_weight(weight: Tensor, hessian: Tensor, grid: Grid, most: float = 0.5) -> Tensor:
    """`weight` with each group clamped to the range, from all of it down to `most` of it, that rounds best.

    A narrower range has a finer step and cuts off the extremes. Best is judged group by group on E[(Δw·x)²], the
    group's own part of the output, for which the diagonal blocks of `hessian` are enough. It never widens a range.
    """
    if grid.group == TENSOR:
        do = "pass clip=False, or Grid(bits, group=64)"
        raise WorkbookError("clipping with one scale for the whole tensor", "a grid with groups, or group='row'", do)
    require_hessian(hessian, require_finite(weight).shape[-1])
    groups = grid.blocks(weight).float()
    size = groups.shape[-1]
    local = torch.stack([hessian[at : at + size, at : at + size] for at in range(0, weight.shape[1], size)])
    widest = groups.abs().amax(-1, keepdim=True)
    best, least = groups, torch.full_like(groups[..., 0], float("inf"))
    for step in range(int(most * STEPS)):
        limit = widest * (1 - step / STEPS)
        clipped = groups.clamp(-limit, limit)
        delta = grid.blocks(grid.round(clipped.reshape(weight.shape))) - groups
        loss = (torch.einsum("rgi,gij->rgj", delta, local) * delta).sum(-1)
        best = torch.where((loss < least)[..., None], clipped, best)
        least = torch.minimum(loss, least)
    return best.reshape(weight.shape).to(weight.dtype)


def _pairs(step: CalibrationStep) -> list[tuple[str, tuple[str, ...]]]:
    """What can take over a scale, and the linear layers that read it."""
    pairs = [*NORM_PAIRS.items(), ("mlp.up_proj", ("mlp.down_proj",))]
    value, output = (submodule(step.layer, f"self_attn.{name}") for name in ("v_proj", "o_proj"))
    if value.out_features == output.in_features:  # grouped KV heads feed several channels each: left unscaled
        pairs.append(("self_attn.v_proj", ("self_attn.o_proj",)))
    return pairs
