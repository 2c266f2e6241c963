"""Fused losses without their kernels: autograd functions that allocate what the real ones do, in their order.

Liger's and Apple's are written in Triton, which takes neither a CPU nor tensors without memory. What the kernels write
in place is left as it is, so the loss is no loss; sizes and lives of all tensors are those of their sources, which
`step.decoders.losses` names.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...catalog.losses import LIGER, TRL, TRL_ROWS, TRL_WORDS, liger_chunk
from ...catalog.train_setup import TrainSetup

IGNORED = -100


class LigerWithoutKernel(torch.autograd.Function):
    """`LigerFusedLinearCrossEntropyFunction` of Liger 0.8.2, of a mean, without a bias."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Any:
        tokens, rows = len(hidden), liger_chunk(len(hidden), hidden.shape[1], len(weight))
        of_input = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses, _ = torch.zeros(tokens, device=hidden.device), targets != IGNORED
        for start in range(0, tokens, rows):
            chunk = hidden[start : start + rows]
            logits = chunk @ weight.t()
            of_logits = logits  # until here, and below until there, these names hold what was made for the chunk before
            of_input[start : start + rows] = of_logits @ weight
            if of_weight is None:
                continue
            turned = of_logits.t()
            if of_weight.dtype == torch.float32 and logits.dtype != torch.float32 and adds_to_fp32(of_weight):
                read = chunk.to(logits.dtype)  # noqa: F841 - addmm with out_dtype adds to of_weight itself
            else:
                of_weight += torch.mm(turned, chunk).float()
        ctx.save_for_backward(of_input, of_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return *ctx.saved_tensors, None


class CutWithoutKernel(torch.autograd.Function):
    """`LinearCrossEntropyFunction` of cut cross-entropy, which accumulates in the type of what it is given."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Any:
        sums, means = torch.zeros(len(hidden), device=hidden.device), torch.zeros(len(weight), device=hidden.device)
        valid = torch.zeros(len(hidden), dtype=torch.int32, device=hidden.device)
        ctx.save_for_backward(hidden, weight, sums, targets, valid, means)
        return sums.mean()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        hidden, weight, *_ = ctx.saved_tensors
        made = [
            torch.zeros_like(one) if wanted else None
            for one, wanted in zip((hidden, weight), ctx.needs_input_grad, strict=False)
        ]
        return *made, None


class TrlWithoutKernel(torch.autograd.Function):
    """`ChunkedLogProbFunction` of TRL 1.16, whose kernel folds each tile of logits into sums for each token."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> Any:
        kind = hidden.device.type
        ctx.low = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        sums = [torch.zeros(len(hidden), device=hidden.device) for _ in range(7)]
        tile = _tile_for(hidden, ctx.low)
        for start in range(0, len(hidden), TRL_ROWS):
            rows = hidden[start : start + TRL_ROWS].to(ctx.low)
            for word in range(0, len(weight), TRL_WORDS):
                words = weight[word : word + TRL_WORDS]
                torch.mm(rows, words.to(ctx.low).t(), out=tile[: len(rows), : len(words)])
        ctx.save_for_backward(hidden, weight, targets, sums[0], sums[1])
        return sums[2].sum()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        hidden, weight, *_ = ctx.saved_tensors
        found = [
            torch.zeros(one.shape, device=one.device) if wanted else None
            for one, wanted in zip((hidden, weight), ctx.needs_input_grad, strict=False)
        ]
        of_hidden, of_weight = found
        tile = _tile_for(hidden, ctx.low)
        for start in range(0, len(hidden), TRL_ROWS):
            rows = hidden[start : start + TRL_ROWS].to(ctx.low)
            for word in range(0, len(weight), TRL_WORDS):
                words = weight[word : word + TRL_WORDS].to(ctx.low)
                part = tile[: len(rows), : len(words)]
                torch.mm(rows, words.t(), out=part)
                if of_hidden is not None:
                    _add_product(of_hidden[start : start + TRL_ROWS], part, words)
                if of_weight is not None:
                    _add_product(of_weight[word : word + TRL_WORDS], part.t(), rows)
        cast = (None if one is None else one.to(of.dtype) for one, of in zip(found, (hidden, weight), strict=True))
        return *cast, None


def _tile_for(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(min(len(hidden), TRL_ROWS), TRL_WORDS, dtype=dtype, device=hidden.device)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """As TRL adds in FP32: by one kernel on a GPU, which needs no copies of what has 16 bits."""
    if adds_to_fp32(total):
        return
    total.addmm_(left.float(), right.float())


def adds_to_fp32(gradient: torch.Tensor) -> bool:
    """Whether a product of 16 bits is added to an FP32 sum without a copy: on a GPU from compute capability 8.0 on."""
    return gradient.is_cuda and torch.cuda.get_device_capability(gradient.device)[0] >= 8


def mask_of(setup: TrainSetup, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The mask of a padded or packed batch, as Transformers would make it from values: bools, for eager numbers."""
    if not setup.masked:
        return {}
    dtype = torch.bool if setup.attention == "sdpa" else torch.bfloat16
    if setup.attention != "sdpa" and setup.precision_recipe.weight_bytes == 4:
        dtype = torch.float32
    square = (len(ids), 1, ids.shape[1], ids.shape[1])
    return {"attention_mask": torch.ones(square, dtype=dtype, device=ids.device).tril_()}


def fused_loss(setup: TrainSetup, model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The loss of `model`, whose decoder runs without its head, as Liger and cut cross-entropy patch it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder: nn.Module = getattr(base, base.base_model_prefix)
    hidden = decoder(input_ids=ids, use_cache=False, **mask_of(setup, ids))[0]
    targets = nn.functional.pad(ids, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1)
    weight = base.get_output_embeddings().weight
    if setup.loss == TRL:
        sequences, ends = len(ids), ids.shape[1] - 1  # a token has a target, but for the last of a sequence
        scored = setup.scored or ends
        rows = torch.arange(sequences, device=ids.device).repeat_interleave(scored)
        columns = torch.arange(ends - scored, ends, device=ids.device).repeat(sequences)
        return TrlWithoutKernel.apply(hidden[:, :-1][rows, columns], weight, ids[rows, columns + 1])
    if setup.loss == LIGER:
        return LigerWithoutKernel.apply(hidden.view(-1, hidden.shape[-1]), weight, targets)
    return CutWithoutKernel.apply(hidden.view(-1, hidden.shape[-1]), weight, targets)
