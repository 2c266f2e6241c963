"""Weights that arrive while the card computes, in numbers: seconds, bytes in each memory, the batch that hides it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from ...catalog.devices import Device
from ...catalog.serve_setup import ServeSetup
from ...catalog.tiers import Tier, tier
from ...memory import budget, offload
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.fit.room import Room, Verdict
from ...memory.offload import DECODE, PREFILL, HostExperts, Streamed
from ..units import si
from .offload_places import EXPOSED, HIDDEN, tier_verdict

DESKTOP, SERVER = "desktop-dram", "dgx-h100-dram"  # which a host has where nobody says so, by its card
MOST_IN_A_DESKTOP = 32 * 2**30


@dataclass(frozen=True)
class StreamedService:
    """One forward whose layers arrive from `source`, None: from the memory of the card's own host."""

    setup: ServeSetup
    gpu: Device
    step: str
    source: Tier | None
    efficiency: float
    forward: Streamed
    reserve_bytes: int | None

    @property
    def link_bytes_per_s(self) -> float:
        return link_rate(self.gpu, self.source)

    @property
    def where(self) -> str:
        return self.source.title if self.source else "memory of the host"

    @property
    def tokens(self) -> int:
        """That one step computes."""
        return self.setup.users * (self.setup.context if self.step == PREFILL else 1)

    @property
    def state(self) -> str:
        return HIDDEN if self.forward.is_hidden else EXPOSED

    @property
    def parts(self) -> Breakdown:
        """On the card."""
        root, cache = self.forward.root_bytes, budget.serve(self.setup).held["kv_cache"]
        return Breakdown(parameters=root, workspace=self.forward.device_bytes - root, kv_cache=cache)

    @property
    def room(self) -> Room:
        return Room(self.gpu, self.reserve_bytes)

    @property
    def verdicts(self) -> tuple[Verdict | None, Verdict | None]:
        """On the card, and where the layers are."""
        return self.room.verdict(self.parts.total), tier_verdict(self.source, self.forward.host_bytes)

    @property
    def users_that_fit(self) -> int:
        """With this context, beside what of the weights is on the card."""
        free = self.room.for_tensors_bytes - self.forward.device_bytes
        return max(0, free) // max(1, budget.serve(replace(self.setup, users=1)).held["kv_cache"])

    @cached_property
    def break_even_tokens(self) -> float:
        """In a pass, of any length, attention left out."""
        layer = self.setup.model.layers[self.largest]
        always = sum(linear.weights for linear in layer.attention.linears)
        active = (always + layer.mlp.active_parameters) / (always + layer.mlp.parameters)
        return offload.break_even_tokens(self.flops_per_s, self.link_bytes_per_s, self.setup.weights, active)

    @property
    def flops_per_s(self) -> float:
        return self.gpu.flops_per_s(offload.compute_format(self.setup, self.gpu)) * self.efficiency

    @cached_property
    def users_that_hide(self) -> int | None:
        options = {"link_bytes_per_s": self.link_bytes_per_s, "compute_efficiency": self.efficiency}
        return offload.users_that_hide(self.setup, self.gpu, self.step, **options)

    @cached_property
    def experts(self) -> HostExperts | None:
        """The same decode step with the experts computed where they lie; None without experts, or where no host is."""
        if self.step != DECODE or self.memory.kind != "dram" or not offload.has_experts(self.setup):
            return None
        return offload.experts_on_host(self.setup, self.gpu, self.memory)

    @property
    def experts_row(self) -> tuple[str, str, str]:
        """Of a step with the experts computed where they lie."""
        assert self.experts
        rest_s = self.experts.card_s + self.experts.link_s
        apart = f"{si(self.experts.host_s, 's')} to read {format_bytes(self.experts.read_bytes)} of experts"
        where = f"{self.memory.name}, {si(self.memory.read_bytes_per_s, 'B/s')}"
        return "experts there", si(self.experts.step_s, "s"), f"{apart}, {where}, + {si(rest_s, 's')}"

    @property
    def experts_told(self) -> Iterator[str]:
        assert self.experts
        size, sent = format_bytes(self.experts.card_bytes), format_bytes(self.experts.sent_bytes)
        yield "Nobody streams all experts to decode: leave them on the host, and let it compute those that are chosen."
        took = f"A step then takes {si(self.experts.step_s, 's')} at least"
        yield f"{took}, with {size} of weights on the card; {sent} of hidden states go each way."

    @property
    def memory(self) -> Tier:
        """Where the layers are; of a host that nobody named, what such a card's host usually has."""
        return self.source or tier(DESKTOP if self.gpu.capacity_bytes <= MOST_IN_A_DESKTOP else SERVER)

    @property
    def largest(self) -> int:
        """The first layer that has most bytes, from 0."""
        return self.forward.layers_bytes.index(max(self.forward.layers_bytes))

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have as many bytes and as much work."""
        return len({*zip(self.forward.layers_bytes, self.forward.computes_s, strict=True)}) == 1

    @property
    def resident_bytes(self) -> int:
        """The same step with every weight on the card."""
        return self.parts.total - self.forward.device_bytes + self.forward.root_bytes + self.forward.host_bytes


def link_rate(gpu: Device, source: Tier | None) -> float:
    pcie = gpu.link_bytes_per_s("pcie")
    return min(pcie, source.read_bytes_per_s) if source else pcie
