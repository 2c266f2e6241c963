"""What sorting and the embedding's backward take on CUDA while they run, from the sources of PyTorch 2.13.

Both leave the work to CUB, whose temporary storage comes out of PyTorch's allocator as well (ATen/cuda/cub.cuh).
"""

from __future__ import annotations

import torch

from ...catalog.embedding_gradient import held_while_summing
from ...catalog.fused_attention import Held

IN_PLACE = 4096  # the longest row that sorts in place: should_use_small_sort in ATen/native/cuda/Sort.h
ALONE = 1_000_000  # from this length on, or with one row, rows are sorted one by one
SEGMENTED = 128  # from so many rows on, CUB sorts each as a segment
INDEX = 8  # bytes of the indices that a sort returns
ALIGNMENT = 255  # that CUB asks for, so that its parts can begin at multiples of 256


def sort(
    _: object, x: torch.Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None, **__: object
) -> Held:
    """Rows longer than 4,096: indices to sort along, and CUB's second copy of keys and indices.

    `sort_cuda_kernel` in Sort.cpp and the three ways of SortStable.cu, whose conditions are above; CUB's copies in
    dispatch_radix_sort.cuh (its tables of counts, 0.2 bytes a value, are left out). 2,048 rows of 8,192 in FP32: 8
    bytes of indices for each value, and 4 + 8 of copies, as Liger's rows of sparsemax on an RTX 3090 have it.
    """
    if not x.dim() or x.shape[dim] <= IN_PLACE:
        return []
    width, values, row = x.element_size(), x.numel(), x.shape[dim]
    along = x.stride(dim) == 1
    copies: tuple[int, ...] = () if along and x.is_contiguous() else (width * values,)
    if not along:  # then the results are made beside it, and moved
        copies += (width * values, INDEX * values)
    if values == row or row >= ALONE:
        return [(*copies, INDEX * row, (width + INDEX) * row + ALIGNMENT)]
    if values // row < SEGMENTED:  # pairs of row and index, twice, sorted by value; then by row
        pairs = (INDEX * values, INDEX * values)
        return [(*copies, *pairs, width * values, (width + INDEX) * values + ALIGNMENT)]
    return [(*copies, INDEX * values, (width + INDEX) * values + ALIGNMENT)]


def embedding_backward(_: object, gradient: torch.Tensor, indices: torch.Tensor, rows: int, *__: object, **___) -> Held:
    """What `embedding_gradient` says, and a copy of a gradient that is strided."""
    copies = () if gradient.is_contiguous() else (gradient.numel() * gradient.element_size(),)
    width, size = gradient.shape[-1], gradient.element_size()
    return [(*copies, *held_while_summing(indices.numel(), rows, width, size, indices.element_size()))]
