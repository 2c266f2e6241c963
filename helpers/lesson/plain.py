"""Answers as plain data: numbers, texts, lists, dicts, sets and tensors, in one form whatever library they came from.

What an answer was is written down as JSON, and read where nothing of the learner's runs. So `np.int64(3)`, a tensor of
one value and `3` are the same answer, as are a tuple and a list; an object whose comparisons lie is no answer at all.
"""

from __future__ import annotations

import base64
import json
import math
import operator
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from decimal import Decimal
from itertools import islice
from numbers import Integral, Real
from typing import Any

MOST_ITEMS, MOST_CHARS = 100_000, 400_000
# Of tensors: torch has others, and ends Python where some of them are read from bytes.
_DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
_DTYPES |= {"complex64", "complex128", "float8_e4m3fn", "float8_e5m2"}


def to_json(value: Any, tensors: bool = False) -> str:
    """`value` as one line of JSON. TypeError for what is no plain data, ValueError for what is too long.

    Tensors and arrays are lists, unless `tensors` keeps their type and shape.

    >>> to_json({"kept": (3, 4.5)})
    '{"dict": [["kept", [3, 4.5]]]}'
    """
    try:
        text = json.dumps(encode(value, tensors), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if len(text) > MOST_CHARS:
        raise ValueError(f"it takes {len(text):,} characters, {MOST_CHARS:,} at most are read")
    return text


def from_json(text: str) -> Any:
    """What `to_json` wrote down. ValueError for anything else."""
    if len(text) > MOST_CHARS:
        raise ValueError(f"{len(text):,} characters, {MOST_CHARS:,} at most")
    try:
        return decode(json.loads(text))
    except (RecursionError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise ValueError(f"no recorded answer ({type(error).__name__})") from None


def encode(value: Any, tensors: bool = False) -> Any:
    """`value` in what JSON has; what it has not is an object of one entry that names its kind."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int.__index__(operator.index(value))  # of a class of its own, too, and whatever that says of itself
    if isinstance(value, Real):
        return _encode_float(float(value))
    if _is_array(value):
        return _encode_array(value) if tensors and value.ndim else encode(value.tolist())
    if _is_numpys_bool(value):
        return bool(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {"dict": [[one.name, encode(getattr(value, one.name), tensors)] for one in fields(value)]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key), encode(one, tensors)] for key, one in _few(value.items())]}
    if isinstance(value, Set):
        return {"set": sorted((encode(one) for one in _few(value)), key=json.dumps)}
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | memoryview):
        return [encode(one, tensors) for one in _few(value)]
    raise TypeError(f"{type(value).__name__} is no number, text, list, dict, set or tensor")


def decode(found: Any) -> Any:
    """The value that `encode` made this of: tuples have become lists, arrays tensors."""
    if isinstance(found, list):
        return [decode(one) for one in found]
    if not isinstance(found, dict):
        return found
    ((kind, content),) = (pair for pair in found.items() if pair[0] != "shape")
    if kind == "dict":
        return {_key(decode(key)): decode(one) for key, one in content}
    if kind == "set":
        return {_key(decode(one)) for one in content}
    if kind == "float":
        return float(content)
    return _decode_tensor(kind, content, found["shape"])


def shown(value: Any, most: int = 100) -> str:
    """`value` on one line of about `most` characters, for a person: tensors by their type and shape.

    >>> shown({"parts": [1, 2], "share": 0.123456789})
    "{'parts': [1, 2], 'share': 0.123457}"
    """
    text = _shown(value)
    return text if len(text) <= most else f"{text[: most - 2]} …"


def as_number(value: Any) -> int | float | None:
    """`value` as Python's own number: of NumPy, a fraction, a tensor or a list of one value; None for all else.

    Text and booleans are no numbers. What no float can hold is infinite.

    >>> as_number(0.25), as_number([512]), as_number(10**400), as_number("512"), as_number(True)
    (0.25, 512, inf, None, None)
    """
    try:
        items = items_of(value)
        number: Any = items[0] if items and len(items) == 1 else value
        if isinstance(number, bool) or not isinstance(number, Real | Decimal):
            return None
        try:
            size = float(number)
        except OverflowError:
            return math.inf if number > 0 else -math.inf  # type: ignore[operator]  # both kinds compare with an int
        return operator.index(number) if isinstance(number, Integral) else size
    except Exception:  # a span of time, a tensor without data, somebody's own class
        return None


def items_of(value: Any) -> list | None:
    """What a list, a tuple, an array or a tensor holds, as a list; None for all else, and for too many."""
    if isinstance(value, list | tuple):
        return list(value)
    if not _is_array(value) or math.prod(value.shape) > MOST_ITEMS:
        return None
    try:
        return value.reshape(-1).tolist()
    except Exception:  # a tensor without data
        return None


def _shown(value: Any) -> str:
    try:
        return _described(value)
    except Exception as error:  # of a number with too many digits, or of somebody's own class
        return f"{type(value).__name__} that cannot be shown ({type(error).__name__})"


def _described(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(one)}" for key, one in islice(value.items(), 50)) + "}"
    if isinstance(value, list | tuple):
        parts = ", ".join(_shown(one) for one in islice(value, 50))
        return f"[{parts}]" if isinstance(value, list) else f"({parts})"
    if _is_array(value):
        return f"{str(value.dtype).removeprefix('torch.')} {' × '.join(map(str, value.shape)) or 'value'}"
    return repr(value)


def _key(value: Any) -> Any:
    """Hashable: a list that was a tuple once is a tuple again."""
    return tuple(map(_key, value)) if isinstance(value, list) else value


def _few(values: Iterable) -> list:
    found = list(islice(values, MOST_ITEMS + 1))
    if len(found) > MOST_ITEMS:
        raise ValueError(f"it has more than {MOST_ITEMS:,} items")
    return found


def _encode_float(value: float) -> Any:
    return value if math.isfinite(value) else {"float": repr(value)}


def _is_array(value: Any) -> bool:
    """A tensor or an array; neither library is imported for the question."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return bool(torch and isinstance(value, torch.Tensor)) or bool(numpy and isinstance(value, numpy.ndarray))


def _is_numpys_bool(value: Any) -> bool:
    """`np.bool_`, the one scalar that is neither Python's own nor among `numbers`."""
    numpy = sys.modules.get("numpy")
    return bool(numpy and isinstance(value, numpy.bool_))


def _encode_array(value: Any) -> Any:
    import torch

    tensor = torch.as_tensor(value).detach().cpu()
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _DTYPES:
        raise TypeError(f"a tensor of {kind} is not among {', '.join(sorted(_DTYPES))}")
    flat = tensor.contiguous().flatten()
    if flat.numel() * flat.element_size() > MOST_CHARS:
        raise ValueError(f"a tensor of {flat.numel():,} values is too large to be written down")
    data = base64.b64encode(bytes(flat.view(torch.uint8).tolist() if flat.numel() else b"")).decode()
    return {kind: data, "shape": list(tensor.shape)}


def _decode_tensor(kind: str, data: str, shape: list[int]) -> Any:
    if kind not in _DTYPES:
        raise ValueError(f"{kind!r} is no kind of recorded answer")
    import torch

    dtype = getattr(torch, kind)
    raw = bytearray(base64.b64decode(data))
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)
