"""`workbook cards` and `workbook formats`: what can be named, with what the catalogue knows of it."""

from __future__ import annotations

import argparse
import json

from ..catalog.device_names import plain
from ..catalog.devices import DEVICES, Device
from ..catalog.errors import WorkbookError
from ..catalog.formats import NUMBER_FORMATS, NumberFormat
from ..memory.fit.reserves import reserve
from .flags import Commands, add_command


def add(commands: Commands) -> None:
    cards = add_command(commands, "cards", "the cards that --gpu knows: memory, bandwidth, sources", _cards)
    cards.add_argument(
        "word", nargs="?", default="", metavar="WORD", help="only those with this in their name, as 4090"
    )
    cards.add_argument(
        "--json", action="store_true", help="print JSON: every figure with its source, and what is kept of the card"
    )
    formats = add_command(commands, "formats", "number formats: exact bits of a weight, and their scales", _formats)
    formats.add_argument("--json", action="store_true", help="print JSON")


def _cards(arguments: argparse.Namespace) -> int:
    word = plain(arguments.word)
    found = [card for card in DEVICES.values() if word in plain(card.name) or word in plain(card.title)]
    if not found:
        do = "`workbook cards` lists them all; of another card write its memory, as 12GiB"
        raise WorkbookError(f"no card has {arguments.word!r} in its name", "a part of a card's name", do)
    print(json.dumps([_figures(card) for card in found]) if arguments.json else "\n".join(map(_line, found)))
    return 0


def _line(card: Device) -> str:
    bandwidth = f"{card.memory_bandwidth.number / 10**9:6,.0f} GB/s" if card.memory_bandwidth else " " * 11
    sizes = f"; or with {', '.join(map(str, card.memories[:-1]))} GB" if len(card.memories) > 1 else ""
    return f"{card.name:<24}{card.capacity_bytes / 2**30:7.2f} GiB  {bandwidth}  {card.title}{sizes}"


def _figures(card: Device) -> dict[str, object]:
    told = [{"value": one.value, "unit": one.unit, "kind": one.kind, "source": one.source} for one in card.figures()]
    kept = reserve(card)
    why = {"bytes": kept.size_bytes, "by": kept.context.basis.value, "source": kept.context.source}
    named = {"name": card.name, "title": card.title, "capacity_bytes": card.capacity_bytes}
    return {**named, "reserve": why, "figures": told}


def _formats(arguments: argparse.Namespace) -> int:
    told = [_format_figures(entry) for entry in NUMBER_FORMATS.values()]
    print(json.dumps(told) if arguments.json else "\n".join(map(_format_line, NUMBER_FORMATS.values())))
    return 0


def _format_line(entry: NumberFormat) -> str:
    plain = "none" if entry.scale.startswith("none") else entry.scale
    return f"{entry.name:<12}{entry.bits_per_value:>10.8g} bits   scales: {plain}"


def _format_figures(entry: NumberFormat) -> dict[str, object]:
    return {"name": entry.name, "bits": entry.bits_per_value, "scales": entry.scale, "source": entry.source}
