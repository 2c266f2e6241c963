"""Rates, counts and times as people read them: three digits and a decimal prefix.

Decimal, because the datasheets' rates are: 117 MB over 3.35 TB/s are 35 µs, and the reader can check it.
Sizes of memory stay binary: `memory.format_bytes`, and `short_bytes` where there is little room.
"""

from __future__ import annotations

from ..memory.breakdown import GIB

MIB = 2**20
_PREFIXES = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}


def si(value: float, unit: str, whole: bool = False) -> str:
    """`value` of `unit` with three digits; whole numbers below a thousand, and seconds above one, as they are.

    `whole` leaves decimals out where there are none, as on an axis.

    >>> si(3.35e12, "B/s"), si(10.02e-6, "s"), si(7200, "s"), si(0, "FLOP"), si(1e15, "FLOP/s", whole=True)
    ('3.35 TB/s', '10.0 µs', '7,200 s', '0 FLOP', '1 PFLOP/s')
    """
    if value == 0 or (value == int(value) and value < 1000):
        return f"{value:.0f} {unit}"
    scales = [(size, prefix) for prefix, size in _PREFIXES.items() if unit != "s" or size <= 1]
    size, prefix = next((pair for pair in scales if value >= 0.9995 * pair[0]), scales[-1])
    scaled = value / size
    return f"{f'{scaled:g}' if whole else three_digits(scaled)} {prefix}{unit}"


def three_digits(value: float) -> str:
    """
    >>> three_digits(1365.3), three_digits(295.34), three_digits(15.04), three_digits(0.99988)
    ('1,365', '295', '15.0', '1.00')
    """
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def percent(share: float) -> str:
    """A share of one; what is above nothing never reads as nothing.

    >>> percent(0.0034), percent(0.00001), percent(0.915), percent(0)
    ('0.3 %', 'under 0.1 %', '92 %', '0 %')
    """
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.{1 if 0 < share < 0.1 else 0}f} %"


def signed_percent(fraction: float) -> str:
    """A distance with a real minus sign; what rounds to zero has none, nor what is out of all proportion.

    >>> signed_percent(-0.005), signed_percent(0.25), signed_percent(-1e-9), signed_percent(1e300)
    ('−0.50 %', '+25.00 %', '0.00 %', 'more than 10⁸ %')
    """
    if abs(fraction) >= 1e6:
        return "more than 10⁸ %"
    text = f"{abs(fraction) * 100:.2f} %"
    if text == "0.00 %":
        return text
    return ("−" if fraction < 0 else "+") + text


def short_bytes(size_bytes: float) -> str:
    """A size for a crowded picture: no more digits than it has.

    >>> short_bytes(12 * 2**20), short_bytes(1536), short_bytes(40.5 * 2**20), short_bytes(512), short_bytes(3 * 2**30)
    ('12 MiB', '1.5 KiB', '40.5 MiB', '512 B', '3 GiB')
    """
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{round(size_bytes / size, 1):g} {unit}"
    return f"{size_bytes:g} B"


def axis_unit(size_bytes: float) -> tuple[int, str]:
    """The bytes and the name of the unit for an axis that reaches `size_bytes`: GiB from 2 GiB up, else MiB."""
    return (GIB, "GiB") if size_bytes >= 2 * GIB else (MIB, "MiB")


def plain(number: float) -> str:
    """Nine digits at most, without those that say nothing; 0 has no sign.

    >>> plain(65504.0), plain(2**-24), plain(0.1), plain(float("-inf"))
    ('65504', '5.96046448e-08', '0.1', '-inf')
    """
    return f"{number + 0.0:.9g}"


def relative(error: float | None) -> str:
    """A relative error with its sign, in percent where that reads well; nothing for None and for 0.

    >>> relative(-0.000244), relative(1.49e-8), relative(-1), relative(None)
    ('−0.024 %', '+1.5e-08', '−100 %', '')
    """
    if not error:
        return ""
    size = abs(error)
    text = (
        f"{100 * size:.{0 if size >= 0.0995 else 2}{'f' if size >= 0.0995 else 'g'}} %"
        if size >= 1e-5
        else f"{size:.1e}"
    )
    return ("−" if error < 0 else "+") + text


def share_of_all(share: float) -> str:
    """A share of one for a narrow column; neither what is less than all nor what is above nothing reads as that.

    >>> share_of_all(0.0004), share_of_all(0.9966), share_of_all(0.99999), share_of_all(0.537), share_of_all(1)
    ('<0.1 %', '99.7 %', '>99.9 %', '54 %', '100 %')
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    return f"{100 * share:.1f} %" if 0.99 < share < 1 else percent(share)
