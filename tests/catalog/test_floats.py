"""Codes of floating-point formats: against torch's own casts, the standards' tables, and themselves."""

import math
import struct
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.catalog.floats import FLOAT_FORMATS, float_format
from helpers.catalog.formats import NUMBER_FORMATS

BY_TORCH = {
    "fp16": (torch.float16, torch.uint16),
    "bf16": (torch.bfloat16, torch.uint16),
    "fp8-e4m3": (torch.float8_e4m3fn, torch.uint8),
    "fp8-e5m2": (torch.float8_e5m2, torch.uint8),
    "e8m0": (torch.float8_e8m0fnu, torch.uint8),
}
# Bits, largest, smallest normal, smallest subnormal, spacing at 1, finite codes: the tables of IEEE 754-2019 (3.6),
# of the OCP 8-bit specification (table 1) and of the OCP MX specification (5.3.3, 5.4.1).
TABLE = {
    "fp32": (32, (2 - 2.0**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2.0**-23, 2**32 - 2**24),
    "tf32": (19, (2 - 2.0**-10) * 2.0**127, 2.0**-126, 2.0**-136, 2.0**-10, 2**19 - 2**11),
    "bf16": (16, (2 - 2.0**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7, 2**16 - 2**8),
    "fp16": (16, 65504, 2.0**-14, 2.0**-24, 2.0**-10, 63488),
    "fp8-e4m3": (8, 448, 2.0**-6, 2.0**-9, 2.0**-3, 254),
    "fp8-e5m2": (8, 57344, 2.0**-14, 2.0**-16, 2.0**-2, 248),
    "fp4-e2m1": (4, 6, 1, 0.5, 0.5, 16),
    "e8m0": (8, 2.0**127, 2.0**-127, 2.0**-127, 1, 255),
}
SMALL = [name for name, known in FLOAT_FORMATS.items() if known.bits <= 8]
SIGNED = [name for name in FLOAT_FORMATS if name != "e8m0"]


def same(a, b):
    """The same number, NaN and the sign of zero included."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def of_torch(values, name):
    """Codes that torch's cast gives FP32 values."""
    dtype, unsigned = BY_TORCH[name]
    return torch.tensor(values, dtype=torch.float32).to(dtype).view(unsigned).tolist()


@pytest.mark.parametrize("name", FLOAT_FORMATS)
def test_the_standards_tables(name):
    fmt = float_format(name)
    sizes = (fmt.bits, fmt.largest, fmt.smallest_normal, fmt.smallest_subnormal, fmt.epsilon, fmt.finite_codes)
    assert sizes == TABLE[name]
    if name in NUMBER_FORMATS and name != "tf32":  # which is stored in 32
        assert fmt.bits == NUMBER_FORMATS[name].value_bits


@pytest.mark.parametrize("name", SMALL)
def test_each_code_comes_back(name):
    fmt = float_format(name)
    numbers = [fmt.decode(code) for code in range(fmt.codes)]
    assert sum(map(math.isfinite, numbers)) == fmt.finite_codes
    back = [fmt.encode(number) for number in numbers]
    assert all(
        code == other or math.isnan(number) for code, (number, other) in enumerate(zip(numbers, back, strict=True))
    )
    assert ["".join(fmt.bits_of(code)) for code in range(fmt.codes)] == [
        f"{code:0{fmt.bits}b}" for code in range(fmt.codes)
    ]


def test_the_values_of_e2m1_are_the_specifications():
    fmt = float_format("fp4-e2m1")
    assert [fmt.decode(code) for code in range(8)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert [fmt.decode(code) for code in range(8, 16)] == [0, -0.5, -1, -1.5, -2, -3, -4, -6]


@pytest.mark.parametrize("name", BY_TORCH)
def test_decoding_is_torchs(name):
    dtype, unsigned = BY_TORCH[name]
    fmt = float_format(name)
    codes = range(0, fmt.codes, 1 if fmt.bits == 8 else 37)
    theirs = torch.tensor(codes, dtype=torch.int32).to(unsigned).view(dtype).float().tolist()
    assert all(same(fmt.decode(code), value) for code, value in zip(codes, theirs, strict=True))


@pytest.mark.parametrize("name", BY_TORCH)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=20, max_size=40))
@settings(max_examples=15, deadline=None)
def test_encoding_is_torchs_up_to_the_largest(name, values):
    fmt = float_format(name)
    rounding = [fmt.decode(code) for code in range(0, fmt.largest_code, 1 + fmt.largest_code // 64)]
    halves = [(value + fmt.neighbours(value)[1]) / 2 for value in rounding]
    scaled = [value * 2.0**-power for value in values for power in (0, 100, 130)]
    inside = [value for value in (*values, *halves, *scaled) if abs(value) <= fmt.largest]
    singles = [struct.unpack("f", struct.pack("f", value))[0] for value in inside]
    if name == "e8m0":  # torch drops the sign, and sends all of FP32's subnormals above 2**-127 up
        singles = [abs(value) for value in singles if abs(value) >= 2.0**-126]
    assert [fmt.encode(value) for value in singles] == of_torch(singles, name)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8-e5m2"])
def test_what_is_too_large_becomes_infinite_as_in_torch(name):
    fmt = float_format(name)
    below = fmt.neighbours(fmt.largest)[0]
    half = fmt.largest + (fmt.largest - below) / 2  # even is the one above, which is infinity
    values = [half, math.nextafter(half, 0), -half, math.inf, -math.inf, 3e38]
    assert fmt.encode(math.nextafter(half, 0)) == fmt.largest_code
    assert fmt.decode(fmt.encode(half)) == math.inf
    assert [fmt.encode(value) for value in values[2:]] == of_torch(values[2:], name)


def test_overflow_without_infinity():
    e4m3, fp4, scale = (float_format(name) for name in ("fp8-e4m3", "fp4-e2m1", "e8m0"))
    assert e4m3.decode(e4m3.encode(464)) == 448  # halfway to 480, whose code would be odd
    assert math.isnan(e4m3.decode(e4m3.encode(464.001)))
    assert math.isnan(e4m3.decode(e4m3.encode(-math.inf)))
    assert e4m3.decode(e4m3.encode(-math.inf, "saturate")) == -448
    assert [fp4.decode(fp4.encode(value)) for value in (7, math.inf, -7, math.nan)] == [6, 6, -6, 6]
    assert [math.isnan(scale.decode(scale.encode(value))) for value in (2.0**128, -1, math.nan, 0)] == [1, 1, 1, 0]


@pytest.mark.parametrize("name", SIGNED)
@given(value=st.floats(allow_nan=False, allow_infinity=False), power=st.integers(-1100, 0))
@settings(max_examples=15, deadline=None)
def test_a_number_is_stored_as_a_nearest_neighbour(name, value, power):
    fmt, exact = float_format(name), Fraction(math.ldexp(value, power))
    stored, (below, above) = Fraction(fmt.decode(fmt.encode(exact, "saturate"))), fmt.neighbours(exact)
    assert below < exact < above
    assert abs(stored) <= fmt.largest
    near = [Fraction(side) for side in (below, above) if math.isfinite(side)]
    assert stored == exact or abs(stored - exact) == min(abs(side - exact) for side in near)
    assert fmt.encode(-exact, "saturate") == fmt.encode(exact, "saturate") ^ (fmt.codes // 2) or not exact


@pytest.mark.parametrize("name", SMALL)
def test_neighbours_are_next_codes(name):
    fmt = float_format(name)
    ladder = sorted({value for code in range(fmt.codes) if math.isfinite(value := fmt.decode(code))})
    for below, value, above in zip([-math.inf, *ladder], ladder, [*ladder[1:], math.inf], strict=False):
        assert fmt.neighbours(value) == (below, above)
    assert fmt.neighbours(math.inf) == (fmt.largest, math.inf)
    assert fmt.neighbours(-math.inf) == (-math.inf, ladder[0]) == fmt.neighbours(ladder[0] - 1)
    assert fmt.neighbours(1e300) == (fmt.largest, math.inf)
    assert all(map(math.isnan, fmt.neighbours(math.nan)))


def test_zero_keeps_its_sign_and_what_underflows_too():
    fp16 = float_format("fp16")
    assert fp16.encode(-0.0) == 0x8000 == fp16.encode(-(2.0**-26))
    assert fp16.encode(2.0**-25) == 0  # halfway between 0 and the smallest: even is 0
    assert fp16.encode(math.nextafter(2.0**-25, 1)) == 1


def test_numbers_that_no_python_float_holds():
    fp16 = float_format("fp16")
    for huge in (10**400, Fraction(10**400)):
        assert [fp16.encode(huge), fp16.encode(-huge)] == [fp16.encode(math.inf), fp16.encode(-math.inf)]
        assert fp16.neighbours(huge) == (65504, math.inf)
    assert fp16.encode(Fraction(-1, 10**400)) == 0x8000


@pytest.mark.parametrize("name", ["fp16", "fp32"])
def test_encoding_is_the_structs(name):
    letter, unsigned = {"fp16": "eH", "fp32": "fI"}[name]
    for value in (0.1, -1 / 3, 6e-8, 65504.0, 1e-6, 2049.0, math.pi):
        assert float_format(name).encode(value) == struct.unpack(unsigned, struct.pack(letter, value))[0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: float_format("fp8"), "did you mean 'fp8-e4m3'?"),
        (lambda: float_format(None), "unknown float format None"),
        (lambda: float_format("fp16").encode("0.1"), "value is '0.1'"),
        (lambda: float_format("fp16").encode(True), "value is True"),
        (lambda: float_format("fp16").encode(1.0, "wrap"), "unknown overflow 'wrap'"),
        (lambda: float_format("fp16").decode(65536), "code is 65536"),
        (lambda: float_format("fp16").decode(1.0), "code is 1.0"),
        (lambda: float_format("fp16").bits_of(-1), "code is -1"),
        (lambda: float_format("fp16").neighbours(None), "value is None"),
    ],
)
def test_bad_input(call, says):
    with pytest.raises(WorkbookError) as raised:
        call()
    assert says in str(raised.value)
