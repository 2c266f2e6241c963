"""Numbers as readers type them, exactly: 0.1, 1e-8, 2**-24, 1/3, 1.5*2**-14, inf, nan."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from ...catalog.errors import WorkbookError

EXPECTED = "a number as 0.1, 1e-8, 65504, 2**-24, 1/3, 1.5*2**-14, inf or nan"
LONGEST, MOST_POWER = 60, 2000  # letters, and the exponent after ** or e
WORDS = {"inf": math.inf, "infinity": math.inf, "nan": math.nan}
_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,4})?"
_FACTOR = rf"({_NUMBER})(?:\*\*([+-]?\d{{1,4}}))?"
_TYPED = re.compile(rf"([+-]?){_FACTOR}(?:([*/]){_FACTOR})?", re.ASCII)


def typed_number(value: str | float | Fraction) -> Fraction | float:
    """What `value` says, without rounding; a float where it is infinite, NaN or −0. Numbers pass as they are.

    WorkbookError for anything else, and for what is beyond a Python float's range.

    >>> typed_number("2**-24") == 2**-24, typed_number("0.1"), typed_number("-inf")
    (True, Fraction(1, 10), -inf)
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Fraction)):
        raise _unknown(value)
    found = _parsed(value) if isinstance(value, str) else value
    if isinstance(found, float) and (not math.isfinite(found) or not found):
        return found
    exact = Fraction(found)
    size = abs(exact)
    if size and not Fraction(math.ulp(0.0)) <= size <= Fraction(math.nextafter(math.inf, 0)):
        what = f"{_short(value)} is beyond a Python float"
        raise WorkbookError(what, "0, or a size from 5e-324 to 1.8e308", "type a number within that range")
    return exact


def _parsed(text: str) -> Fraction | float:
    plain = text.strip().lower().replace("−", "-").replace("^", "**").replace("_", "").replace(" ", "")
    if plain.lstrip("+-") in WORDS and len(plain) - len(plain.lstrip("+-")) <= 1:
        return WORDS[plain.lstrip("+-")] * (-1 if plain[0] == "-" else 1)
    match = _TYPED.fullmatch(plain) if len(plain) <= LONGEST else None
    if match is None:
        raise _unknown(text)
    sign, first, power, operator, second, second_power = match.groups()
    try:
        result = _raised(first, power)
        if operator:
            other = _raised(second, second_power)
            result = result * other if operator == "*" else result / other
    except ZeroDivisionError:
        raise _unknown(text) from None
    if sign == "-":
        return -result or -0.0
    return result


def _raised(number: str, power: str | None) -> Fraction:
    """A power that nobody needs is not computed: it would take long."""
    base, exponent = number.partition("e")[0], number.partition("e")[2]
    if max(abs(int(exponent or 0)), abs(int(power or 0))) > MOST_POWER or (power and exponent):
        raise _unknown(f"{number}{f'**{power}' if power else ''}")
    return Fraction(base) * Fraction(10) ** int(exponent or 0) if not power else Fraction(base) ** int(power)


def _unknown(value: object) -> WorkbookError:
    return WorkbookError(f"unknown number {_short(value)!r}", EXPECTED, "type one of these, as in 0.1")


def _short(value: object) -> object:
    return value if len(str(value)) <= LONGEST else f"{str(value)[:LONGEST]}…"
