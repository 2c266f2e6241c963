"""A fill-in tells right, wrong, raising and unwritten apart, and never stops a chapter."""

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson import fill_in
from helpers.lesson.fill_in import filled

CASES = {(1024, 4): 512, (1024, 8): 1024}


def unwritten(weights, bits):
    raise NotImplementedError("write it here")


def broken(weights, bits):
    return weights / 0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda weights, bits: weights * bits // 8, "✓ <lambda>(1,024, 4) = 512\n✓ <lambda>(1,024, 8) = 1,024\n"),
        (lambda weights, bits: weights, "✗ <lambda>(1,024, 4) gives 1,024, expected 512\n"),
        (lambda weights, bits: None, "gives None, expected 512"),
        (lambda weights, bits: ..., "gives Ellipsis, expected 512"),
        (lambda weights: weights, "✗ <lambda>(1,024, 4) raises TypeError"),
        (unwritten, "○ unwritten(1,024, 4): nothing is written yet"),
        (lambda weights, bits: unwritten(weights, bits), "unwritten, which it calls, is not written yet"),
        (broken, "raises ZeroDivisionError: division by zero"),
    ],
)
def test_each_outcome_has_its_sentence(function, said, capsys):
    fill_in(function, CASES)
    assert said in capsys.readouterr().out


def test_a_code_is_shown_as_the_reader_typed_it(capsys):
    fill_in(lambda code, bits: code >> bits, {(0x2E66, 8): 0x2E}, hex_first=True)
    assert capsys.readouterr().out == "✓ <lambda>(0x2e66, 8) = 46\n"


def test_a_distance_is_allowed_where_one_is_given(capsys):
    fill_in(lambda x: 1.01 * x, {(1.0,): 1.0})
    fill_in(lambda x: 1.01 * x, {(1.0,): 1.0}, rel=0.02)
    assert capsys.readouterr().out == "✗ <lambda>(1) gives 1.01, expected 1\n✓ <lambda>(1) = 1.01\n"


def test_a_fill_in_without_cases_is_refused():
    with pytest.raises(WorkbookError, match="without cases"):
        fill_in(unwritten, {})


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda weights, bits: weights * bits // 8, 512),
        (lambda weights, bits: "512", None),
        (lambda weights, bits: True, None),
        (lambda weights, bits: float("nan"), None),
        (unwritten, None),
        (broken, None),
    ],
)
def test_what_a_fill_in_gives_is_a_number_or_nothing(function, given):
    assert filled(function, 1024, 4) == given


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((2, 4.0), "✓ pair(1) = (2, 4)"),
        ((2, 5), "✗ pair(1) gives (2, 5), expected (2, 4)"),
        ((2,), "gives (2), expected (2, 4)"),
        (2, "gives 2, expected (2, 4)"),
        ((2, None), "raises TypeError"),
    ],
)
def test_a_result_may_be_several_numbers(given, said, capsys):
    def pair(_):
        return given

    fill_in(pair, {(1,): (2, 4)})
    assert said in capsys.readouterr().out
