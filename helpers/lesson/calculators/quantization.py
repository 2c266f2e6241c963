"""The quantization calculator: a model in a format, part by part, the GPUs that hold it, and the floor of a token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.devices import OFFERED, Device, device
from ...catalog.formats import number_format
from ...catalog.gguf import refuse_file
from ...catalog.models import model as resolve_model
from ...catalog.serve_setup import WEIGHT_FORMATS, ServeSetup
from ...catalog.shape import ModelShape
from ...catalog.shipped import fp8_block
from ...memory import budget
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.fit import Room, Verdict
from ...memory.serve.weights import KEPT, is_quantized, weight_parts
from ...questions.parameters import ANY_CONFIG, CONTEXT, GPU, MODEL, POWERS, RESERVE, SKIPPED, WEIGHTS, changed
from ...questions.question import Question
from ..drawing.marks import label
from ..units import si
from .answers import MemoryAnswer, row
from .calculator import Calculator

GROUPED = ("int8-g128", "int4-g32", "int4-g64", "int4-g128", "int3-g64", "int3-g128", "int2-g64")
FORMATS = ("bf16", "fp8-e4m3", "int8", "nf4", "nf4-dq", *GROUPED, "mxfp4", "nvfp4")
# What the control offers; `quantization_answer` takes any list of parts and names.
LEFT = {
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
        return 8 * self.weight_bytes / self.setup.model.parameters_with_towers

    @property
    def devices(self) -> tuple[str, ...]:
        """The common devices of the catalogue that fit weights and cache beside the reserve, the smallest first."""
        rooms = [Room(entry, self.reserve_bytes) for entry in OFFERED]
        by_size = sorted(rooms, key=lambda room: room.card.capacity_bytes)
        return tuple(room.card.name for room in by_size if room.verdict(self.parts.total) is Verdict.FITS)

    @property
    def decode_bytes(self) -> int | None:
        """Bytes that one token must read; None for a mixture of experts that only Transformers knows."""
        return None if self.setup.model.experts_unread else budget.decode_bytes(self.setup)

    @property
    def seconds_per_token(self) -> float | None:
        """The floor of a decode step; None without a device whose bandwidth is known."""
        return None if self.decode_bytes is None else self.seconds_to_read(self.decode_bytes)

    @property
    def title(self) -> str:
        size, bits = format_bytes(self.weight_bytes), f"{self.bits_per_parameter:.2f} bits a parameter"
        return f"{self.setup.model.name} in {self.setup.weights}: {size}, {bits}"

    @property
    def question(self) -> Question:
        return QUANTIZE

    @property
    def asked(self) -> dict[str, Any]:
        return {"setup": self.setup, "weights": self.setup.weights, **self.on_card}

    def lines(self) -> Iterator[str]:
        """One line per part, numbers substituted, then the floor."""
        explained, read = _explained(self.setup), self.decode_bytes
        for part, size in self.parts.items():
            yield row(label(part), format_bytes(size), explained[part])
        what = "read: the KV cache, and all weights but the embedding table and unused experts"
        if read is None:
            yield row("a token", "not known", "read: its experts are known to Transformers alone")
            return
        yield row("a token", format_bytes(read), what)
        if self.seconds_per_token and self.gpu:
            rate = self.gpu.memory_bytes_per_s
            most = f"at most {rate / read:,.0f} tokens/s"
            yield row("floor", si(self.seconds_per_token, "s"), f"{si(read, 'B')} / {si(rate, 'B/s')}: {most}")

    def sentences(self) -> Iterator[str]:
        """What the format saves of what it promises, and whether it fits."""
        setup, rule = self.setup, number_format(self.setup.weights)
        if rule.value_bits < 16:
            plain = budget.weight_bytes(replace(setup, weights="bf16"))
            yield f"{plain / self.weight_bytes:.2f}× smaller than in BF16, not {16 / rule.value_bits:.3g}×."
        has_experts = any(group.part == "experts" for group in setup.model.linears())
        if setup.skipped is None and "experts" in rule.keeps and has_experts:
            yield "The experts stay as they are: Transformers 5 (2026) stacks them where bitsandbytes passes over."
        yield from setup.shipped_told
        if self.room:
            yield self.room.sentence(self.parts.total, " for activations")
        smallest = f"The smallest that hold it: {', '.join(self.devices[:3])}."
        yield smallest if self.devices else "No device of the catalogue holds it."

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "parts": dict(self.parts),
            "weight_bytes": self.weight_bytes,
            "bits_per_parameter": self.bits_per_parameter,
            "reserve_bytes": self.room.reserve_bytes if self.room else self.reserve_bytes,
            "verdict": self.verdict(self.parts.total),
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
    reserve_bytes: int | None = None,
) -> QuantizationAnswer:
    """`model` with its weights in a format, serving one user with `context` tokens of 16-bit KV cache.

    `skipped` names the linear layers that stay in 16 bits; None is what the format's tool leaves (`ServeSetup`). The
    floor is bytes over the datasheet's bandwidth: no activations, no time to decode weights. WorkbookError for an
    unknown model, format, device or layer, and for more context than the model has positions.

    >>> answer = quantization_answer("llama-3-8b", "nf4-dq", "rtx-4090")
    >>> answer.weight_bytes, round(answer.bits_per_parameter, 2), round(answer.seconds_per_token * 1e3, 2)
    (5702540160, 5.68, 4.88)
    """
    refuse_file(resolve_model(model), "another format")
    setup, where = ServeSetup(model, weights, context=context, skipped=skipped), device(gpu) if gpu else None
    parts = {**weight_parts(setup), "kv_cache": budget.serve(setup).held["kv_cache"]}
    shown = Breakdown({part: size for part, size in parts.items() if size})
    return QuantizationAnswer(shown, where, setup, reserve_bytes=reserve_bytes)


def _explained(setup: ServeSetup) -> dict[str, str]:
    rule, linears = number_format(setup.weights), setup.model.linears()
    quantized = [group for group in linears if is_quantized(setup, group)]
    weights, layers = sum(group.weights for group in quantized), sum(group.count for group in quantized)
    width = number_format(KEPT if rule.linears_only else rule.name).value_bytes
    kept = f"{setup.model.parameters_with_towers - weights:,} × {width} B"
    others = (group.part for group in linears if not is_quantized(setup, group))
    named = ", ".join(dict.fromkeys(("embeddings", "norms", *others)))
    block = fp8_block(setup.model) if rule.name.startswith("fp8") else None
    return {
        "quantized": f"{weights:,} × {rule.value_bits} bits, in {layers:,} linear layers",
        "scales": f"one FP32 per {block[0]} × {block[1]} values" if block else rule.scale,
        "constants": f"{layers:,} layers × {rule.constant_bytes:,} B: code tables, offsets, scales of a whole weight",
        "kept": f"{kept}: {named}" if rule.linears_only else f"{kept}: everything",
        "kv_cache": f"1 user × {setup.context:,} tokens, K and V in {setup.kv}",
    }


def quantization(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `quantization(model="mixtral-8x7b", weights="int4-g128")`."""
    return Calculator(QUANTIZE, start)


QUANTIZE = Question(
    "quantize",
    "weights by format: bytes, what is not quantized, bits each, smallest GPU, tokens/s",
    quantization_answer,
    changed(
        (MODEL, WEIGHTS, SKIPPED, CONTEXT, GPU, RESERVE, ANY_CONFIG),
        model={"start": "llama-3-70b"},
        weights={
            "words": ", ".join(WEIGHT_FORMATS),
            "default": "nf4-dq",
            "always": True,
            "steps": FORMATS,
            "start": "nf4",
        },
        skipped={"label": "skipped", "steps": LEFT, "start": next(iter(LEFT))},
        context={"words": "tokens of one user's KV cache", "steps": tuple(2048 * n for n in POWERS[:8])},
        gpu={"start": "a100-40gb"},
    ),
    units="bytes and seconds",
    title="Quantized weights",
    asks="How large are the weights in a format, and how fast?",
    invites="Try nf4-dq, whose scales are quantized as well. Then another card: which is the smallest?",
    controls=("model", "config", "weights", "skipped", "gpu", "context", "reserve"),
    front=("model", "weights", "gpu", "context"),
)
