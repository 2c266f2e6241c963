"""A layer with dropout inside and behind, whole and divided with its tokens. Imported on the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import silu

from helpers.techniques import parallel
from helpers.techniques.parallel import groups

WIDTH, HIDDEN, TOKENS = 6, 12, 8


def layers() -> tuple[nn.Linear, nn.Linear, Tensor]:
    torch.manual_seed(0)
    up, down = nn.Linear(WIDTH, HIDDEN).double(), nn.Linear(HIDDEN, WIDTH).double()
    return up, down, torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)


def alone() -> list[Tensor]:
    """Result, and the gradients of the input and of both weights, of one process; after two calls."""
    up, down, x = layers()
    inside, behind = parallel.SplitDropout(0.3, seed=1), parallel.SplitDropout(0.3, seed=2)
    x.requires_grad_()
    for _ in range(2):
        result = behind(down(inside(silu(up(x)))))
        result.square().sum().backward()
    return [result.detach(), x.grad, up.weight.grad, down.weight.grad]


def together(sequence: bool) -> list[Tensor]:
    """The same on a rank: features divided inside, and tokens around it if asked."""
    group = groups.whole_world()
    up, down, x = layers()
    entry = parallel.gather_tokens if sequence else parallel.copy_to_ranks
    exit = parallel.scatter_tokens if sequence else parallel.sum_over_ranks
    columns, rows = parallel.ColumnParallel(up, group), parallel.RowParallel(down, group, exit=exit)
    inside = parallel.SplitDropout(0.3, group, dim=-1, seed=1)
    behind = parallel.SplitDropout(0.3, group, dim=1 if sequence else None, seed=2)
    if sequence:
        x = x[:, groups.part(TOKENS, group)].clone()
    x.requires_grad_()
    for _ in range(2):
        result = behind(rows(inside(silu(columns(entry(x, group))))))
        result.square().sum().backward()
    return [result.detach(), x.grad, columns.weight.grad, rows.weight.grad]


def by_pytorch(own_seeds: bool) -> Tensor:
    """Where `nn.Dropout` keeps ones that every rank has, seeded as it is on every rank, or by its rank."""
    torch.manual_seed(dist.get_rank() if own_seeds else 0)
    return nn.Dropout(0.5)(torch.ones(TOKENS, 100))
