"""DTensors without memory: a rank's part is a fake tensor, and the DTensor around it stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..meter.meter import local


def on_parts(fn: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`fn` for plain tensors and for the parts of DTensors: the new part is distributed as the old one was."""

    def of_part(tensor: torch.Tensor) -> torch.Tensor:
        part = local(tensor)
        new = fn(part)
        return new if part is tensor else tensor if new is part else _distributed_as(tensor, new)

    return of_part


def _distributed_as(tensor: Any, part: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor  # here, for it takes half a second, and few traces have one
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    whole = TensorMeta(tensor.shape, tensor.stride(), part.dtype)
    spec = DTensorSpec(tensor._spec.mesh, tensor._spec.placements, tensor_meta=whole)
    new = DTensor(part, spec, requires_grad=False)
    return nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
