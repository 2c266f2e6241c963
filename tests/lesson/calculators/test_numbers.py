"""A number in every format: as torch stores it, told truly, drawn bit by bit; typed as readers type."""

import json
import math
import shlex
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import WorkbookError
from helpers.cli import main
from helpers.lesson.calculators import number_answer, numbers
from helpers.lesson.calculators.blocks import BLOCKS
from helpers.lesson.calculators.stored import FORMATS, PLAIN
from helpers.lesson.calculators.typed import typed_number
from helpers.lesson.drawing.marks import Box, TextMark, text_width
from helpers.techniques.quantization.blocks import ENCODERS, Blocks
from tests.lesson.calculators.live import live

TYPED = [
    ("0.1", Fraction(1, 10)),
    (" .5 ", Fraction(1, 2)),
    ("1e-8", Fraction(1, 10**8)),
    ("-2**-24", Fraction(-1, 2**24)),
    ("2^-24", Fraction(1, 2**24)),
    ("−65_504", Fraction(-65504)),
    ("1/3", Fraction(1, 3)),
    ("1.5*2**-14", Fraction(3, 2**15)),
    ("+3E2", Fraction(300)),
    ("-inf", -math.inf),
    ("Infinity", math.inf),
    (7, Fraction(7)),
    (0.1, Fraction(0.1)),
]
UNKNOWN = ["", "abc", "1/0", "0**-1", "2**", "1e", "--1", "1e-8**2", "2**9999", "1+1", "0x10", "٣", "1" * 61, "in"]


@pytest.mark.parametrize(("text", "value"), TYPED)
def test_what_is_typed_is_taken_exactly(text, value):
    assert typed_number(text) == value


def test_nan_and_minus_zero_are_floats():
    assert math.isnan(typed_number("NaN"))
    assert math.copysign(1, typed_number("-0")) == -1


@pytest.mark.parametrize("text", [*UNKNOWN, None, True, [1], 1j], ids=repr)
def test_what_is_no_number_says_what_is(text):
    with pytest.raises(WorkbookError) as refused:
        typed_number(text)
    assert refused.value.what.startswith("unknown number ")
    assert "2**-24" in refused.value.expected


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1e-400", "2**1024", "2**-1100"])
def test_what_no_float_holds_is_refused(text):
    with pytest.raises(WorkbookError, match="beyond a Python float"):
        typed_number(text)


# What happens, and a number of the sentence, by hand.
HAPPENS = [
    ("0.1", "fp16", 0.0999755859375, "rounds", "the nearer one, 0.0999755859, is stored"),
    ("2049", "fp16", 2048, "rounds", "just in the middle: the even one"),
    ("65504", "fp16", 65504, "exact", "the numbers beside it are 65472 and inf"),
    ("65519", "fp16", 65504, "rounds", "by less than half a step"),
    ("-65519", "fp16", -65504, "rounds", "by less than half a step"),
    ("65520", "fp16", math.inf, "overflows to inf", "inf is stored"),
    ("2**-24", "fp16", 2**-24, "exact, subnormal", "1 of 11 significant bits is left"),
    ("3e-6", "fp16", 50 * 2**-24, "rounds, subnormal", "6 of 11 significant bits are left"),
    ("2**-14", "fp16", 2**-14, "exact", "the numbers beside it are 6.09755516e-05"),
    ("2**-25", "fp16", 0, "becomes 0", "smallest number above 0 is 5.96046448e-08"),
    (
        "1e-8",
        "bf16",
        torch.tensor(1e-8).bfloat16().item(),
        "rounds",
        "It becomes 0 in fp16, fp8-e4m3, fp8-e5m2 and fp4-e2m1.",
    ),
    ("464", "fp8-e4m3", 448, "rounds", "by less than half a step"),
    ("500", "fp8-e4m3", math.nan, "overflows to NaN", "there is no infinity"),
    ("inf", "fp8-e4m3", math.nan, "overflows to NaN", "there is no infinity"),
    ("-inf", "bf16", -math.inf, "infinite", "exponent bits are all ones"),
    ("7.5", "fp4-e2m1", 6, "saturates", "it has no code for more"),
    ("500", "mxfp8", 448, "saturates", "values of a block are clamped to it"),
    ("nan", "fp4-e2m1", 6, "becomes largest", "no code for NaN"),
    ("nan", "fp16", math.nan, "NaN", "exponent bits are all ones"),
    ("-0", "fp32", 0, "exact", "holds it exactly"),
]


@pytest.mark.parametrize(("text", "name", "stored", "happened", "says"), HAPPENS, ids=str)
def test_what_happens_is_told(text, name, stored, happened, says):
    answer = number_answer(text, name)
    row = answer.row
    assert row.value == stored or (math.isnan(row.value) and math.isnan(stored))
    assert (row.happened, says in answer.sentence) == (happened, True), answer.sentence
    assert happened in answer.title
    assert answer.figures["formats"][name]["happened"] == happened


def test_saturation_is_asked_for():
    answer = number_answer("70000", "fp16", "saturate")
    assert (answer.row.value, answer.row.happened) == (65504, "saturates")
    assert "overflow is set to saturate" in answer.sentence
    assert [row.value for row in answer.rows[4:6]] == [448, 57344]


def test_a_tenth_is_not_the_float_beside_it():
    errors = [number_answer(value, "fp32").row.error for value in ("0.1", 0.1)]
    assert errors == [float(Fraction(13421773, 2**27) * 10 - 1), float(Fraction(13421773, 2**27) / Fraction(0.1) - 1)]
    assert errors[0] != errors[1]


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mxfp8"])
@pytest.mark.parametrize(("value", "ratio"), [(0.1, 1), (0.3, 2), (-0.7, 16), (5e-4, 10), (37.5, 4), (1.0, 1024)])
def test_blocks_are_those_of_quantization(name, value, ratio):
    if name not in ENCODERS:
        pytest.skip(f"{name} is not among the formats of blocks")
    single = torch.tensor(value).item()
    block = torch.zeros(1, BLOCKS[name].values)
    block[0, :2] = torch.tensor([single, abs(single) * ratio])
    stored = Blocks.of(block, name).values[0, 0].item()
    assert number_answer(single, name, block_largest=ratio).row.value == pytest.approx(stored, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(value=st.floats(allow_nan=False), name=st.sampled_from(FORMATS), power=st.integers(0, 20))
def test_every_row_is_true_of_its_numbers(value, name, power):
    """The bits are the code's, the error is that of the two numbers, and the stored one is beside the given one."""
    answer = number_answer(value, name, block_largest=2**power)
    for row in answer.rows:
        assert "".join(bits for what, bits in row.bits if what != "scale") == "".join(row.fmt.bits_of(row.code))
        if row.error is not None:
            assert row.value == pytest.approx(value * (1 + row.error), rel=1e-12, abs=1e-12 * abs(value) or 1e-320)
        (below, above), exact = row.neighbours, row.value == row.given
        beside = row.value in (below, above) or exact
        assert beside or row.happened in ("saturates", "becomes largest", "overflows to NaN", "infinite"), row
    assert json.loads(json.dumps(answer.figures, allow_nan=False))
    assert max(map(len, answer.formula)) <= 96
    for card in answer.cards:
        assert all(0 <= mark.y < card.height for mark in card.marks if isinstance(mark, TextMark))


@pytest.mark.parametrize("value", ["0.1", "-1e-40", "nan"])
def test_every_bit_is_a_box_and_no_column_covers_another(value):
    card = number_answer(value, "fp32").cards[0]
    bits = [mark for mark in card.marks if isinstance(mark, Box) and mark.kind == "bit"]
    rows = number_answer(value, "fp32").rows
    assert len(bits) == sum(len(bits) for row in rows for _, bits in row.bits)
    assert [bit.part for bit in bits[:32]] == ["sign"] + ["exponent"] * 8 + ["mantissa"] * 23
    for y in {mark.y for mark in card.marks if isinstance(mark, TextMark) and mark.anchor != "middle"}:
        spans = sorted(_span(mark) for mark in card.marks if isinstance(mark, TextMark) and mark.y == y)
        assert all(end <= start + 1 for (_, end), (start, _) in pairwise(spans))
    boxes = {mark.y + 14: mark.x + mark.width for mark in bits}  # the last one of each row
    stored = [mark for mark in card.marks if isinstance(mark, TextMark) and mark.x == 540 and mark.y in boxes]
    assert all(_span(mark)[0] > boxes[mark.y] for mark in stored)


def _span(text):
    width = text_width(text.text, text.size, text.bold)
    left = text.x - {"start": 0, "middle": width / 2, "end": width}[text.anchor]
    return left, left + width


def test_infinities_have_no_block():
    for value in ("inf", "nan"):
        answer = number_answer(value, "mxfp4")
        assert [row.name for row in answer.rows] == list(PLAIN)
        assert "each implementation decides" in answer.sentence
        assert len(answer.cards) == 1


def test_the_block_s_largest_matters_to_blocks_alone():
    calculator = numbers()
    controls, *_, output = live(calculator)
    for name in ("fp16", "mxfp4", "fp16"):
        controls["format"].value = name
        shown = {key for key, control in controls.items() if control.layout.visibility != "hidden"}
        assert shown == {"value", "format", "block_largest" if name in BLOCKS else "overflow"}
    controls["value"].value = "1.25 * 2**-3"  # not among its choices
    assert "0.15625 in fp16" not in output.value
    assert "1.25 * 2**-3 in fp16: 0.15625 (exact)" in output.value
    controls["value"].value = "a tenth"
    assert 'class="error"' in output.value
    assert "unknown number &#x27;a tenth&#x27;" in output.value


@pytest.mark.parametrize("value", ["0.1", "-1e-8", "-inf", "nan", "2**-24", "- 1/3", "−7"])
def test_the_command_says_the_same(value, capsys):
    answer = number_answer(value, "mxfp4", "saturate", 16)
    assert main(shlex.split(answer.command)[1:]) == 0
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["number", "ten"], "unknown number 'ten'"),
        (["number", "0.1", "--format", "fp8"], "did you mean 'fp8-e4m3'?"),
        (["number", "0.1", "--overflow", "wrap"], "unknown overflow 'wrap'"),
        (["number", "0.1", "--block-largest", "0"], "block_largest is 0"),
        (["number"], "the following arguments are required: VALUE"),
    ],
)
def test_bad_input_at_the_command(argv, says, capsys):
    assert main(argv) == 2
    assert says in capsys.readouterr().err


def test_negative_numbers_need_nothing_more_at_the_command(capsys):
    for value in ("-0.1", "-1e-8", "-inf", "-.5"):
        assert main(["number", value, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == number_answer(value).figures
