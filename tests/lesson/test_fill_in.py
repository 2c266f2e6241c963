"""A fill-in tells right, wrong, raising and unwritten apart, and never stops a chapter."""

import sys

import numpy as np
import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.lesson import fill_in
from helpers.lesson.fill_in import filled

CASES = {(1024, 4): 512, (1024, 8): 1024}


def unwritten(weights, bits):
    raise NotImplementedError("write it here")


def below(weights, bits):
    raise NotImplementedError("write it here")
    return weights * bits // 8


def given_below(weights, bits):
    raise NotImplementedError("write it here")
    return size  # noqa: F821


def in_a_loop(*numbers):
    for number in numbers:
        raise NotImplementedError("write it here")
        size = number
    return size


def broken(weights, bits):
    return weights / 0


def interrupted(weights, bits):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda weights, bits: weights * bits // 8, "✓ <lambda>(1,024, 4) = 512\n✓ <lambda>(1,024, 8) = 1,024\n"),
        (lambda weights, bits: weights + 1, "✗ <lambda>(1,024, 4) gives 1,025, expected 512\n"),
        (lambda weights, bits: None, "gives None, expected 512. A function gives None where it ends without `return`"),
        (lambda weights, bits: "512", "gives '512', expected 512. That is text"),
        (lambda weights, bits: 512.0000004, "gives 512.0000004, expected 512\n"),
        (lambda weights, bits: float("inf"), "gives inf, expected 512\n"),
        (lambda weights, bits: [1, 2], "gives (1, 2), expected 512\n"),
        (lambda weights, bits: sys.exit(), "calls exit(), which would end the notebook"),
        (lambda weights, bits: exit(), "calls exit(), which would end the notebook"),
        (lambda weights, bits: ..., "gives Ellipsis, expected 512"),
        (lambda weights: weights, "✗ <lambda>(1,024, 4) raises TypeError"),
        (unwritten, "○ unwritten(1,024, 4): nothing is written yet"),
        (lambda weights, bits: unwritten(weights, bits), "unwritten, which it calls, is not written yet"),
        (below, "○ below(1,024, 4): your lines stand below the `raise` line, where nothing runs. Delete that line."),
        (lambda weights, bits: below(weights, bits), "below the `raise` line of below, which it calls, where"),
        (given_below, "○ given_below(1,024, 4): nothing is written yet"),
        (in_a_loop, "○ in_a_loop(1,024, 4): your lines stand below the `raise` line"),
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
        ((2, None), "gives (2, None), expected (2, 4)"),
        ([2, 4], "✓ pair(1) = (2, 4)"),
        (np.array([2.0, 4.0]), "✓ pair(1) = (2, 4)"),
        (torch.tensor([2, 4]), "✓ pair(1) = (2, 4)"),
        ((2048, 4096), "gives (2,048, 4,096), expected (2, 4). That is 1,024 times too much: bytes in place of KiB?"),
        ((2, 8), "expected (2, 4). That is 2 times too much"),
    ],
)
def test_a_result_may_be_several_numbers(given, said, capsys):
    def pair(_):
        return given

    fill_in(pair, {(1,): (2, 4)})
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (2, "2 times too much: is something counted twice?"),
        (1 / 2, "2 times too little: is one of two parts missing?"),
        (8, "8 times too much: bits in place of bytes?"),
        (1 / 8, "8 times too little: bytes in place of bits?"),
        (1e3, "1,000 times too much: ms in place of s, or bytes in place of kB?"),
        (1 / 1024, "1,024 times too little: KiB in place of bytes?"),
        (2**20, "1,048,576 times too much: bytes in place of MiB?"),
        (2**30, "1,073,741,824 times too much: bytes in place of GiB?"),
        (1e-6, "1,000,000 times too little: s in place of µs, or MB in place of bytes?"),
        (1e9, "1,000,000,000 times too much: ns in place of s, or bytes in place of GB?"),
        (3, ""),
        (0, ""),
    ],
)
def test_a_usual_factor_is_named(times, said, capsys):
    fill_in(lambda: 30 * times, {(): 30})
    assert capsys.readouterr().out.partition("expected 30")[2] == (f". That is {said}\n" if said else "\n")


def test_stopping_the_cell_stops_it():
    with pytest.raises(KeyboardInterrupt):
        fill_in(interrupted, CASES)
    with pytest.raises(KeyboardInterrupt):
        filled(interrupted, 1, 2)


def test_jupyters_exit_is_back_after_a_case(monkeypatch):
    monkeypatch.setitem(globals(), "exit", "Jupyter's own, which ends the kernel")
    fill_in(lambda weights, bits: exit(), CASES)
    assert exit == "Jupyter's own, which ends the kernel"


SLIPS = {"The gradient is missing.": lambda count: 12 * count, "Bits.": lambda count: 128 * count}


@pytest.mark.parametrize(
    ("each", "said"), [(12, "expected 16,000. The gradient is missing."), (128, "Bits."), (32, "counted twice")]
)
def test_a_slip_that_people_make_here_has_its_sentence(each, said, capsys):
    fill_in(lambda count: each * count, {(1000,): 16_000}, slips=SLIPS)
    assert said in capsys.readouterr().out


PAIR_SLIPS = {
    "The first is doubled.": lambda count: (2 * count, None),
    "The second lacks one.": lambda count: (None, count - 1),
}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((20, 10), "The first is doubled."),
        ((10, 9), "The second lacks one."),
        ((20, 9), "The first is doubled."),
        ((10, 8), "expected (10, 10)\n"),  # the first is right, and no slip is known for the second
    ],
)
def test_a_slip_of_one_number_among_several_is_told_by_that_number(capsys, given, said):
    fill_in(lambda count: given, {(10,): (10, 10)}, slips=PAIR_SLIPS)
    assert said in capsys.readouterr().out


def test_all_cases_are_shown_and_one_hint_is_enough(capsys):
    fill_in(lambda n: 2 * n if n > 1 else n, {(1,): 1, (2,): 2, (3,): 3, (4,): 8})
    said = capsys.readouterr().out.splitlines()
    assert [line[0] for line in said] == list("✓✗✗✓")
    assert "2 times too much" in said[1]
    assert said[2].endswith("gives 6, expected 3")


def test_a_mistake_of_a_function_that_another_fill_in_found_is_told_where_it_is_called(capsys):
    cells = {}  # a notebook's names are global
    exec("def of_a_layer(n):\n    return n\n\ndef of_a_model(n):\n    return 3 * of_a_layer(n)", cells)
    for right in (False, True):
        fill_in(cells["of_a_layer"], {(1,): 1 if right else 2})
        fill_in(cells["of_a_model"], {(1,): 3 if right else 6})
        assert ("of_a_layer, which it calls, was not right yet" in capsys.readouterr().out) is not right
