"""Questions put to a learner's answer, apart from what is made of it: the two halves of every check.

    # The asking cell draws inputs, and calls.
    cases = [(rng.randint(1, 99), 16) for _ in range(4)]
    found = [asked(blocks_needed, *case) for case in cases]      # prints: blocks_needed(17, 16) -> 2

    # The check cells weigh what came back; nothing of the learner's is called there.
    for (tokens, size), blocks in zip(cases, found):
        assert blocks == -(-tokens // size), f"{tokens} tokens: {blocks} blocks are not enough"

In a notebook both halves run one after the other. The grader runs the first in the learner's kernel, where no check
and no right answer ever is, and writes down what was answered; the second runs where nothing of the learner's is, and
there `asked` calls nothing and gives what was written down. `reference` is for what a check measures itself to compare
with: it is done once for a whole class.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from ..catalog.errors import WorkbookError
from .plain import from_json, shown, to_json
from .tracebacks import NONE

MIME = "application/vnd.workbook.rows+json"  # what the grader takes out of a kernel
MOST_RAISED, MOST_S = 2, 3.0  # errors of one asking cell, if they took as long: failed ranks take seconds to come back
_USES = {"__enter__", "__call__", "__torch_dispatch__"}
NO_ANSWER = "there is no answer"  # where fewer were written down than are asked for
Run = Callable[[Callable[[], str]], str]
Row = dict[str, str]  # {"answer": JSON} or {"raised": why}


def _here(ask: Callable[[], str]) -> str:
    return ask()


class _Desk:
    """What `asked` and `reference` write down, or give back, in this process."""

    def __init__(self) -> None:
        self.writes: list[Row] | None = None
        self.blames: dict[str, Any] | None = None
        self.run: Run = _here
        self.before_each: Callable[[], object] = list
        self.lab: Callable[[], bytes] = bytes
        self.answers: deque[Row] | None = None
        self.failed: list[str] = []
        self.failing_s = 0.0
        self.references: deque[Row] | None = None
        self.referred: list[Row] = []


_desk = _Desk()


def asked(
    answer: Callable, *arguments: Any, case: str = "", tensors: bool = False, without: Sequence[Callable] = ()
) -> Any:
    """What `answer(*arguments)` returned, as plain data: tuples and arrays are lists, numbers are Python's own.

    With `tensors` what is a tensor stays one. One line says what was asked, in the words of `case` where the arguments
    say too much. While it answers, nobody can call the functions in `without`, or make an object of its classes: what
    is to be worked out is neither measured nor looked up. WorkbookError where somebody does, and where it returned
    something that is no plain data; an error of the answer's own is raised as it is.

    >>> asked(divmod, 17, 16)
    divmod(17, 16) -> [1, 1]
    [1, 1]
    """
    question = case or f"{_name(answer)}({', '.join(shown(one, 60) for one in arguments)})"
    if _desk.answers is not None:
        return _given_back(_desk.answers, question)
    if _desk.writes is not None:
        ask = partial(_answered, answer, arguments, tensors, without)
        return _written_down(_desk.writes, question, ask, _name(answer))
    try:
        found = from_json(_answered(answer, arguments, tensors, without))
    except Exception as error:
        error.add_note(f"asked: {question}")
        raise
    print(f"{question} -> {shown(found)}")
    return found


def reference(worked: Callable, *arguments: Any) -> Any:
    """What `worked(*arguments)` returned, as plain data: our own measurement, to compare an answer with.

    It is done once for a class: the same inputs give the same, as far as the check can tell.
    """
    if _desk.references:
        return from_json(_desk.references.popleft()["answer"])
    text = to_json(worked(*arguments), tensors=True)
    _desk.referred.append({"answer": text})
    return from_json(text)


class Unanswered:
    """In the place of an answer that never came: whoever compares it, counts with it or shows it learns why."""

    def __init__(self, why: str) -> None:
        object.__setattr__(self, "_why", why)

    def _tell(self, *_: object, **__: object) -> Any:
        raise AssertionError(object.__getattribute__(self, "_why"))

    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __eq__ = __ne__ = _tell
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _tell
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __abs__ = __round__ = __int__ = __float__ = _tell
    __rfloordiv__ = __rmod__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = __pos__ = __and__ = __rand__ = _tell
    __or__ = __ror__ = __xor__ = __rxor__ = __index__ = __format__ = __repr__ = __str__ = __call__ = __hash__ = _tell
    __class__ = property(_tell)  # type: ignore[assignment]  # for isinstance


@contextlib.contextmanager
def writing(
    blames: dict[str, Any],
    *,
    run: Run = _here,
    before_each: Callable[[], object] = list,
    lab: Callable[[], bytes] = bytes,
) -> Iterator[list[Row]]:
    """While it lasts `asked` writes down: the rows. An error is blamed on the last line of the namespace `blames`.

    Before each question `before_each` is called, and the answer by `run`; `lab` is what `lab()` gives meanwhile.
    """
    rows: list[Row] = []
    _desk.writes, _desk.blames, _desk.answers = rows, blames, None
    _desk.run, _desk.before_each, _desk.lab = run, before_each, lab
    _desk.failing_s = 0.0
    try:
        yield rows
    finally:
        _desk.writes = _desk.blames = None


def lab() -> bytes | None:
    """Where a grader asks just now, the lab's own code and a guard's `read`, marshalled; None otherwise.

    What is asked on ranks is watched there too, and there too the lab's own code may do what an answer may not.
    """
    return _desk.lab() if _desk.blames is not None else None


def give_back(rows: list[Row]) -> None:
    """From now on `asked` calls nothing, and gives these answers in order."""
    _desk.answers, _desk.failed = deque(rows), [row["raised"] for row in rows if "raised" in row]


def absent(name: str) -> Callable:
    """In the place of an answer, where only what it said is known."""

    def answer(*_: object, **__: object) -> None:
        raise AssertionError(f"{name} was called outside of `asked`")

    answer.__name__ = name
    return answer


def refer(rows: list[Row]) -> None:
    """The next calls of `reference` give these; when they are used up it measures again."""
    _desk.references, _desk.referred = deque(rows), []


def left() -> int:
    """How many answers nobody has asked for."""
    return len(_desk.answers or ())


def publish_references() -> None:
    """Show the grader what `reference` has measured since `refer`."""
    from IPython.display import display

    display({MIME: json.dumps(_desk.referred)}, raw=True)
    _desk.referred = []


def _answered(answer: Callable, arguments: tuple, tensors: bool, without: Sequence[Callable]) -> str:
    with contextlib.ExitStack() as refused:
        for known in without:
            refused.enter_context(_refused(known, _name(answer)))
        found = answer(*arguments)
        try:
            return to_json(found, tensors)  # a generator answers only now
        except WorkbookError:
            raise
        except (TypeError, ValueError) as error:
            what = f"{_name(answer)} returned {type(found).__name__} that is no plain data ({error})"
            expected = "numbers, texts, lists, dicts, sets, tensors"
            raise WorkbookError(what, expected, "return what was asked for") from None


def _refused(known: Callable, name: str) -> contextlib.AbstractContextManager:
    """While it lasts nobody can make an object of the class `known`, or call the function, by whatever name."""
    from unittest import mock

    if not isinstance(known, type):
        return _silenced(known)

    def refuse(*_: object, **__: object) -> None:
        what = f"{name} has an object of {known.__name__} made, which knows the answer"
        raise WorkbookError(what, "an answer that is worked out from the arguments alone", "write the formula")

    stack = contextlib.ExitStack()
    for method in {"__init__"} | (
        _USES & vars(known).keys()
    ):  # one that was made before, or copied, is of no use either
        stack.enter_context(mock.patch.object(known, method, refuse))
    return stack


@contextlib.contextmanager
def _silenced(function: Any) -> Iterator[None]:
    code, function.__code__ = function.__code__, _stand_in.__code__
    try:
        yield
    finally:
        function.__code__ = code


def _stand_in(*_: object, **__: object) -> None:
    """Runs as the code of another function, among whose globals nothing of this module is."""
    from helpers.catalog.errors import WorkbookError

    what, expected = "a function is called that knows the answer", "lines of your own"
    raise WorkbookError(what, expected, "write what it does")


def _written_down(rows: list[Row], question: str, ask: Callable[[], str], name: str) -> Any:
    failed = [row["raised"] for row in rows if "raised" in row]
    if len(failed) >= MOST_RAISED and _desk.failing_s >= MOST_S:
        return Unanswered(_not_asked(question, failed))
    _desk.before_each()
    start = time.monotonic()
    _desk.writes = None  # an answer that asks something itself writes nothing down
    try:
        text = _desk.run(ask)
    except Exception as error:
        words, line = _words(error), _line(error.__traceback__)
        error.__traceback__ = None  # which leads to whoever asks
        why = NONE if "NoneType" in words and not line else f"{name} raised {words}{line}"
        rows.append({"raised": why[:2000]})
        _desk.failing_s += time.monotonic() - start
        return Unanswered(why)
    finally:
        _desk.writes = rows
    rows.append({"answer": text})
    return from_json(text)


def _given_back(rows: deque[Row], question: str) -> Any:
    if not rows and len(_desk.failed) >= MOST_RAISED:
        return Unanswered(_not_asked(question, _desk.failed))
    if not rows:
        return Unanswered(f"{question}: {NO_ANSWER}")
    row = rows.popleft()
    if "raised" in row:
        return Unanswered(f"{question}: {row['raised']}")
    try:
        return from_json(row.get("answer", ""))
    except ValueError as error:
        return Unanswered(f"{question}: {error}")


def _not_asked(question: str, failed: list[str]) -> str:
    return f"{question}: not asked, after {len(failed)} errors; the last: {failed[-1]}"


def words_of(error: BaseException) -> str:
    """What an error says, '' where asking it raises another."""
    try:
        return str(error)
    except Exception:
        return ""


def _words(error: Exception) -> str:
    words = words_of(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _line(trace: TracebackType | None) -> str:
    """Where the learner's own code was last, as far as the traceback says."""
    found = ""
    while trace is not None:
        if trace.tb_frame.f_globals is _desk.blames:
            source = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()
            found = f"\n  at line {trace.tb_lineno}: {source}" if source else ""
        trace = trace.tb_next
    return found


def _name(answer: Callable) -> str:
    return getattr(answer, "__name__", type(answer).__name__)
