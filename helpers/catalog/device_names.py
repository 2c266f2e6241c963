"""From what people type to a card: "RTX4090", "rtx 4090", "4060ti-16gb", "NVIDIA A100-SXM4-80GB", "m3 max 64gb".

Brands, blanks and dashes make no difference; a number and a word such as Ti, Laptop or Ultra do. A name that several
cards share is refused with theirs, and what is no name here gets the nearest one only where its numbers and such words
are the same: a card with another number is another card.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Protocol

from .errors import WorkbookError

_NVIDIA = {"nvidia", "geforce", "tesla", "quadro", "rtx", "gtx"}
_BRANDS = _NVIDIA | {"amd", "radeon", "instinct", "rx", "apple", "intel", "arc", "graphics", "gpu", "generation"}
_VARIANTS = {"ti", "super", "laptop", "mobile", "max", "pro", "ultra", "nano", "nvl", "pcie", "sxm", "ada"}
_VARIANTS |= {"d", "m", "mig", "vf", "xt", "xtx", "gre"}
_PART = re.compile(r"[a-z]+|\d+")
_SEVERAL = tuple(  # 2x3090, "3090 x2", 3090,3090
    map(
        re.compile,
        (r"(?P<count>\d{1,3}) ?[x×*] ?(?P<card>.+)", r"(?P<card>.+?) ?[x×*] ?(?P<count>\d{1,3})", r"(?P<card>.+?),.+"),
    )
)
_EXAMPLES = "a card such as h100, rtx-4090, rtx-3060, mi300x, m4-max or m3-max-48gb, or its memory, as in 12GiB"
MOST_TYPED = 100  # characters


class NamedCard(Protocol):
    """What a name can lead to."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...
    @property
    def cuda_names(self) -> tuple[str, ...]: ...
    @property
    def memories(self) -> tuple[int, ...]: ...


def plain(name: str) -> str:
    """What tells one card from another in a name.

    >>> plain("RTX 4090"), plain("NVIDIA GeForce RTX 4090"), plain("4060ti-16gb"), plain("rtx-4060-ti-16gb")
    ('4090', '4090', '4060ti16gb', '4060ti16gb')
    """
    return "".join(part for part in _parts(name) if part not in _BRANDS)


def find(name: object, cards: Mapping[str, NamedCard]) -> tuple[str, int | None]:
    """The name of the card, and the memory in GB where the name asks for another of its sizes; else WorkbookError.

    WorkbookError, too, for a name that leads to several.
    """
    typed = name.strip().lower() if isinstance(name, str) else ""
    if not typed or len(typed) > MOST_TYPED:
        raise WorkbookError(f"unknown device {name!r:.60}", _EXAMPLES, _list_or_size())
    for card in cards.values():
        if typed == card.name or typed in card.aliases:
            return card.name, None
    found = _index(tuple(cards.values())).get(plain(typed), frozenset())
    if len(found) == 1:
        return next(iter(found))
    if found:
        names = sorted(card for card, _ in found)
        what = f"unknown device {name!r}: {len(names)} cards have that name"
        raise WorkbookError(what, " or ".join(names), f"write which, as in --gpu {names[0]}")
    raise _unknown(name, typed, cards)


def _parts(name: str) -> list[str]:
    return _PART.findall(name.lower())


@cache
def _index(cards: tuple[NamedCard, ...]) -> Mapping[str, frozenset[tuple[str, int | None]]]:
    """Every plain spelling, and what it may mean. An alias is the card's own; what is left of names may be shared."""
    own: dict[str, set[tuple[str, int | None]]] = {}
    shared: dict[str, set[tuple[str, int | None]]] = {}
    for card in cards:
        for spelling, memory in _spellings(card):
            own.setdefault(plain(spelling), set()).add((card.name, memory))
        for spelling in (_without_memory(card.name), *card.cuda_names):
            shared.setdefault(plain(spelling), set()).add((card.name, None))
    return {spelling: frozenset(meant) for spelling, meant in {**shared, **own}.items()}


def _spellings(card: NamedCard) -> Iterator[tuple[str, int | None]]:
    for name in (card.name, *card.aliases, card.title):
        yield name, None
    chip = re.sub(r"(-\d+core)?-\d+gb$", "", card.name)
    for name in {chip, _without_memory(card.name)}:
        yield from ((f"{name}-{gb}gb", gb) for gb in card.memories if f"{name}-{gb}gb" != card.name)


def _without_memory(name: str) -> str:
    return re.sub(r"-\d+gb$", "", name)


def _unknown(name: object, typed: str, cards: Mapping[str, NamedCard]) -> WorkbookError:
    """The error, with the nearest name where its numbers are those that were typed."""
    for several in _SEVERAL:
        if (found := several.fullmatch(typed)) and plain(found["card"]) in _index(tuple(cards.values())):
            return _of_several(name, found["card"].replace(" ", "-"), found.groupdict().get("count") or "2")
    names = [one for card in cards.values() for one in (card.name, *card.aliases)]
    wanted = plain(typed)
    longer = sorted((one for one in names if wanted and plain(one).startswith(wanted)), key=len)
    alike = [one for one in names if _same_numbers(typed, one)]
    close = longer or difflib.get_close_matches(typed, alike, n=1, cutoff=0.5)
    return WorkbookError(f"unknown device {name!r}", _EXAMPLES, _list_or_size(close[0] if close else ""))


def _of_several(name: object, card: str, count: str) -> WorkbookError:
    do = f"pass --gpu {card}; of {count} ask `workbook plan serve MODEL --cards {card}={count}`"
    return WorkbookError(f"{name!r} names several cards", "one card", f"{do}, or add --engine vllm --tensor {count}")


def _same_numbers(typed: str, name: str) -> bool:
    """Whether all that tells cards of one make apart is the same in both names, but for the memory in `name`."""
    return _telling(typed) == _telling(name) or _telling(typed) == _telling(_without_memory(name))


def _telling(name: str) -> tuple[list[str], set[str]]:
    parts = _parts(name)
    return [part for part in parts if part.isdigit()], _VARIANTS.intersection(parts)


def _list_or_size(near: str = "") -> str:
    suggestion = f"did you mean {near!r}? Else " if near else ""
    return f"{suggestion}`workbook cards` lists the names; of another card write its memory, as 12GiB"
