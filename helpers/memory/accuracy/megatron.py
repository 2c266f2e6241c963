"""Peaks that Megatron-LM logged, answered by the closed form of its step."""

from __future__ import annotations

from ...catalog.models import model
from ..step.ranks import megatron
from .cases import Case


def predict(case: Case) -> dict[str, int]:
    """Bytes by quantity: the stage that needs most."""
    fields = {name: value for name, value in case.setup.items() if name not in ("model", "changed")}
    shape = model({**model(case.setup["model"]).config, **case.setup["changed"]})
    found = megatron.train(megatron.MegatronSetup(shape, **fields), case.device)
    return {"peak allocated": found.peak_bytes}
