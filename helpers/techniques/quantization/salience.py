"""AWQ's ablation: which channels are worth keeping in FP16? And a layer made up for it, with outlier channels."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_name
from .calibration import InputStatistics, output_error
from .grids import Grid

CHOICES = ("none", "random", "weights", "salience")


def kept_channels(by: str, weight: Tensor, mean_abs: Tensor, share: float = 0.01, seed: int = 0) -> Tensor:
    """Indices of the input channels to keep: the largest mean |x_j|, the largest ‖w_j‖, random ones, or none."""
    require_name("choice", by, CHOICES)
    if not 0 < share <= 1:
        raise WorkbookError(f"share is {share}", "a share of the channels, above 0 and up to 1", "pass share=0.01")
    columns = weight.shape[1]
    count = 0 if by == "none" else max(1, round(share * columns))
    if by == "random":
        return torch.tensor(Random(seed).sample(range(columns), count))
    return (weight.norm(dim=0) if by == "weights" else mean_abs).topk(count).indices


def round_keeping(weight: Tensor, grid: Grid, kept: Tensor) -> Tensor:
    """`weight` rounded on `grid`, but for the `kept` input channels, which stay as they are."""
    result = grid.round(weight)
    result[:, kept] = weight[:, kept]
    return result


def ablation(weight: Tensor, seen: InputStatistics, grid: Grid, share: float = 0.01, seed: int = 0) -> dict[str, float]:
    """Relative squared error of the layer's output, by which channels are kept: {"none": 0.01, "random": ...}."""
    whole = output_error(weight, seen.hessian)
    kept = {by: kept_channels(by, weight, seen.mean_abs, share, seed) for by in CHOICES}
    return {
        by: output_error(round_keeping(weight, grid, channels) - weight, seen.hessian) / whole
        for by, channels in kept.items()
    }


def heavy_tailed_layer(
    rows: int = 256, columns: int = 1024, tokens: int = 1024, seed: int = 0
) -> tuple[Tensor, InputStatistics]:
    """A made-up weight and its inputs, both with log-normal channel sizes that know nothing of each other.

    In large language models a few channels of the residual stream are 20 to 100 times the others. Here ln of an input
    channel's size has a standard deviation of 1.5, so the top 1 % of channels carry most of the inputs' energy (0.58
    to 0.93 of it with the first four seeds); for the weights it is 0.5. Made for the ablation, not taken from a model.
    """
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(columns, generator=generator)
    weight_size = torch.randn(columns, generator=generator)
    weight = torch.randn(rows, columns, generator=generator) * (0.5 * weight_size).exp() / columns**0.5
    seen = InputStatistics(columns)
    seen.add(torch.randn(tokens, columns, generator=generator) * (1.5 * size).exp())
    return weight, seen
