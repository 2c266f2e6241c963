"""What can be had: cards by type and number, the links between them, and what an hour of each costs.

    fleet = [Cards("h100", 8, per_hour=2.5), Cards("h200", 4)]

Cards of one type work together; a plan never mixes two. In a machine of `node` cards the fastest link of the catalogue
joins them, between machines the network does, with a port for each card.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ...catalog.devices import Device
from ...catalog.devices import device as resolve_device
from ...catalog.errors import WorkbookError, require_number, require_whole
from ...catalog.prices import price
from ..fit.room import Room

MOST_CARDS = 2**15
USUAL_NODE = 8  # HGX and DGX machines of A100 and later
# 400 Gb/s for each card: Grattafiori et al., The Llama 3 Herd of Models, 2024 (arXiv 2407.21783), section 3.3.1
USUAL_NETWORK_BYTES_PER_S = 50e9
FASTEST_FIRST = ("nvlink", "infinity-fabric", "pcie")


@dataclass(frozen=True)
class Cards:
    """`count` cards of one type, `node` in a machine. `per_hour` is None where nobody said what one costs.

    >>> cards = Cards("h100", 16)
    >>> cards.link_bytes_per_s(8) / 1e9, cards.link_bytes_per_s(16) / 1e9, cards.link_bytes_per_s(2, stride=8) / 1e9
    (450.0, 400.0, 50.0)
    """

    card: Device | str
    count: int
    per_hour: float | None = None
    node: int = USUAL_NODE
    network_bytes_per_s: float = USUAL_NETWORK_BYTES_PER_S
    reserve_bytes: int | None = None

    def __post_init__(self) -> None:
        found = resolve_device(self.card)
        object.__setattr__(self, "card", found)
        do = f"pass a count of cards, as in {found.name}=8"
        require_whole(f"the number of {found.title}", self.count, most=MOST_CARDS, do=do)
        require_whole("cards in a machine", self.node, most=1024)
        expected, do = "bytes a second in one direction, above 0", "pass 50e9 for 400 Gb/s"
        require_number("the network's rate", self.network_bytes_per_s, expected=expected, do=do)
        if self.per_hour is None and (known := price(found)):
            object.__setattr__(self, "per_hour", known.per_hour)

    @property
    def device(self) -> Device:
        assert isinstance(self.card, Device)
        return self.card

    @property
    def room(self) -> Room:
        """Of a card that works alone."""
        return self.room_of(1)

    def room_of(self, ranks: int) -> Room:
        """Of one of so many ranks, beside what is kept: `reserve_bytes`, or by card and ranks where it is None."""
        return _room(self.device, self.reserve_bytes, ranks)

    def link_bytes_per_s(self, ranks: int, stride: int = 1) -> float:
        """One direction, for each card, of a ring through `ranks` cards, of which each is `stride` cards from the next.

        Inside a machine its own link. Between machines NCCL lays a ring through every port that the group's cards have,
        so the network's rate counts once for each card that it has in a machine: between DGX A100 with eight ports of
        25 GB/s 192 GB/s were measured (github.com/NVIDIA/nccl/issues/812).
        """
        inside = self._inside()
        if ranks * stride <= self.node:
            return inside
        return min(inside, max(1, self.node // stride) * self.network_bytes_per_s)

    def _inside(self) -> float:
        for name in FASTEST_FIRST:
            if name in self.device.links:
                return self.device.link_bytes_per_s(name)
        if self.count == 1:
            return float("inf")
        what, expected = f"no link of the {self.device.title} is known", "a card with a link in the catalogue"
        raise WorkbookError(what, expected, "name one card of it, or another type")

    def with_count(self, count: int) -> Cards:
        return Cards(self.device, count, self.per_hour, self.node, self.network_bytes_per_s, self.reserve_bytes)

    def with_price(self, per_hour: float) -> Cards:
        return Cards(self.device, self.count, per_hour, self.node, self.network_bytes_per_s, self.reserve_bytes)


@cache
def _room(card: Device, reserve_bytes: int | None, ranks: int) -> Room:
    return Room(card, reserve_bytes, ranks)


def require_comparable(fleet: list[Cards]) -> None:
    """Plans on several types are ranked by money, so all must have a price, or there must be one type."""
    if not fleet:
        raise WorkbookError("no cards", "a type and a number", "pass --cards h100=8")
    names = [cards.device.name for cards in fleet]
    for name in names:
        if names.count(name) > 1:
            raise WorkbookError(f"{name} twice", "each type once", f"add the numbers up, as in {name}=16")
    if len(fleet) > 1:
        for cards in fleet:
            if cards.per_hour is None:
                what = f"no price of the {cards.device.title} is known, and plans on several types compare by price"
                raise WorkbookError(what, "a price an hour for each type", f"pass --price {cards.device.name}=2.50")
