"""The LoRA and QLoRA steps that were measured, by the closed form in place of the trace: no torch, milliseconds."""

from __future__ import annotations

from ...catalog.adapters import Adapter
from ...catalog.devices import device
from ...catalog.layers import Attention
from ...catalog.train_setup import TrainSetup
from ..breakdown import rounded
from ..step.decoders.attending import REPEATED
from ..step.step import TapedStep
from .cases import Case, model_config


def setup_of(case: Case) -> TrainSetup:
    """The step as fitcheck-llm's scripts/measure.py runs it: FP32 adapters, checkpointing, AdamW."""
    chosen = case.setup
    dtype, base = chosen.get("dtype", "fp16"), chosen.get("base")
    adapter = Adapter("lora", chosen["rank"], chosen["targets"], base, "bf16" if dtype == "fp32" else dtype)
    return TrainSetup(
        model_config(chosen["model"]),
        "fp32" if dtype == "fp32" else "bf16",
        "adamw-foreach",
        chosen["micro_batch"],
        chosen["sequence"],
        "full",
        chosen["attention"],
        adapter=adapter,
    )


class RepeatedHeads(TapedStep):
    """A step whose K and V are written out for each query head."""

    def kernel_of(self, attention: Attention) -> str:
        return REPEATED


def predict(case: Case) -> dict[str, int]:
    """Bytes that the script would report, as `lora.predict` does, but for what stays reserved.

    It repeats K and V for each query head, and holds the model's output, and so the logits, until the step is over.
    """
    setup = setup_of(case)
    step = RepeatedHeads(setup, device(case.device))
    logits = rounded(setup.tokens * setup.model.vocab * step.width.weights)
    forward, *backward, optimizer = (moment.total for moment in step.moments())
    backward_peak, optimizer_peak = max(backward) + logits, optimizer + logits
    return {
        "after load": step.parameter_bytes,
        "peak allocated": max(forward, backward_peak, optimizer_peak),
        "peak of forward": forward,
        "peak of backward": backward_peak,
        "peak of optimizer step": optimizer_peak,
    }
