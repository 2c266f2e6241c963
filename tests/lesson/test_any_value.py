"""Where a learner's value meets a truth: whatever either is, the answer is a line or a WorkbookError's sentence."""

from __future__ import annotations

import itertools
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.lesson import check, check_speed, claims, compare, fill_in, notes, predict
from helpers.lesson.fill_in import filled
from helpers.lesson.predict import UNITS, Prediction

SEVEN = [7, 7.0, np.int64(7), np.float32(7), np.array(7), np.array([7.0]), torch.tensor(7), torch.tensor([7.0])]
SEVEN += [torch.tensor(7, dtype=torch.bfloat16), Fraction(7), Decimal(7), [7], torch.nn.Parameter(torch.tensor(7.0))]
NUMBERS = [0, -0.0, -1, 0.5, 1e-9, 5e-324, -5e-324, 1e308, -1e308, 10**308, 10**400, -(10**400), 10**5000]
NUMBERS += [math.nan, math.inf, -math.inf, np.float32("nan"), np.float64("inf"), np.int8(-1), Fraction(1, 10**400)]
NUMBERS += [Fraction(10**400), Decimal("NaN"), Decimal("sNaN"), Decimal("1e999"), torch.tensor(0.0), np.array([[0]])]
OTHERS = [None, True, False, np.True_, torch.tensor(False), "", "seven", "7", "holds ", b"7", 3j, np.complex64(3), ...]
OTHERS += [[], (), [1, 2], {}, {"x": 1}, {7}, np.array([1, 2]), torch.ones(3), torch.ones(1, device="meta"), object]
OTHERS += [np.datetime64("2026-01-01"), np.timedelta64(3, "s"), np.array(["a"]), iter([1]), len, NotImplemented]
VALUES = [*SEVEN, *NUMBERS, *OTHERS]
CLAIM = "attn-heavy"

CALLS = {
    "predict": lambda value: predict("the peak", guess=value),
    "a prediction made by hand": lambda value: compare(7, you=Prediction("the peak", "GiB", value)),
    "compare, its truth": lambda value: compare(value, you=predict("the peak", guess=3)),
    "compare, a prediction": lambda value: compare(7, "%", you=value, formula=value),
    "check, measured": lambda value: check("peak", measured=value, predicted=7, rel=0.1),
    "check, predicted": lambda value: check("peak", measured=7, predicted=value, rel=0.1, unit="ms"),
    "check_speed": lambda value: check_speed("copy", 7, value, rel=0.1, unit="GB/s", again=lambda: (value, value)),
    "read": lambda value: claims.read(CLAIM, guess=value),
    "trial, the verdict": lambda value: claims.trial(CLAIM, {"a model": False}, you=value),
    "trial, the evidence": lambda value: claims.trial(CLAIM, value),
    "trial, a case": lambda value: claims.trial(CLAIM, {"a model": value, "another": False}),
    "fill_in": lambda value: fill_in(lambda _: value, {(1,): 7}),
    "fill_in, two numbers": lambda value: fill_in(lambda _: value, {(1,): (7, 7)}),
    "fill_in, twice": lambda value: fill_in(lambda _: (value, value), {(1,): (7, 7)}, rel=0.01),
    "fill_in, its truth": lambda value: fill_in(lambda _: 7, {(1,): value}),
    "fill_in, one of its truths": lambda value: fill_in(lambda _: (7, 7), {(1,): (7, value)}),
    "filled": lambda value: compare(7, yours=filled(lambda: value)),
}


@pytest.fixture(autouse=True)
def noted(monkeypatch, tmp_path):
    """The folder of a workspace in which every note is taken."""
    monkeypatch.setattr(notes, "_place", lambda: (tmp_path, "02"))
    return tmp_path


@pytest.fixture
def answered(capsys, monkeypatch):
    """`answered(call, *values)`: the lines that it prints or shows, or the sentence with which it refuses."""
    monkeypatch.setattr(claims, "_show", print)

    def answer(call, *values):
        try:
            call(*values)
        except (WorkbookError, AssertionError) as refusal:
            return str(refusal)
        return capsys.readouterr().out

    return answer


@pytest.mark.parametrize("name", CALLS)
def test_any_value_gets_an_answer_or_a_sentence(name, answered, noted):
    for value in VALUES:
        said = answered(CALLS[name], value)
        assert len(said.split()) > 2, (name, value)
        assert max(map(len, said.splitlines())) < 400, (name, value)
        assert "not noted" not in said, (name, value, said)


@pytest.mark.parametrize("unit", ["bytes", "GB", "%", "ms"])
def test_any_guess_meets_any_truth(unit, answered, noted):
    assert unit in UNITS
    for truth, guess in itertools.product([*SEVEN[:3], *NUMBERS, *OTHERS[:3]], [*SEVEN[:3], *NUMBERS, *OTHERS[:3]]):
        said = answered(lambda truth, guess: compare(truth, unit, you=predict("it", unit, guess=guess)), truth, guess)
        assert said, (truth, guess)
        assert "not noted" not in said, (truth, guess, said)


@pytest.mark.parametrize("seven", SEVEN, ids=lambda value: f"{type(value).__module__}.{type(value).__name__}")
def test_a_number_is_a_number_whatever_library_made_it(seven, answered):
    assert predict("the peak", guess=seven).guess == filled(lambda: seven) == 7
    assert type(predict("the peak", guess=seven).guess) in (int, float)
    assert answered(CALLS["fill_in"], seven).endswith("✓ <lambda>(1) = 7\n")
    assert answered(CALLS["check, measured"], seven).startswith("✓ peak: predicted 7 B, measured 7 B")


def test_what_was_refused_is_noted_as_no_guess(noted, capsys):
    for value in ["seven", -1, math.nan, math.inf, True, 10**400]:
        compare(7, you=predict("the peak", guess=value))
    for verdict in ["hold", True, ""]:
        claims.trial(CLAIM, {"a model": False}, you=claims.read(CLAIM, guess=verdict))
    assert notes.read(noted) == {"chapters": {}, "labs": {}}
    assert not (noted / notes.FILE).exists()
