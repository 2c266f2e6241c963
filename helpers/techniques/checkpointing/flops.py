"""FLOPs counted, not assumed: every operator of a real step, in forward, in backward, and those that run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry

_aten = torch.ops.aten


def flops_of(step: Callable[[], object]) -> int:
    """FLOPs of the matrix products, convolutions and attention kernels of `step()`. Pointwise operators count nothing.

    >>> layer = torch.nn.Linear(10, 20, bias=False)
    >>> flops_of(lambda: layer(torch.ones(5, 10)))
    2000
    """
    with flop_counter() as counter:
        step()
    return counter.get_total_flops()


def flop_counter() -> FlopCounterMode:
    """PyTorch's counter, which also knows the attention kernel of CPUs: without it attention costs nothing there."""
    sdpa = "_scaled_dot_product_{}_attention{}"
    mapping = {}
    for end in ("", "_backward"):
        for kernel in ("flash", "efficient", "cudnn"):
            name = sdpa.format(kernel, end)
            mapping[getattr(_aten, name)] = _with_heads_of_the_query(flop_registry[getattr(_aten, name)], bool(end))
        for_cpu = sdpa.format("flash", f"_for_cpu{end}")
        mapping[getattr(_aten, for_cpu)] = mapping[getattr(_aten, sdpa.format("flash", end))]
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _with_heads_of_the_query(formula: Callable, backward: bool) -> Callable:
    """`formula` for grouped queries too, which PyTorch 2.11 refuses: their kernels compute as if each had keys.

    The arguments are (query, key, value, ...), behind the gradient of the output in `backward`.
    """

    def count(*given: Any, **kwargs: Any) -> int:
        args = list(given)
        query = args[backward]
        for at in (1 + backward, 2 + backward):
            args[at] = args[at][:, :1].expand(-1, query.shape[1], -1, -1)
        return formula(*args, **kwargs)

    vars(count)["_get_raw"] = True  # the registered formula takes tensors; the counter would turn them into shapes
    return count
