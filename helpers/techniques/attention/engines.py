"""The field's own kernels on the same call: SDPA's backends, and which of them ran; FlexAttention under our masks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.utils._python_dispatch import TorchDispatchMode

from .masks import BlockSparse, Causal, Mask
from .shapes import checked

TAKES_IT = "takes it"
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_OPERATORS = {  # that is how a kernel shows; what is none of these was put together from products and a softmax
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
}


def which_backend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> str:
    """The backend that `F.scaled_dot_product_attention(q, k, v, **options)` chooses here: it is called, and watched.

    "flash" is the FlashAttention of the device, the CPU's on a CPU; "math" holds the whole matrix.
    """
    with _Operators() as seen:
        sdpa(q, k, v, **options)
    return next((_OPERATORS[name] for name in seen.names if name in _OPERATORS), "math")


def backends(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> dict[str, str]:
    """For each backend "takes it", or PyTorch's own words why not; each is called alone."""
    return {name: _answer(backend, q, k, v, options) for name, backend in BACKENDS.items()}


def _answer(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> str:
    with warnings.catch_warnings(record=True) as caught, sdpa_kernel(backend):
        warnings.simplefilter("always")
        try:
            sdpa(q, k, v, **options)
        except RuntimeError as error:
            said = [str(one.message).partition(" (Triggered internally")[0] for one in caught]
            reasons = [text for text in said if "not used because" not in text and "runtime disabled" not in text]
            return " ".join(reasons) or str(error).partition(". ")[0]
    return TAKES_IT


class _Operators(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        self.names.append(func._overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = Causal(),  # noqa: B008
    scale: float | None = None,
    compiled: bool | None = None,
) -> Tensor:
    """FlexAttention with `mask` as its `mask_mod`: a kernel that PyTorch writes for this mask.

    Compiled where the tensors are on a GPU, unless told otherwise. Uncompiled it holds the whole matrix, and is slow;
    on a CPU compiling needs a C++ compiler and up to minutes, and has no backward.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    sizes = checked(q, k, v, mask, scale)
    lengths = sizes.queries, sizes.keys
    blocks = create_block_mask(mask_mod(mask, *lengths, q.device), None, None, *lengths, device=q.device.type)
    run: Any = _compiled() if (q.is_cuda if compiled is None else compiled) else flex_attention
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return run(q, k, v, block_mask=blocks, scale=sizes.scale, enable_gqa=sizes.group > 1)


def mask_mod(mask: Mask, queries: int, keys: int, device: torch.device) -> Callable[..., Tensor]:
    """`mask` as FlexAttention asks: whether the query of an index sees the key of an index, for a batch and a head."""
    ahead = keys - queries
    if isinstance(mask, BlockSparse):
        table = torch.tensor(mask.blocks, device=device)  # now: the compiler takes a tensor, and does not make one
        return lambda batch, head, query, key: mask.sees(query + ahead, key, table)
    return lambda batch, head, query, key: mask.sees(query + ahead, key)


@cache
def _compiled() -> Callable[..., Any]:
    """One for all calls, so that a shape is compiled once."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
