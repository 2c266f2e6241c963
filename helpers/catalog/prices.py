"""What an hour of a card costs: dated list prices, each with its source, and the reader's own in their place. No torch.

    prices.price("h100").per_hour                  # of the card, in US dollars
    prices.machine("h100").dollars                 # of a whole machine, bought
    prices.with_own({"h100": 2.50})["h100-80gb"]   # the table with a price of the reader's

A list price is what one vendor asked on one day. It is good for comparing plans, and no quotation: edit
`data/prices.json`, or pass your own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .devices import Device, device
from .errors import WorkbookError, require_number

_DATA = Path(__file__).parent / "data" / "prices.json"
MOST_PER_HOUR = 1000.0  # more than any card costs: a typing error, or the price of a whole machine


@dataclass(frozen=True)
class Price:
    """US dollars for an hour of one card; `source` and `date` say whose price it is, and of when."""

    per_hour: float
    source: str
    date: str

    def __post_init__(self) -> None:
        expected = f"US dollars for an hour of one card, above 0 and below {MOST_PER_HOUR:,.0f}"
        require_number("the price of a card", self.per_hour, below=MOST_PER_HOUR, expected=expected, do="as in 2.50")
        if not (self.source and self.date):
            what = f"a price of {self.per_hour} without source or date"
            raise WorkbookError(what, "whose price it is, and of when", "complete the entry in data/prices.json")


@dataclass(frozen=True)
class PricedMachine:
    """A machine of `cards` that is bought for `dollars`, draws `kilowatts` at most, and is hosted by the kilowatt."""

    cards: int
    dollars: float
    kilowatts: float
    kilowatt_month: float
    source: str
    date: str

    def __post_init__(self) -> None:
        for name in ("cards", "dollars", "kilowatts", "kilowatt_month"):
            require_number(f"{name} of a machine", getattr(self, name), expected="a number above 0", do="as in 8")
        if not (self.source and self.date):
            what = f"a machine for {self.dollars} without source or date"
            raise WorkbookError(what, "whose price it is, and of when", "complete the entry in data/prices.json")

    @property
    def hosted_per_month(self) -> float:
        """US dollars for a rack's power and cooling, at the most that the machine draws."""
        return self.kilowatts * self.kilowatt_month


@cache
def machines() -> Mapping[str, PricedMachine]:
    """Machines that are sold whole, by the name of their cards."""
    return {device(name).name: PricedMachine(**entry) for name, entry in _read()["machines"].items()}


def machine(of: str | Device) -> PricedMachine | None:
    """The machine with cards of this type, None where no price of one is known."""
    return machines().get(device(of).name)


def spread(of: str | Device) -> tuple[float, float] | None:
    """The least and the most that vendors asked for an hour of a card on the day of its listed price; None if unknown.

    >>> spread("h100")
    (2.69, 12.29)
    """
    found = {device(name).name: (least, most) for name, (least, most) in _read()["spreads"].items()}
    return found.get(device(of).name)


@cache
def listed() -> Mapping[str, Price]:
    """The prices of `data/prices.json`, by the name of the device."""
    return {device(name).name: Price(**entry) for name, entry in _read()["prices"].items()}


def with_own(own: Mapping[str, float]) -> Mapping[str, Price]:
    """The listed prices, with `own` (by name or alias of a device) in their place.

    >>> with_own({"h100": 2.5})["h100-80gb"].source
    'your own'
    """
    mine = {device(name).name: Price(per_hour, "your own", "today") for name, per_hour in own.items()}
    return {**listed(), **mine}


def price(of: str | Device) -> Price | None:
    """The listed price of a device, None where there is none."""
    return listed().get(device(of).name)


@cache
def _read() -> dict:
    return json.loads(_DATA.read_text(encoding="utf-8"))
