"""The quantization calculator: a model in a format, part by part, the GPUs that hold it, and the floor of a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.devices import DEVICES, Device, device
from ...catalog.formats import number_format
from ...catalog.models import MODELS
from ...catalog.models import model as resolve_model
from ...catalog.setup import ServeSetup
from ...catalog.shape import LinearGroup, ModelShape
from ...memory.closed_form import budget
from ...memory.closed_form.breakdown import Breakdown, format_bytes
from ...memory.closed_form.weights import KEPT, is_quantized, weight_parts
from ..units import si
from .calculator import Calculator, MemoryAnswer, fits
from .choices import within_positions

FORMATS = (
    "bf16",
    "fp8-e4m3",
    "int8",
    "nf4",
    "nf4-dq",
    "int8-g128",
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "int3-g64",
    "int3-g128",
    "int2-g64",
    "mxfp4",
)
# What the control offers; `quantization_answer` takes any list of parts and names.
SKIPPED = {
    "as the format's tool does": None,
    "lm_head": ["lm_head"],
    "lm_head, experts": ["lm_head", "experts"],
    "lm_head, attention": ["lm_head", "attention"],
    "nothing": [],
}


@dataclass(frozen=True)
class QuantizationAnswer(MemoryAnswer):
    """Bytes of the weights by what they are, and one user's KV cache."""

    setup: ServeSetup

    @property
    def weight_bytes(self) -> int:
        return self.parts.total - self.parts["kv_cache"]

    @property
    def bits_per_parameter(self) -> float:
        """Over the whole model, what is not quantized with it."""
        return 8 * self.weight_bytes / self.setup.model.parameters

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the catalogue that hold weights and cache, the smallest first."""
        by_size = sorted(DEVICES.values(), key=lambda entry: entry.capacity_bytes)
        return tuple(entry.name for entry in by_size if entry.capacity_bytes >= self.parts.total)

    @property
    def decode_bytes(self) -> int:
        """Bytes that one token must read."""
        return budget.decode_bytes(self.setup)

    @property
    def seconds_per_token(self) -> float | None:
        """The floor of a decode step; None without a device whose bandwidth is known."""
        known = self.gpu if self.gpu and self.gpu.memory_bandwidth else None
        return self.decode_bytes / known.memory_bytes_per_s if known else None

    @property
    def title(self) -> str:
        size, bits = format_bytes(self.weight_bytes), f"{self.bits_per_parameter:.2f} bits a parameter"
        return f"{self.setup.model.name} in {self.setup.weights}: {size}, {bits}"

    @property
    def formula(self) -> tuple[str, ...]:
        return tuple(f"{name:<12}{value:>12}   {text}" for name, value, text in _formula(self))

    @property
    def sentence(self) -> str:
        return " ".join(_sentences(self))

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "parts": dict(self.parts),
            "weight_bytes": self.weight_bytes,
            "bits_per_parameter": self.bits_per_parameter,
            "fits": list(self.devices),
            "decode_bytes": self.decode_bytes,
            "seconds_per_token": self.seconds_per_token,
        }


def quantization_answer(
    model: ModelShape | str,
    weights: str = "nf4-dq",
    gpu: str | Device | None = None,
    skipped: Iterable[str] | None = None,
    context: int = 2048,
) -> QuantizationAnswer:
    """`model` with its weights in a format, serving one user with `context` tokens of 16-bit KV cache.

    `skipped` names the linear layers that stay in 16 bits; None is what the format's tool leaves (`ServeSetup`). The
    floor is bytes over the datasheet's bandwidth: no activations, no time to decode weights. WorkbookError for an
    unknown model, format, device or layer, and for more context than the model has positions.

    >>> answer = quantization_answer("llama-3-8b", "nf4-dq", "rtx-4090")
    >>> answer.weight_bytes, round(answer.bits_per_parameter, 2), round(answer.seconds_per_token * 1e3, 2)
    (5702540160, 5.68, 4.88)
    """
    setup, where = ServeSetup(model, weights, context=context, skipped=skipped), device(gpu) if gpu else None
    parts = {**weight_parts(setup), "kv_cache": budget.serve(setup).parts["kv_cache"]}
    shown = Breakdown({part: size for part, size in parts.items() if size})
    return QuantizationAnswer(shown, where, setup)


def _formula(answer: QuantizationAnswer) -> Iterator[tuple[str, str, str]]:
    """One line per part, numbers substituted, then the floor."""
    explained, read = _explained(answer.setup), answer.decode_bytes
    for part, size in answer.parts.items():
        yield "KV cache" if part == "kv_cache" else part, format_bytes(size), explained[part]
    yield "a token", format_bytes(read), "read: one row of the embedding, the chosen experts, all else"
    if answer.seconds_per_token and answer.gpu:
        rate = answer.gpu.memory_bytes_per_s
        most = f"at most {rate / read:,.0f} tokens/s"
        yield "floor", si(answer.seconds_per_token, "s"), f"{si(read, 'B')} / {si(rate, 'B/s')}: {most}"


def _explained(setup: ServeSetup) -> dict[str, str]:
    rule, (groups, others) = number_format(setup.weights), _groups(setup)
    weights, layers = sum(group.weights for group in groups), sum(group.count for group in groups)
    width = number_format(KEPT if rule.linears_only else rule.name).value_bytes
    kept = f"{setup.model.parameters - weights:,} × {width} B"
    named = ", ".join(dict.fromkeys(("embeddings", "norms", *(group.part for group in others))))
    return {
        "quantized": f"{weights:,} × {rule.value_bits} bits, in {layers:,} linear layers",
        "scales": rule.scale,
        "constants": f"{layers:,} layers × {rule.constant_bytes:,} B: code tables, offsets, scales of a whole weight",
        "kept": f"{kept}: {named}" if rule.linears_only else f"{kept}: everything",
        "kv_cache": f"1 user × {setup.context:,} tokens, K and V in {setup.kv}",
    }


def _groups(setup: ServeSetup) -> tuple[list[LinearGroup], list[LinearGroup]]:
    """The linear layers that are quantized, and those that are not."""
    found: tuple[list[LinearGroup], list[LinearGroup]] = ([], [])
    for group in setup.model.linears():
        found[not is_quantized(setup, group)].append(group)
    return found


def _sentences(answer: QuantizationAnswer) -> Iterator[str]:
    """What the format saves of what it promises, and whether it fits."""
    setup, bits = answer.setup, number_format(answer.setup.weights).value_bits
    if bits < 16:
        plain = budget.weight_bytes(replace(setup, weights="bf16"))
        yield f"{plain / answer.weight_bytes:.2f}× smaller than in BF16, not {16 / bits:.3g}×."
    if setup.skipped is None and "experts" in number_format(setup.weights).keeps and _experts(setup.model):
        yield "The experts stay as they are: Transformers stacks them in a tensor that bitsandbytes passes over."
    if answer.gpu:
        yield fits(answer.parts.total, answer.gpu)
    more = f" and {len(answer.devices) - 3} more" if len(answer.devices) > 3 else ""
    yield (
        f"The smallest that hold it: {', '.join(answer.devices[:3])}{more}."
        if answer.devices
        else "No device of the catalogue holds it."
    )


def _experts(shape: ModelShape) -> bool:
    return any(group.part == "experts" for group in shape.linears())


def quantization(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `quantization(model="mixtral-8x7b", weights="int4-g128")`."""
    options = {
        "model": ("model", tuple(MODELS)),
        "weights": ("weights", FORMATS),
        "skipped": ("skipped", tuple(SKIPPED)),
        "gpu": ("GPU", tuple(DEVICES)),
        "context": ("context", tuple(2048 * 2**power for power in range(8))),
    }
    first = {
        "model": "llama-3-8b",
        "weights": "nf4-dq",
        "skipped": "as the format's tool does",
        "gpu": "rtx-4090-24gb",
        "context": 2048,
    }
    return Calculator(_compute, options, {**first, **start})


def _compute(skipped: str, model: str, context: int, **choices: Any) -> QuantizationAnswer:
    shape = resolve_model(model)
    tokens = within_positions(shape, context)
    return quantization_answer(shape, skipped=SKIPPED.get(skipped, skipped), context=tokens, **choices)
