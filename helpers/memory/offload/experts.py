"""Experts that stay on the host and compute there: hidden states travel to them and back, and no weight does. No torch.

What llama.cpp does with `--n-cpu-moe` in decoding, and KTransformers. The card keeps everything else: attention, norms,
routers, shared experts, embedding and head, and the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError
from ...catalog.layers import Layer
from ...catalog.serve_setup import ServeSetup
from ...catalog.tiers import Tier, tier
from ..serve.weights import layer_bytes, weight_bytes
from .serving import DECODE, streamed

VALUE_BYTES = 2  # of a hidden state on its way; llama.cpp sends FP32, twice as much


@dataclass(frozen=True)
class HostExperts:
    """One decode step: bytes of weights in each memory, those that the host reads, those that are sent each way."""

    card_bytes: int
    host_bytes: int
    read_bytes: int
    sent_bytes: int
    card_s: float
    host_s: float
    link_s: float

    @property
    def step_s(self) -> float:
        """Their sum: a layer's experts wait for its attention, and the next layer waits for them."""
        return self.card_s + self.host_s + self.link_s


def has_experts(setup: ServeSetup) -> bool:
    return any(layer.mlp.experts for layer in setup.model.layers)


def experts_on_host(setup: ServeSetup, gpu: str | Device, host: str | Tier) -> HostExperts:
    """A decode step of `setup.users` whose experts the host computes: what reading takes, at the datasheets' rates.

    The host reads each expert that somebody chose once, and of many users all choices differ as far as they can. The
    start of a copy, and the host's arithmetic, are left out: with many users it may well take longer than reading.

    gpt-oss-120b, one user, an RTX 4090 in a desktop with DDR5-5600: 1.90 of 60.9 GB are read, in 21.2 ms.

    >>> found = experts_on_host(ServeSetup("gpt-oss-120b", weights="mxfp4"), "rtx-4090", "desktop-dram")
    >>> found.read_bytes, round(1e3 * found.step_s, 1)
    (1903564800, 24.5)
    """
    if not has_experts(setup):
        do = "stream its layers: offload.streamed(setup, gpu)"
        raise WorkbookError(f"{setup.model.name} has no experts", "a mixture of experts, as gpt-oss-120b", do)
    card, memory = device(gpu), tier(host)
    mixed = [layer for layer in setup.model.layers if layer.mlp.experts]
    stored = sum(_expert_bytes(setup, layer) * layer.mlp.experts for layer in mixed)
    read = sum(_expert_bytes(setup, layer) * _chosen(setup, layer) for layer in mixed)
    sent = setup.users * setup.model.hidden * VALUE_BYTES * len(mixed)
    on_card_s = streamed(setup, card, DECODE).resident_s - read / card.memory_bytes_per_s
    slot = card.link_bytes_per_s("pcie")
    return HostExperts(
        weight_bytes(setup) - stored,
        stored,
        read,
        sent,
        max(0.0, on_card_s),
        read / memory.read_bytes_per_s,
        2 * sent / slot,
    )


def _chosen(setup: ServeSetup, layer: Layer) -> int:
    return min(layer.mlp.experts, setup.users * layer.mlp.experts_per_token)


def _expert_bytes(setup: ServeSetup, layer: Layer) -> int:
    """One expert's matrices."""
    return sum(layer_bytes(setup, group) for group in layer.linears() if group.part == "experts")
