"""The bytes of a served model's weights in any format: values, scales, code tables, and what stays in 16 bits.

Summed layer by layer, since blocks end with their layer: so the sum is, to the byte, what bitsandbytes holds.
"""

from __future__ import annotations

from ...catalog.formats import NumberFormat, number_format
from ...catalog.layers import Layer, Linear, LinearGroup
from ...catalog.serve_setup import ServeSetup
from ...catalog.shipped import LEFT_OUT, fp8_block
from ..breakdown import Breakdown

FP32 = 4
KEPT = "bf16"  # or FP16, which is the same to memory
PLAIN_TYPES = ("f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64")  # of a GGUF file: values without scales


def weight_bytes(setup: ServeSetup) -> int:
    """Bytes of the weights as they are served, scales and constants included.

    Llama-3-8B: 16,060,522,496 in BF16, 6,027,761,664 in NF4, 5,702,540,160 with double quantization.
    """
    return weight_parts(setup).total


def weight_parts(setup: ServeSetup) -> Breakdown:
    """The same by what the bytes are: quantized values, their scales, constants of each weight, and what is kept.

    `kept` is all that is not quantized: embeddings, norms, biases and the skipped layers, or the whole model; and the
    towers of a multimodal one. Buffers (rotary frequencies: 256 to 1,024 bytes) are not weights and are left out. A
    GPU's allocator rounds each tensor up to 512 bytes besides: helpers.memory.trace shows that.
    """
    if setup.model.stored:
        plain = [tensor.size_bytes for tensor in setup.model.stored if tensor.type in PLAIN_TYPES]
        whole = sum(tensor.size_bytes for tensor in setup.model.stored)
        return Breakdown(quantized=whole - sum(plain), kept=sum(plain))
    rule = number_format(setup.weights)
    if not rule.linears_only:
        return Breakdown(kept=rule.storage_bytes(setup.model.parameters_with_towers))
    groups = [group for group in setup.model.linears() if is_quantized(setup, group)]
    rest = setup.model.parameters_with_towers - sum(group.weights for group in groups)
    return Breakdown(
        quantized=sum(group.count * rule.packed_bytes(group.linear.weights) for group in groups),
        scales=sum(group.count * scale_bytes(setup, rule, group.linear) for group in groups),
        constants=sum(group.count * _constant_bytes(setup, rule) for group in groups),
        kept=number_format(KEPT).storage_bytes(rest),
    )


def layer_bytes(setup: ServeSetup, group: LinearGroup) -> int:
    """Bytes of one weight matrix of `group`, without its bias."""
    rule = number_format(setup.weights)
    if rule.linears_only and not is_quantized(setup, group):
        rule = number_format(KEPT)
    scales = scale_bytes(setup, rule, group.linear) + _constant_bytes(setup, rule)
    return rule.packed_bytes(group.linear.weights) + scales


def layer_weight_bytes(setup: ServeSetup, layer: Layer) -> int:
    """Bytes of one layer's weights in the setup's format. Llama-3-8B in BF16: 436,224,000."""
    rule = number_format(setup.weights)
    if not rule.linears_only:
        return rule.storage_bytes(layer.parameters)
    groups = [group for group in layer.linears() if is_quantized(setup, group)]
    kept = layer.parameters - sum(group.weights for group in groups)
    return sum(group.count * layer_bytes(setup, group) for group in groups) + number_format(KEPT).storage_bytes(kept)


def is_quantized(setup: ServeSetup, group: LinearGroup) -> bool:
    """Whether these layers are in the setup's format, or stay in 16 bits."""
    rule = number_format(setup.weights)
    if not rule.linears_only:
        return False
    if setup.skipped is None and rule.experts_only and any(layer.mlp.experts for layer in setup.model.layers):
        return group.part == "experts"
    skipped = rule.keeps if setup.skipped in (None, LEFT_OUT) else setup.skipped
    if setup.skipped == LEFT_OUT and group.linear.kept:
        return False
    return group.part not in skipped and group.linear.name not in skipped


def scale_bytes(setup: ServeSetup, rule: NumberFormat, linear: Linear) -> int:
    """Of one weight; in a checkpoint whose FP8 has blocks an FP32 for each, the last of a row or column cut short.

    DeepSeek-V3's kv_a_proj_with_mqa, 576 x 7,168 in blocks of 128 x 128: 5 x 56 scales.
    """
    block = _block(setup, rule)
    if block is None:
        return rule.scale_bytes(linear.weights, linear.outputs)
    return FP32 * -(-linear.outputs // block[0]) * -(-linear.inputs // block[1])


def _constant_bytes(setup: ServeSetup, rule: NumberFormat) -> int:
    return 0 if _block(setup, rule) else rule.constant_bytes


def _block(setup: ServeSetup, rule: NumberFormat) -> tuple[int, int] | None:
    return fp8_block(setup.model) if rule.name.startswith("fp8") else None
