"""What shapes attention takes, and how query heads that share keys are laid side by side. Validation stands here alone.

Shapes: batch, heads, queries, head_dim; keys and values have `kv_heads`, which divide `heads`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_number, require_whole
from .masks import Mask

DO = "pass q as (batch, heads, queries, head_dim), k and v as (batch, kv_heads, keys, head_dim)"


class Shapes(NamedTuple):
    """The sizes of one call, the factor on its scores, and the format in which it adds up."""

    kv_heads: int
    group: int  # query heads that share a head of keys
    queries: int
    keys: int
    scale: float
    sums: torch.dtype  # FP32 for 16-bit inputs, as every kernel does


def checked(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None) -> Shapes:
    """The sizes of a call; WorkbookError if the tensors do not fit together, or the mask does not fit them."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if {q.dim(), k.dim(), v.dim()} != {4} or k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise WorkbookError(shapes, "four dimensions each, of one batch; k and v of the same heads and keys", DO)
    if q.shape[3] != k.shape[3] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise WorkbookError(shapes, "q and k of one head_dim, and kv_heads that divide heads", DO)
    if len({q.dtype, k.dtype, v.dtype}) > 1 or not q.is_floating_point():
        raise WorkbookError(f"q {q.dtype}, k {k.dtype}, v {v.dtype}", "one floating-point format", "cast with q.to(…)")
    mask.check(k.shape[2])
    if scale is not None:
        require_number("scale", scale, expected="a number above 0", do="leave it out: head_dim ** -0.5")
    sums = q.dtype if q.dtype == torch.float64 else torch.float32
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return Shapes(k.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], scale, sums)


def sides(tile: int | tuple[int, int]) -> tuple[int, int]:
    """Queries and keys of a tile, from one number or from two."""
    both = tile if isinstance(tile, tuple) else (tile, tile)
    if len(both) != 2:
        raise WorkbookError(f"tile is {tile!r}", "one number, or two", "pass tile=128, or tile=(queries, keys)")
    tile_q, tile_k = both
    return require_whole("tile, its queries,", tile_q), require_whole("tile, its keys,", tile_k)


def positions(queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions of all queries, the last of which is the last key's, and of all keys."""
    return torch.arange(keys - queries, keys, device=device), torch.arange(keys, device=device)
