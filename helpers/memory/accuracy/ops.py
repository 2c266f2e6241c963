"""Small programs, run on GPUs by others or by `workbook record`, and on fake tensors here. Imports torch.

Single operators are as Liger-Kernel's scripts ran their PyTorch references: benchmark/scripts/benchmark_*.py.

Each builder makes what the script makes, in its order, and returns the function whose peak it measured. What else the
script keeps alive counts: its modules of both kinds, and the cuBLAS workspaces of the speed benchmark before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from .. import trace
from .cases import Case

Run = Callable[[], object]
FULL, FORWARD, BACKWARD = "full", "forward", "backward"


def predict(case: Case) -> dict[str, int]:
    """The peak of allocated bytes that the script would print, times 2**20."""
    setup = SimpleNamespace(**case.setup)
    with trace.fake(gpu=case.device):
        if setup.op in MLPS:  # the speed benchmark ran first, in the same process
            trace.record(BUILDERS[setup.op](SimpleNamespace(**{**case.setup, "mode": FULL})))
        run = BUILDERS[setup.op](setup)
        return {"peak allocated": trace.record(run, warmup=2).peak_allocated_bytes}


def _cross_entropy(setup: SimpleNamespace) -> Run:
    logits = torch.randn(setup.batch * setup.tokens, setup.vocab, requires_grad=True)
    target = torch.randint(setup.vocab, (setup.batch * setup.tokens, 1)).squeeze(1)
    return lambda: functional.cross_entropy(logits, target).backward()


def _linear_cross_entropy(setup: SimpleNamespace) -> Run:
    """The script builds the reference's head and Liger's, each with a weight of its own, whichever is measured."""
    dtype = getattr(torch, setup.dtype)
    head, other_head = (nn.Linear(setup.width, setup.vocab, bias=False, dtype=dtype) for _ in range(2))
    hidden = torch.randn(setup.rows, setup.width, dtype=dtype, requires_grad=True)
    target = torch.randint(setup.vocab, (setup.rows, 1)).squeeze(1)
    return _keeping(other_head, lambda: functional.cross_entropy(head(hidden), target).backward())


def _kl_div(setup: SimpleNamespace) -> Run:
    rows = setup.batch * setup.tokens
    log_probabilities = torch.randn(rows, setup.vocab, requires_grad=True).log_softmax(dim=-1)
    target = torch.randn(rows, setup.vocab).softmax(dim=-1)
    loss = nn.KLDivLoss(reduction="batchmean")
    return lambda: loss(log_probabilities, target).backward(retain_graph=True)


def _mlp(setup: SimpleNamespace) -> Run:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(hidden_size=setup.width, intermediate_size=setup.inner, hidden_act=setup.activation)
    dtype = getattr(torch, setup.dtype)
    x = torch.randn(setup.batch, setup.tokens, setup.width, dtype=dtype, requires_grad=True)
    layer = LlamaMLP(config).to(dtype)
    if setup.mode == FORWARD:
        return lambda: layer(x)
    if setup.mode == BACKWARD:
        gradient, y = torch.randn_like(x), layer(x)
        return lambda: y.backward(gradient, retain_graph=True)

    def full() -> None:
        y = layer(x)
        y.backward(torch.randn_like(y), retain_graph=True)

    return full


def _layer_norm(setup: SimpleNamespace) -> Run:
    return _norm(setup, nn.LayerNorm)


def _rms_norm(setup: SimpleNamespace) -> Run:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return _norm(setup, LlamaRMSNorm)


def _norm(setup: SimpleNamespace, kind: Callable[[int], nn.Module]) -> Run:
    """A layer of `kind`, beside Liger's, which the script builds too."""
    layer, other_layer = kind(setup.width), kind(setup.width)
    x = torch.randn(setup.rows, setup.width, dtype=getattr(torch, setup.dtype))
    gradient = torch.randn_like(x)
    x.requires_grad_(True)
    return _keeping(other_layer, lambda: layer(x).backward(gradient, retain_graph=True))


def _torch_rms_norm(setup: SimpleNamespace) -> Run:
    """`nn.RMSNorm` in `dtype`, as Megatron-LM wraps it."""
    layer = nn.RMSNorm(setup.width, eps=1e-6).to(getattr(torch, setup.dtype))
    x = torch.randn(setup.rows, 1, setup.width, dtype=getattr(torch, setup.dtype), requires_grad=True)

    def full() -> None:
        y = layer(x)
        y.sum().backward()

    return full


def _sparsemax(setup: SimpleNamespace) -> Run:
    x = torch.randn(setup.rows, setup.width)
    gradient = torch.randn_like(x)
    x.requires_grad_(True)

    def full() -> None:
        y = sparsemax(x)
        y.backward(gradient, retain_graph=True)

    return full


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    """Each row's projection onto the simplex (Martins and Astudillo, 2016), with as many tensors alive as there."""
    ranked, _ = torch.sort(x, dim=-1, descending=True)
    sums, ranks = torch.cumsum(ranked, dim=-1), torch.arange(1, x.shape[-1] + 1, dtype=x.dtype).view(1, -1)
    bounds = 1 + ranks * ranked
    support = bounds > sums
    count = support.sum(dim=-1, keepdim=True).clamp(min=1)
    supported = (ranked * support).sum(dim=-1, keepdim=True)
    threshold = (supported - 1) / count
    return torch.clamp(x - threshold, min=0)


def _keeping(module: nn.Module, run: Run) -> Run:
    """`run`, with a module that it does not use kept alive as long."""

    def keeping(_kept: nn.Module = module) -> object:
        return run()

    return keeping


MLPS = ("geglu", "swiglu", "tiled_swiglu")
BUILDERS: Mapping[str, Callable[[SimpleNamespace], Run]] = {
    "cross_entropy": _cross_entropy,
    "fused_linear_cross_entropy": _linear_cross_entropy,
    "kl_div": _kl_div,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "sparsemax": _sparsemax,
    "torch_rms_norm": _torch_rms_norm,
    **dict.fromkeys(MLPS, _mlp),
}


def grown_by_cat(
    users: int, heads: int, width: int, layers: int, tokens: Sequence[int], device: str = "cpu"
) -> list[torch.Tensor]:
    """Chapter 03's program that fragments, a KV cache that torch.cat makes one token longer at a time.

    K and V of each layer in BF16, from `tokens[0]` to `tokens[1]`; each token makes new tensors and frees the old.

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
