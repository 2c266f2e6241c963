"""Chapter 03's program that fragments: a KV cache that torch.cat makes one token longer at a time. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def grown_by_cat(
    users: int, heads: int, width: int, layers: int, tokens: Sequence[int], device: str = "cpu"
) -> list[torch.Tensor]:
    """K and V of each layer in BF16, from `tokens[0]` to `tokens[1]`; each token makes new tensors and frees the old.

    Run by `workbook record` on a GPU, and on fake tensors to predict what that reserves.
    """

    def cache(count: int) -> list[torch.Tensor]:
        shape = (users, heads, count, width)
        return [torch.empty(shape, dtype=torch.bfloat16, device=device) for _ in range(2 * layers)]

    start, end = tokens
    kept = cache(start)
    for _ in range(start, end):
        for at, new in enumerate(cache(1)):
            kept[at] = torch.cat([kept[at], new], dim=2)
    return kept
