"""The serving estimate in one answer: weights and KV cache against one device. Chapter 12 builds on it."""

from __future__ import annotations

from ...catalog.devices import Device, device
from ...catalog.setup import ServeSetup
from ...memory.closed_form import budget
from ...memory.closed_form.breakdown import format_bytes
from .shell import MemoryAnswer


def serving_answer(setup: ServeSetup, gpu: str | Device | None = None) -> MemoryAnswer:
    """What `setup` needs on `gpu`: weights, KV cache, bytes per token and the users that fit."""
    predicted = budget.serve(setup)
    where = device(gpu) if gpu else None
    parts = predicted.parts
    formula = (
        f"{'parameters':<12}{format_bytes(parts['parameters']):>12}   {setup.model.parameters:,} in {setup.weights}",
        f"{'KV cache':<12}{format_bytes(parts['kv_cache']):>12}   {setup.users:,} users × {setup.context:,} tokens, "
        f"K and V in {setup.kv}",
        f"{'a token':<12}{format_bytes(predicted.kv_bytes_per_token):>12}   of one sequence, over the layers that "
        "still grow",
    )
    return MemoryAnswer(
        f"Serving {setup.model.name}: {format_bytes(predicted.peak_bytes)} for weights and a full KV cache",
        formula,
        _sentence(predicted, where),
        parts,
        where.capacity_bytes if where else None,
        where.title if where else "",
    )


def _sentence(predicted: budget.ServeBudget, where: Device | None) -> str:
    need, parts = predicted.peak_bytes, predicted.parts
    if where is None:
        return f"Weights and KV cache need {format_bytes(need)}; a decode step's activations come on top."
    spare = where.capacity_bytes - need
    if spare >= 0:
        return f"Fits the {where.title} with {format_bytes(spare)} to spare for activations and the CUDA context."
    room = where.capacity_bytes - parts["parameters"]
    if room < 0:
        return f"Does not fit the {where.title}: the weights alone are {format_bytes(-room)} too large."
    users = room * predicted.setup.users // parts["kv_cache"]
    return (
        f"Does not fit the {where.title}: {format_bytes(-spare)} too much. At this context {users:,} users would fit."
    )
