"""Histories of real allocators that others published: events, sizes and addresses, packed, with their sources.

from helpers.memory.accuracy.published import history
history("transformer-step").snapshot.trace()[:3]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ...catalog.errors import require_name
from ..allocator import Snapshot, unpack

FOLDER = Path(__file__).parent / "data" / "published"


@dataclass(frozen=True)
class History:
    """One history: `what` ran, on which `device`, whose `source` and `licence` it is."""

    name: str
    what: str
    device: str
    source: str
    licence: str
    snapshot: Snapshot = field(repr=False)


@cache
def _sources() -> dict[str, dict[str, str]]:
    return json.loads((FOLDER / "sources.json").read_text(encoding="utf-8"))


def names() -> tuple[str, ...]:
    """The histories that there are.

    >>> names()
    ('transformer-step',)
    """
    return tuple(_sources())


@cache
def history(name: str) -> History:
    """The published history called `name`; WorkbookError for another. "transformer-step" has 3,853 allocations."""
    require_name("published history", name, _sources())
    packed = (FOLDER / f"{name}.snapshot").read_bytes()
    return History(name, **_sources()[name], snapshot=unpack(packed))
