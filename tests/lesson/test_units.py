"""Numbers as people read them."""

import doctest
import re

import pytest

from helpers.lesson import units
from helpers.lesson.units import si, three_digits

UNITS = [
    (3.35e12, "B/s", "3.35 TB/s"),
    (989.4e12, "FLOP/s", "989 TFLOP/s"),
    (999.9e9, "FLOP/s", "1.00 TFLOP/s"),
    (1978.9e12, "FLOP/s", "1.98 PFLOP/s"),
    (7, "B", "7 B"),
    (0, "s", "0 s"),
    (1234.0, "s", "1,234 s"),
    (2.5e-9, "s", "2.50 ns"),
    (3e-12, "s", "0.00 ns"),
    (4e22, "FLOP", "40,000,000 PFLOP"),
]


@pytest.mark.parametrize(("value", "unit", "told"), UNITS)
def test_units(value, unit, told):
    assert si(value, unit) == told
    assert re.fullmatch(r"[\d.,]+", three_digits(max(value, 0.01)))


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(units).failed == 0
