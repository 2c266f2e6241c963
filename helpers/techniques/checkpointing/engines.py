"""The field's engines by the name of a policy: `torch.utils.checkpoint`, selective or not, and saved-tensor hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .offload import Offload

_aten = torch.ops.aten
MATMULS = frozenset(op.default for op in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm))
# The kernel that scaled_dot_product_attention takes depends on device, dtype, mask and dropout. Its plain formula, and
# eager attention, are made of bmm and softmax: there "selective:attention" keeps nothing.
ATTENTIONS = frozenset(
    op.default
    for op in (
        _aten._scaled_dot_product_flash_attention,
        _aten._scaled_dot_product_flash_attention_for_cpu,
        _aten._scaled_dot_product_efficient_attention,
        _aten._scaled_dot_product_cudnn_attention,
    )
)
KEPT = {"selective": MATMULS | ATTENTIONS, "selective:matmuls": MATMULS, "selective:attention": ATTENTIONS}


def recomputing(how: str) -> Callable[..., Any]:
    """A function (run, *inputs) that runs with only `inputs` kept, or under a selective policy some outputs as well."""
    contexts = {}
    if how in KEPT:
        contexts["context_fn"] = partial(create_selective_checkpoint_contexts, partial(keep, KEPT[how]))
    return partial(checkpoint, use_reentrant=False, **contexts)


def keep(kept: frozenset, context: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    """What PyTorch asks for every operator of a selective region: keep its output, or compute it again."""
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def offloading(offload: Offload, how: str) -> Callable[..., Any]:
    """A function (run, *inputs) whose saved tensors go to the host; of "offload:inputs" only the inputs are saved."""
    again = recomputing("full") if how == "offload:inputs" else None

    def run_offloaded(run: Callable, *inputs: Any) -> Any:
        with offload:
            return again(run, *inputs) if again else run(*inputs)

    return run_offloaded
