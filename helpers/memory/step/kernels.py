"""Which kernels a card runs in a step, what its libraries hold beside them, and what it has no kernel for. No torch."""

from __future__ import annotations

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.hardware import AttentionKernel, cuda_of, library_bytes, require_float8_kernels
from ...catalog.layers import Attention
from ...catalog.train_setup import TrainSetup
from .decoders.attending import FORMULA, FUSED, call_of


def kernel_of(setup: TrainSetup, card: Device | None, attention: Attention) -> str:
    """What SDPA runs for one layer on `card`, or on a CPU where that is None: FUSED or FORMULA."""
    cuda = cuda_of(card) if card else None
    if setup.attention != "sdpa" or (card and cuda is None):
        return FUSED
    if cuda is None:  # a CPU, whose kernel wants equal widths
        return FUSED if attention.value_width == attention.head_dim else FORMULA
    kernel = cuda.attention_kernel(call_of(setup, attention, attention.kv_heads))
    return FORMULA if kernel is AttentionKernel.FORMULA else FUSED


def has_fused_attention(setup: TrainSetup, card: Device | None) -> bool:
    """Whether SDPA takes a fused kernel for every layer. The plain formula keeps scores of T x T instead."""
    return all(kernel_of(setup, card, layer.attention) == FUSED for layer in set(setup.model.layers))


def require_kernels(setup: TrainSetup, card: Device | None) -> None:
    """Refuse what a CUDA card has no kernel for: products in FP8; and attention whose scores have no rows here."""
    if card is None or cuda_of(card) is None:
        return
    require_float8_kernels(setup, card)
    if not setup.adapter and not has_fused_attention(setup, card):
        number_format, layer = setup.attention_format.upper(), setup.model.layers[0]
        grouped = " with grouped heads" if layer.attention.kv_heads != layer.attention.heads else ""
        raise WorkbookError(
            f"{setup.model.name}{grouped} in {number_format}: SDPA on the {card.title} falls back to the plain formula",
            "a recipe and a GPU that have a fused kernel, or attention='eager'",
            "choose another precision, or trace it: helpers.memory.trace.train, `workbook trace train`",
        )


def workspace_bytes(setup: TrainSetup, card: Device | None) -> int:
    """What cuBLAS and cuBLASLt hold on `card`; 0 on a CPU, and where there is no CUDA.

    cuBLASLt is used by both threads in FP8; with a bias by the forward's, and by autograd's when it recomputes.
    """
    layer = setup.model.layers[0]
    biased = any(linear.bias for linear in layer.attention.linears + layer.mlp.linears)
    runs_products_again = setup.checkpointing not in ("none", "offload", "selective", "selective:matmuls")
    threads = 2 if setup.precision_recipe.linear_format else biased * (1 + runs_products_again)
    return library_bytes(card, threads)
