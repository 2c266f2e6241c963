"""GPTQ: round a weight column by column and let the columns that are still free make up for each error.

Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
arXiv:2210.17323, algorithm 1. Column q of W [rows, columns] is rounded; with U the upper Cholesky factor of H⁻¹,

    e = (w_q - Q(w_q)) / U_qq          the error, in units of what one step of column q costs
    W[:, q+1:] -= e · U[q, q+1:]       spread over the columns not yet rounded

which keeps tr(ΔW H ΔWᵀ), the squared error of the layer's output, low. The true Hessian of that error loses row and
column q when q is fixed; the rows of U are those shrinking inverses, found once and for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError
from .calibration import layer_by_layer, require_hessian
from .grids import TENSOR, Grid, GridScales
from .linears import QuantizedLinear, swapped
from .packing import QuantizedTensor


def gptq(
    weight: Tensor, hessian: Tensor, grid: Grid, act_order: bool = False, damping: float = 0.01, block: int = 128
) -> tuple[Tensor, GridScales]:
    """Codes [rows, columns] and scales, to be stored like any other weight on `grid`.

    `hessian` [columns, columns] is E[x xᵀ] of the layer's inputs. `damping` times its mean diagonal is added to the
    diagonal. A group's scales are found when its first column is reached, from the weight as it then is.
    `act_order` rounds the columns with the largest H_jj first, while all others are free to make up. Its groups are
    static: columns keep their place in storage and scales come from the original weight, so that nothing is stored
    beside codes and scales. (Permuted groups would need an index per column, and a gather at each use.)

    The third weight goes up because the second, which always comes with it, went down:

    >>> weight, together = torch.tensor([[3.0, 0.4, 0.4]]), torch.tensor([[1, 0, 0], [0, 1, 0.9], [0, 0.9, 1]])
    >>> grid = Grid(bits=3, group="row", symmetric=True)
    >>> grid.values(*gptq(weight, together, grid))
    tensor([[3., 0., 1.]])
    """
    weight, hessian = _checked(weight, hessian, grid, damping, block)
    rows, columns = weight.shape
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1.0
    weight[:, dead] = 0.0  # never fed by the calibration text: it would only widen its group
    order = hessian.diagonal().argsort(descending=True) if act_order else torch.arange(columns, device=weight.device)
    upper = inverse_factor(hessian[order][:, order], damping)

    size = grid.group_size(rows, columns)
    scales = grid.scales(weight)
    refresh = not act_order and grid.group != TENSOR
    if refresh and size < columns:
        block = size * max(1, block // size)  # a group across two blocks would be scaled by half-updated columns
    weight, codes = weight[:, order], torch.empty_like(weight, dtype=torch.uint8)
    for start in range(0, columns, block):
        stop = min(start + block, columns)
        errors = weight.new_zeros(rows, stop - start)
        for column in range(start, stop):
            free, factor = weight[:, column:stop], upper[column, column:stop]
            here = scales[int(order[column]) // size]
            if refresh and column % size == 0:
                found = grid.scales(weight[:, column : column + size])
                here.scale.copy_(found.scale)
                here.zero.copy_(found.zero)
            codes[:, order[column]], errors[:, column - start] = _round_column(free, factor, grid, here)
        weight[:, stop:] -= errors @ upper[start:stop, stop:]  # lazily: one large product per block
    return codes, scales


def _round_column(free: Tensor, factor: Tensor, grid: Grid, scales: GridScales) -> tuple[Tensor, Tensor]:
    """Round the first of the `free` columns and update the rest in place. Returns its codes and its error."""
    code = grid.encode(free[:, :1], scales)
    error = (free[:, :1] - grid.decode(code, scales)) / factor[0]
    free -= error * factor
    return code[:, 0], error[:, 0]


def inverse_factor(hessian: Tensor, damping: float) -> Tensor:
    """Upper triangular U with UᵀU = (H + λI)⁻¹, λ = damping x mean of H's diagonal."""
    damped = hessian + torch.diag(damping * hessian.diagonal().mean().expand(len(hessian)))
    lower, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        do = f"pass damping={max(10 * damping, 0.01):g}, or calibrate on more tokens"
        raise WorkbookError("a Hessian that is not positive definite", "damping that outweighs rounding in it", do)
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)


def gptq_model(
    model: nn.Module, batches: Sequence[Tensor], grid: Grid, *, act_order: bool = False, damping: float = 0.01
) -> nn.Module:
    """A second model whose decoder layers hold packed `QuantizedLinear`s, quantized one decoder layer at a time.

    `batches` are token ids to calibrate on. The rest is shared with `model`, which stays as it is.
    """
    quantized = swapped(model, {})
    for step in layer_by_layer(quantized, batches):
        for name, seen in step.observe().items():
            linear = cast(nn.Linear, step.layer.get_submodule(name))
            codes, scales = gptq(linear.weight, seen.hessian, grid, act_order, damping)
            stored = QuantizedTensor.from_codes(codes, scales, grid, linear.weight.dtype)
            step.layer.set_submodule(name, QuantizedLinear(stored, linear.bias))
    return quantized


def _checked(weight: Tensor, hessian: Tensor, grid: Grid, damping: float, block: int) -> tuple[Tensor, Tensor]:
    """FP32 copies to work on."""
    if damping < 0 or block < 1:
        expected = "damping from 0 up, at least one column in a block"
        raise WorkbookError(f"damping={damping}, block={block}", expected, "pass damping=0.01, block=128")
    grid.blocks(weight)  # refuses a shape that the grid cannot hold; grid.scales will refuse NaN
    require_hessian(hessian, weight.shape[1])
    return weight.detach().to(torch.float32, copy=True), hessian.detach().to(weight.device, torch.float32, copy=True)
