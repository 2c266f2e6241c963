"""What an answer is, written down: round trips, one form for all libraries, and what is no plain data."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, deque, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.lesson import plain
from helpers.lesson.plain import MOST_CHARS, MOST_ITEMS, decode, encode, from_json, shown, to_json

DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]
KEYS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    KEYS | st.sets(st.text()),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), one, max_size=4),
    max_leaves=12,
)


@dataclass(frozen=True)
class Split:
    """A dataclass of an answer's own."""

    kept: tuple[int, ...]
    freed: float = 0.5


class Lies(int):
    """A number that says what it likes about itself."""

    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = lambda self, other: True
    __hash__ = int.__hash__
    __index__ = __int__ = __neg__ = __add__ = __radd__ = lambda self, *_: 7
    __repr__ = __str__ = __format__ = lambda self, *_: "42"


class LiesInWords(str):
    """A text that shows another."""

    __str__ = __repr__ = lambda self: "42"
    __eq__ = __ne__ = lambda self, other: True
    __hash__ = str.__hash__


def there_and_back(value: object, tensors: bool = False) -> object:
    return from_json(to_json(value, tensors))


@given(VALUES)
def test_plain_data_comes_back_as_it_was(value):
    assert there_and_back(value) == value
    assert repr(there_and_back(value)) == repr(value) or isinstance(value, dict | set | list)
    assert len(to_json(value).splitlines()) == 1


@given(st.sampled_from(["float32", "float16", "bfloat16", "int64", "uint8", "bool"]), st.lists(st.integers(0, 4)))
def test_a_tensor_comes_back_bit_by_bit(dtype, shape):
    shape = [*shape, 3][:3]
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    back = there_and_back({"of": [tensor]}, tensors=True)["of"][0]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


def test_what_a_tensor_is_not_is_kept_too():
    odd = torch.tensor([float("nan"), float("inf"), -0.0], requires_grad=True)
    assert there_and_back(odd, tensors=True).tolist()[1:] == [float("inf"), -0.0]
    assert there_and_back(torch.ones(4, 6).t()[::2], tensors=True).shape == (3, 4)
    assert there_and_back(torch.tensor(3), tensors=True) == 3


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        (torch.tensor([1.5, 2]), [1.5, 2.0]),
        (torch.Size([2, 3]), [2, 3]),
        ((1, (2, 3)), [1, [2, 3]]),
        (deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ((one for one in "ab"), ["a", "b"]),
        ({"a": 1}.keys(), {"a"}),
        ({"a": 1}.values(), [1]),
        (frozenset({2, 1}), {1, 2}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(a=1), {"a": 1}),
        (namedtuple("Pair", "x y")(1, 2), [1, 2]),
        (Split((1, 2)), {"kept": [1, 2], "freed": 0.5}),
        (Fraction(1, 2), 0.5),
        (True, True),
        (10**60, 10**60),
        ({(1, 2): 3}, {(1, 2): 3}),
        ({np.int64(1): np.int64(2)}, {1: 2}),
        ("\ud800\x00é", "\ud800\x00é"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_same_answer_is_the_same_whatever_wrote_it(value, same):
    back = there_and_back(value)
    assert back == same
    assert type(back) is type(same)


@pytest.mark.parametrize("value", [3.0, np.float64(3), torch.tensor(3.0)])
def test_a_float_is_no_whole_number(value):
    assert type(there_and_back(value)) is float


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [np.float64("nan")]])
def test_what_is_no_number_stays_what_it_is(value):
    assert repr(there_and_back(value)) == repr([float("nan")] if isinstance(value, list) else value)


@pytest.mark.parametrize(
    "lie",
    [Lies(3), [Lies(3)], {"n": Lies(3)}, LiesInWords("yes")],
    ids=["a number", "in a list", "in a dict", "a text"],
)
def test_an_object_that_lies_is_what_it_holds(lie):
    back = there_and_back([lie])[0]
    (one,) = back.values() if isinstance(back, dict) else back if isinstance(back, list) else [back]
    assert type(one) in (int, str)
    assert one in (3, "yes")


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, dtype=torch.uint16),  # of a type that is not read again
        object(),
        print,
        Split,
        b"bytes",
        bytearray(2),
        memoryview(b"x"),
        3j,
        Decimal(1),
        [object()],
        {1: print},
    ],
)
def test_what_is_no_plain_data_is_told(value):
    with pytest.raises(TypeError, match=r"is no number, text, list, dict, set or tensor|a tensor of uint16"):
        to_json(value, tensors=True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (DEEP, "nested too deeply"),
        (count(), f"more than {MOST_ITEMS:,} items"),
        (list(range(MOST_ITEMS + 1)), f"more than {MOST_ITEMS:,} items"),
        ("x" * MOST_CHARS, f"{MOST_CHARS + 2:,} characters"),
        (torch.zeros(MOST_CHARS), "too large to be written down"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_too_long_is_told_and_never_written(value, words):
    with pytest.raises(ValueError, match=words):
        to_json(value, tensors=True)


def test_itself_within_itself_is_told():
    plan: list = []
    plan.append(plan)
    with pytest.raises(ValueError, match="nested too deeply"):
        to_json(plan)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{not json",
        "9" * 5000,
        "[" * 100_000,
        '{"a": 1}',
        "{}",
        '{"dict": 3}',
        '{"dict": [[[1]]]}',
        '{"dict": [[{"dict": []}, 1]]}',
        '{"set": 3}',
        '{"set": [{"set": []}]}',
        '{"float": "many"}',
        '{"float": []}',
        '{"float32": "AAAA"}',
        '{"float32": "AAAA", "shape": [3]}',
        '{"float32": "AAAAAA==", "shape": ["1"]}',
        '{"float32": 7, "shape": [1]}',
        '{"float32": "!", "shape": [1]}',
        '{"load": "AAAAAA==", "shape": [1]}',
        '{"dict": [], "set": []}',
        '{"qint8": "AAAAAA==", "shape": [4]}',
        '{"float32": "AAAAAA==", "shape": [1000000000000000000000000000]}',
        '{"float32": "AAAAAA==", "shape": [-5]}',
        '{"float32": "AAAAAA==", "shape": null}',
        f'"{"x" * MOST_CHARS}"',
    ],
    ids=lambda text: text[:30],
)
def test_what_to_json_never_wrote_is_a_value_error(text):
    with pytest.raises(ValueError):
        from_json(text)


def test_nothing_is_imported_to_look_for_tensors(monkeypatch):
    monkeypatch.setattr(plain.sys, "modules", {})
    assert decode(encode([1, (2,)])) == [1, [2]]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, (2.0, "a")], "[1, (2, 'a')]"),
        ({"share": 1 / 3, 2: None}, "{'share': 0.333333, 2: None}"),
        (torch.zeros(2, 3), "float32 2 × 3"),
        (np.zeros(4, dtype="int8"), "int8 4"),
        (torch.tensor(1.0), "float32 value"),
        ("x" * 200, f"'{'x' * 97} …"),
        (list(range(1000)), f"{str(list(range(50)))[:98]} …"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_value_is_shown_on_one_short_line(value, words):
    assert shown(value) == words


def test_json_is_json():
    assert json.loads(to_json({"a": (float("inf"), {1})})) == {"dict": [["a", [{"float": "inf"}, {"set": [1]}]]]}
