"""A gap of a few lines in a chapter, tried at once: nothing is graded, and nothing stops."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import isclose, isfinite
from types import FrameType
from typing import Any

from ..catalog.errors import WorkbookError
from .asking import words_of
from .plain import as_number, items_of, shown

Result = float | tuple[float, ...]
Hints = list[tuple[Any, str]] | None  # what a mistake gives, and its sentence; None: say nothing
_MISTAKEN: set[str] = set()  # functions of the reader's that were wrong when they were last tried
MOST_SHOWN = 20  # numbers of one result
# What was probably given for what, by the factor by which the result is then too large; the other way round too small.
MIXED_UP = {
    8: (("bits", "bytes"),),
    1_000: (("ms", "s"), ("bytes", "kB")),
    2**10: (("bytes", "KiB"),),
    10**6: (("µs", "s"), ("bytes", "MB")),
    2**20: (("bytes", "MiB"),),
    10**9: (("ns", "s"), ("bytes", "GB")),
    2**30: (("bytes", "GiB"),),
}


def fill_in(
    function: Callable,
    cases: Mapping[tuple, Result],
    rel: float = 0.0,
    hex_first: bool = False,
    slips: Mapping[str, Callable] | None = None,
) -> None:
    """Call what the reader wrote with each case's arguments, and print what it gave beside what is right.

    `cases` is arguments to result, a number or a tuple of numbers; `rel` is the distance allowed, as a fraction of the
    result. `hex_first` shows the first argument, a code, as 0x2e66. Numbers of NumPy and PyTorch are numbers, a list or
    an array of as many numbers is a tuple. Never raises for what the reader wrote, `exit()` included: an unwritten gap
    says so in a line, and a usual factor is named. All cases are tried, until one raises. `slips` are mistakes that
    people make: a sentence, and what gives their result from a case's arguments. In a tuple None stands for any number.
    A mistake in a function that this one calls, which another fill-in found, is told first.

    >>> fill_in(lambda weights, bits: weights * bits // 8, {(1024, 4): 512})
    ✓ <lambda>(1,024, 4) = 512
    >>> fill_in(lambda weights, bits: weights * bits, {(1024, 4): 512})
    ✗ <lambda>(1,024, 4) gives 4,096, expected 512. That is 8 times too much: bits in place of bytes?
    """
    if not cases:
        raise WorkbookError("a fill-in without cases", "arguments and their results", "pass {(1024, 4): 512}")
    inherited, outcomes = _mistaken_of(function), list[bool | None]()
    for arguments, expected in cases.items():
        if not _numbers(expected, expected):
            what, wanted = f"the result of a case is {shown(expected, 40)}", "a number, or a tuple of numbers"
            raise WorkbookError(what, wanted, "pass {(1024, 4): 512}")
        texts = [hex(arguments[0]), *map(_shown, arguments[1:])] if hex_first else map(_shown, arguments)
        call = f"{getattr(function, '__name__', 'your function')}({', '.join(texts)})"
        known = [(slip(*arguments), sentence) for sentence, slip in (slips or {}).items()]
        hints = None if inherited or not all(outcomes) else known  # one hint is enough
        outcomes.append(_tried(function, arguments, expected, rel, call, hints))
        if outcomes[-1] is None:
            break
    if inherited and not all(outcomes):
        print(f"  {inherited}, which it calls, was not right yet: mend that first, and run its cell again.")
    _note(function, all(outcomes))


def filled(function: Callable, *arguments: float) -> float | None:
    """What the reader's function gives, for `compare`; None while its gap is open, or where it gives no number.

    >>> filled(lambda weights, bits: weights * bits // 8, 1024, 4)
    512
    """
    try:
        given = as_number(_called(function, arguments))
    except KeyboardInterrupt:
        raise
    except BaseException:  # the reader's: fill_in has told of it
        return None
    return given if given is not None and isfinite(given) else None


def _note(function: Callable, right: bool) -> None:
    name = getattr(function, "__name__", "")
    _MISTAKEN.discard(name) if right else _MISTAKEN.add(name)


def _mistaken_of(function: Callable) -> str:
    """The first function that this one names and that another fill-in found mistaken; "" without one."""
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    own = getattr(function, "__name__", "")
    return next((name for name in names if name in _MISTAKEN and name != own), "")


def _is_slip(found: list[float], slipped: Any, rel: float) -> bool:
    """Whether the reader's numbers are those of a mistake, of which None may stand for any number."""
    wanted = slipped if isinstance(slipped, tuple) else (slipped,)
    pairs = zip(found, wanted, strict=False)
    return bool(found) and all(value is None or isclose(number, value, rel_tol=rel) for number, value in pairs)


def _tried(function: Callable, arguments: tuple, expected: Result, rel: float, call: str, hints: Hints) -> bool | None:
    """Whether the result is right; None where there is none."""
    try:
        given = _called(function, arguments)
    except KeyboardInterrupt:
        raise
    except NotImplementedError as gap:
        print(f"○ {call}: {_unwritten(gap)}")
    except SystemExit:
        print(f"✗ {call} calls exit(), which would end the notebook: give the result with `return`")
    except BaseException as problem:  # the reader's: of any kind
        words = words_of(problem)
        print(f"✗ {call} raises {type(problem).__name__}{words and f': {words}'}")
    else:
        return _judged(given, expected, rel, call, hints)
    return None


def _called(function: Callable, arguments: tuple) -> Any:
    """What it returns. Jupyter's own `exit` would end the kernel a moment later: here it raises SystemExit."""
    names = getattr(function, "__globals__", {})
    own = {name: names[name] for name in ("exit", "quit") if name in names}
    names.update(dict.fromkeys(own, sys.exit))
    try:
        return function(*arguments)
    finally:
        names.update(own)


def _judged(given: Any, expected: Result, rel: float, call: str, hints: Hints) -> bool:
    found, wanted = _numbers(given, expected), _numbers(expected, expected)
    wrong = [pair for pair in zip(found, wanted, strict=False) if not isclose(*pair, rel_tol=rel)]
    if found and not wrong:
        print(f"✓ {call} = {_shown(given)}")
        return True
    texts = [_shown(given), _shown(expected)]
    for digits in (9, 12, 17):  # 4,000.0004 is not shown as 4,000 beside an expected 4,000
        texts = texts if texts[0] != texts[1] else [_shown(given, digits), _shown(expected, digits)]
    slip = next((f". {said}" for slipped, said in hints or () if _is_slip(found, slipped, rel)), "")
    hint = "" if hints is None else slip or _hint(given, wrong, rel)
    print(f"✗ {call} gives {texts[0]}, expected {texts[1]}{hint}")
    return False


def _numbers(value: Any, like: Result) -> list[float]:
    """The number in `value`, or as many as the tuple `like` has; none at all where it holds something else."""
    items = items_of(value) if isinstance(like, tuple) else [value]
    numbers = [as_number(item) for item in items or ()]
    as_many = len(numbers) == (len(like) if isinstance(like, tuple) else 1)
    return [number for number in numbers if number is not None] if as_many and None not in numbers else []


def _hint(given: Any, wrong: list[tuple[float, float]], rel: float) -> str:
    """What the usual mistake is that gives this; '' where none is known."""
    if given is None:
        return ". A function gives None where it ends without `return`"
    if isinstance(given, str):
        return ". That is text: leave out the quotation marks, or the formatting"
    for factor, (order, told) in product((2, *MIXED_UP), ((1, "much"), (-1, "little"))):
        if wrong and all(_is_times(factor, pair[::-order], rel) for pair in wrong):
            return f". That is {factor:,} times too {told}: {_cause(factor, order)}"
    return ""


def _is_times(factor: int, pair: tuple[float, ...], rel: float) -> bool:
    less, more = pair
    return less != 0 and isclose(float(more), factor * float(less), rel_tol=max(min(rel, 0.01), 1e-9))


def _cause(factor: int, order: int) -> str:
    if factor == 2:
        return "is something counted twice?" if order == 1 else "is one of two parts missing?"
    return ", or ".join(" in place of ".join(pair[::order]) for pair in MIXED_UP[factor]) + "?"


def _unwritten(gap: NotImplementedError) -> str:
    """Whose gap it is: that of the function called, or of an earlier one which it calls; and what is wrong with it."""
    frames = list(traceback.walk_tb(gap.__traceback__))[2:]  # the first two are our own calls
    if not frames:
        return "nothing is written yet. Write your lines in place of the `raise` line above, or go on without."
    frame, line = frames[-1]
    whose = "" if len(frames) == 1 else f" of {frame.f_code.co_name}, which it calls"
    if _has_lines_below(frame, line):
        return f"your lines stand below the `raise` line{whose}, where nothing runs. Delete that line."
    if whose:
        return f"{frame.f_code.co_name}, which it calls, is not written yet. Fill that gap, or go on without."
    return "nothing is written yet. Write your lines in place of the `raise` line above, or go on without."


def _has_lines_below(frame: FrameType, line: int) -> bool:
    """Whether a reader's lines stand below a `raise`: all but a given `return` of names that the gap was to make."""
    below = list(_below(frame, line))
    if not below or len(below) > 1 or not isinstance(below[0], ast.Return):
        return bool(below)
    known = frame.f_locals.keys() | frame.f_globals.keys() | vars(builtins).keys()
    return all(node.id in known for node in ast.walk(below[0]) if isinstance(node, ast.Name))


def _below(frame: FrameType, line: int) -> Iterator[ast.stmt]:
    """The statements after the `raise` in this line, in its own block."""
    with contextlib.suppress(OSError, SyntaxError):  # a function without a source
        tree = ast.parse(textwrap.dedent(inspect.getsource(frame.f_code)))
        at = line - frame.f_code.co_firstlineno + 1
        for block in (getattr(node, name, None) for node in ast.walk(tree) for name in ("body", "orelse", "finalbody")):
            numbers = [one.lineno for one in block] if isinstance(block, list) else []
            if block and at in numbers:
                yield from block[numbers.index(at) + 1 :]


def _shown(value: object, digits: int = 6) -> str:
    items, number = items_of(value), as_number(value)
    if isinstance(value, tuple) or (items is not None and number is None and len(items) <= MOST_SHOWN):
        return f"({', '.join(_shown(item, digits) for item in items or ())})"
    if number is None:
        return shown(value, 60)
    whole = abs(number) < 1e18 and number == int(number)
    return f"{int(number):,}" if whole else f"{number:,.{digits}g}"
