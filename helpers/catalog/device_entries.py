"""The entries of the catalogue of cards: data/devices.json, and data/cards.json spelled out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"
_UNITS = {
    "compute_capability": ("version", ""),
    "memory_type": ("type", ""),
    "capacity": ("bytes", ""),
    "memory_bandwidth": ("bytes/s", "reads and writes together"),
    "units": ("units", ""),
    "sizes": ("bytes", ""),
    "peak_flops": ("FLOP/s", ""),
    "links": ("bytes/s", "both directions"),
}


def entries() -> Mapping[str, Mapping[str, Any]]:
    """Every entry by the name of its card, in the order in which menus list them: those with a price class first."""
    short = _read("cards.json")
    spelled = {name: _spelled(card, short["sources"]) for name, card in short["cards"].items()}
    return {**_read("devices.json")["devices"], **spelled}


def _read(file: str) -> dict[str, Any]:
    return json.loads((_DATA / file).read_text(encoding="utf-8"))


def _spelled(card: Mapping[str, Any], sources: Mapping[str, list[str]]) -> dict[str, Any]:
    """The entry of a card with unit, kind, source, date and direction of each figure."""

    def figure(key: str, value: int | str, source: str | list[str]) -> dict[str, Any]:
        unit, direction = _UNITS[key]
        kind, text, date = sources[source] if isinstance(source, str) else source
        told = {"value": value, "unit": unit, "kind": kind, "source": text.format(title=card["title"]), "date": date}
        return {**told, "direction": direction} if direction else told

    figures = {
        key: {inner: figure(key, *each) for inner, each in given.items()}
        if isinstance(given, dict)
        else figure(key, *given)
        for key, given in card["figures"].items()
    }
    return {**card, "figures": figures}
