"""Whether bytes that left the GPU fit where they went: a host's memory, a disk; and who needs the rest of it."""

from __future__ import annotations

from collections.abc import Iterable

from ...catalog.tiers import Tier
from ...memory.breakdown import format_bytes
from ...memory.fit.room import Verdict

HOST_RESERVE_BYTES = 4 * 2**30  # for the system and other programs of a host: a round number, not a measurement
HIDDEN, EXPOSED = "hidden", "exposed"
_WORST_FIRST = (Verdict.DOES_NOT_FIT, Verdict.TIGHT, Verdict.FITS)


def capacity_of(place: Tier | None) -> int | None:
    """Of the whole host or set of disks; None of a network, and of a host that nobody named."""
    return place.capacity.number if place and place.capacity else None


def tier_verdict(place: Tier | None, size_bytes: int) -> Verdict | None:
    """Of so many bytes on `place`; None where its capacity is not known."""
    capacity = capacity_of(place)
    if place is None or capacity is None:
        return None
    if size_bytes > capacity:
        return Verdict.DOES_NOT_FIT
    kept = HOST_RESERVE_BYTES if place.kind == "dram" else 0
    return Verdict.FITS if size_bytes + kept <= capacity else Verdict.TIGHT


def tier_sentence(place: Tier | None, size_bytes: int) -> str:
    """The verdict with the bytes that are left, or that are missing; nothing where the capacity is not known.

    >>> from helpers.catalog import tier
    >>> tier_sentence(tier("desktop"), 65 * 2**30)
    'Does not fit the DRAM of a desktop, 64 GB of DDR5-5600: 1.00 GiB too much.'
    """
    verdict, capacity = tier_verdict(place, size_bytes), capacity_of(place)
    if place is None or capacity is None or verdict is None:
        return ""
    left, kept = capacity - size_bytes, format_bytes(HOST_RESERVE_BYTES)
    title = place.title[0].lower() + place.title[1:] if place.title.startswith("The ") else f"the {place.title}"
    match verdict:
        case Verdict.DOES_NOT_FIT:
            return f"Does not fit {title}: {format_bytes(-left)} too much."
        case Verdict.TIGHT:
            return f"Tight in {title}: {format_bytes(left)} left, and {kept} are kept for its system."
    return f"Fits {title}, with {format_bytes(left)} left."


def worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Of several memories the one that decides.

    >>> worst([Verdict.FITS, None, Verdict.TIGHT])
    'tight'
    """
    known = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in known), None)
