"""Linear layers whose weight is packed, as GPTQ, AWQ and FP8 checkpoints are served: what they hold and what they make.

Their kernels run on CUDA alone and are in libraries of their own, so a layer here computes nothing: it holds tensors of
the right sizes and returns an empty one, and the meter hears of what the kernel takes besides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...catalog.errors import WorkbookError
from ...catalog.formats import Decoding, NumberFormat, number_format
from ...catalog.serve_setup import ServeSetup
from ...catalog.shipped import LEFT_OUT, fp8_block, left_out_rules
from ...catalog.unquantized import is_left_out, spelled
from ..breakdown import Part
from ..meter.meter import Meter
from .kernels import CudaMeter

FP8 = {"fp8-e4m3": torch.float8_e4m3fn, "fp8-e5m2": torch.float8_e5m2}


def is_packed(weights: str) -> bool:
    """Whether a format of weights is one of these: with scales for groups, or FP8; not bitsandbytes' own."""
    rule = number_format(weights)
    return weights in FP8 or (rule.quantized and rule.row_blocks)


def pack_linears(model: nn.Module, setup: ServeSetup) -> nn.Module:
    """Replace the linear layers of a model on meta that `setup.weights` covers, less `setup.skipped`."""
    if any(layer.mlp.experts for layer in setup.model.layers):
        what = f"{setup.model.name} has experts, which Transformers stacks in one tensor"
        do = "trace it in 16 bits: weights='bf16', --weights bf16; budget.serve has the bytes of both"
        raise WorkbookError(f"{what}: not traced in {setup.weights}", "a dense model", do)
    rule, left = number_format(setup.weights), set(_left(setup))
    rules = left_out_rules(setup.model.config) if setup.skipped == LEFT_OUT else ((), ())
    for name, module in list(model.named_modules()):
        kept = left & set(name.split(".")) or is_left_out(spelled(name), *rules)
        if isinstance(module, nn.Linear) and not kept:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, PackedLinear(module, rule, fp8_block(setup.model)))
    return model


def _left(setup: ServeSetup) -> tuple[str, ...]:
    unsaid = setup.skipped in (None, LEFT_OUT)
    skipped = number_format(setup.weights).keeps if unsaid else tuple(setup.skipped or ())
    parts = {"attention": ("self_attn", "attn"), "mlp": ("mlp",)}
    return tuple(name for one in skipped for name in parts.get(one, (one,)))


class PackedLinear(nn.Module):
    """One linear layer in `rule`: packed values, scales, zero points, and the group of each input where it is kept."""

    def __init__(self, linear: nn.Linear, rule: NumberFormat, block: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rule = linear.in_features, linear.out_features, rule
        self.meter: Meter | None = None
        values = linear.weight.numel()
        for name, (size, dtype) in _tensors(rule, linear, block).items():
            self.register_buffer(name, torch.empty(size, dtype=dtype, device="meta"))
        self.bias = linear.bias
        self.decoded_bytes = 2 * values

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.numel() // self.in_features
        out = self._product(x, rows)
        if self.bias is None:
            return out
        return out.add_(self.bias) if self.rule.decoding is Decoding.KEPT else out + self.bias

    def _product(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        out = (*x.shape[:-1], self.out_features)
        besides = _besides(self, rows)
        if self.meter is None:
            return x.new_empty(out)
        with self.meter.held(*besides):
            result = x.new_empty(out)
        if isinstance(self.meter, CudaMeter) and self.rule.decoding is not Decoding.FUSED:
            self.meter.multiplied()  # what is decoded is multiplied by cuBLAS
        return result


def _tensors(
    rule: NumberFormat, linear: nn.Linear, block: tuple[int, int] | None
) -> dict[str, tuple[int, torch.dtype]]:
    """Name, elements and dtype of what is kept of a weight; with `block` FP8 has a scale for each."""
    values, rows = linear.weight.numel(), linear.out_features
    if rule.name in FP8:
        high, wide = block or linear.weight.shape
        scales = -(-rows // high) * -(-linear.in_features // wide)
        return {"weight": (values, FP8[rule.name]), "weight_scale": (scales, torch.float32)}
    groups = rows * -(-linear.in_features // rule.block_values)
    found = {"qweight": (rule.packed_bytes(values), torch.uint8)}
    if rule.scale_bits <= 8:
        return found | {"scales": (groups, torch.uint8)}
    found |= {"qzeros": (-(-groups * (rule.scale_bits - 16) // 8), torch.uint8), "scales": (groups, torch.float16)}
    return found | ({"g_idx": (linear.in_features, torch.int32)} if rule.column_bits else {})


def _besides(layer: PackedLinear, rows: int) -> tuple[int, ...]:
    """Bytes that the kernel holds while it runs: its input in FP8 with a scale for each row, a weight, partial sums."""
    rule = layer.rule
    if rule.name in FP8:
        return rows * layer.in_features, 4 * rows
    if rule.decoding is Decoding.WHOLE and rows > rule.fused_tokens:
        return (layer.decoded_bytes,)
    return (2 * rule.partial_sums * rows * layer.out_features,) if rule.partial_sums else ()


def kept_buffer(model: nn.Module, meter: Meter) -> list[torch.Tensor]:
    """Tell the layers who counts, and give those that decode into one buffer that buffer; inside a fake mode."""
    layers = [module for module in model.modules() if isinstance(module, PackedLinear)]
    for layer in layers:
        layer.meter = meter
    sizes = [layer.decoded_bytes for layer in layers if layer.rule.decoding is Decoding.KEPT]
    buffers: list[Any] = [torch.empty(max(sizes), dtype=torch.uint8)] if sizes else []
    meter.relabel(buffers, Part.WORKSPACE)
    return buffers
