"""The GPU at hand, matched to the catalogue by the name PyTorch gives it. Imports torch, when called."""

from __future__ import annotations

import datetime
from dataclasses import replace

from .devices import DEVICES, Device, Figure

# A vGPU or a partition may carry the name of the whole card: its rates would not be the card's.
SAME_CARD = 0.10


def detect() -> Device | None:
    """The current CUDA or ROCm device with the capacity that PyTorch reports for it; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return describe(properties.name, properties.total_memory)


def describe(cuda_name: str, total_bytes: int) -> Device:
    """The device called `cuda_name` with `total_bytes` of memory: the catalogue entry, or capacity alone."""
    capacity = Figure(
        total_bytes,
        "bytes",
        "measured",
        "torch.cuda.get_device_properties on this machine",
        datetime.date.today().isoformat(),
    )
    for entry in DEVICES.values():
        near = abs(entry.capacity_bytes - total_bytes) <= SAME_CARD * entry.capacity_bytes
        if cuda_name in entry.cuda_names and near:
            return replace(entry, capacity=capacity)
    return Device(name=cuda_name.lower().replace(" ", "-"), title=cuda_name, capacity=capacity)
