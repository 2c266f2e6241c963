"""What a learner sees of an error in a lab: the sentence of a failed check, or the lines of their own that raised.

    a check that fails                       its message alone
    an error of an answer, while it is asked the learner's own cells, down to the line of theirs that raised
    an error anywhere else                   as IPython shows it

IPython shows the source around each line of a traceback, and the source of a check computes what is asked for. The
error itself stays as it is: who runs a notebook (nbclient, nbval, nbgrader) reads the same name and the same message.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import TracebackType
from typing import Any

NONE = (
    "An answer is None, or has None in it, where a value is asked for: "
    "does your function end in `return`, whichever way it goes?"
)
OURS = (
    "A cell of the lab raised this, not a line of yours. "
    "Have all cells above it run, and does your function return what is asked for?"
)


def hide_checks() -> None:
    """In a notebook: from now on errors of a lab are shown so. Elsewhere, and a second time, nothing is done."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    shell = get_ipython()
    if shell is not None and "showtraceback" not in vars(shell):
        shell.showtraceback = partial(_show, shell, shell.showtraceback)


def in_words(kind: str, message: str) -> str:
    """What a cell of the lab says by raising an error of the class `kind`, none of whose lines are the learner's.

    >>> in_words("AssertionError", "17 tokens: 1 blocks are not enough")
    '17 tokens: 1 blocks are not enough'
    """
    if kind == "AssertionError":
        return message or "an assertion of the check failed"
    return NONE if "NoneType" in message else f"{kind}: {message}".removesuffix(": ")


@lru_cache
def is_hidden(source: str) -> bool:
    """Whether a cell of a lab asks, checks, or is there for those that do. A kernel sees no metadata, only sources.

    >>> is_hidden("assert yours == 3, 'three blocks'"), is_hidden("yours = blocks(17)\\nassert yours == 3")
    (True, False)
    """
    if source.startswith(("# apparatus: ", "# reference: ")) or 'draw("lab-' in source:
        return True
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return False
    defines = any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in nodes)
    return not defines and any(isinstance(node, ast.Assert) and node.msg is not None for node in nodes)


def _show(shell: Any, show: Callable[..., None], exc_tuple: tuple | None = None, *more: Any, **options: Any) -> None:
    """In the place of `shell.showtraceback`, which is `show`."""
    kind, error, trace = exc_tuple or sys.exc_info()
    related = [] if error is None else _related(error)
    traces = [trace, *(one.__traceback__ for one in related)]
    if not _is_a_lab(shell) or not any(is_hidden(_source(one)) for trace in traces for one in _in_cells(trace, shell)):
        show(exc_tuple, *more, **options)
        return
    for one in related:
        one.__traceback__ = _learners(one.__traceback__, shell)
    kept = _learners(trace, shell)
    if kept is not None or hasattr(error, "_render_traceback_"):
        show((kind, error, kept), **(options | {"tb_offset": 0}))  # IPython's own first frame is gone
        return
    said = in_words(kind.__name__, str(error))
    shell._showtraceback(kind, error, [said if kind is AssertionError or said is NONE else f"{said}\n{OURS}"])


def _is_a_lab(shell: Any) -> bool:
    """Labs import `asked`; chapters, and whoever uses this package for something else, do not."""
    return getattr(shell.user_ns.get("asked"), "__module__", "") == f"{__package__}.asking"


def _related(error: BaseException) -> list[BaseException]:
    """The error, those that it came of, and those that are grouped in it: IPython shows them all."""
    found = [error]
    for one in found:  # which grows
        grouped = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        parts = [part for part in (one.__cause__, one.__context__, *grouped) if part is not None]
        found += [part for part in parts if all(part is not known for known in found)]
    return found


def _in_cells(trace: TracebackType | None, shell: Any) -> Iterator[TracebackType]:
    """The part of a traceback that is in the notebook's cells."""
    while trace is not None:
        if trace.tb_frame.f_globals is shell.user_ns:
            yield trace
        trace = trace.tb_next


def _learners(trace: TracebackType | None, shell: Any) -> TracebackType | None:
    """The part of it that may be shown, None where there is none."""
    kept = None
    for one in [one for one in _in_cells(trace, shell) if not is_hidden(_source(one))][::-1]:
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def _source(trace: TracebackType) -> str:
    return "".join(linecache.getlines(trace.tb_frame.f_code.co_filename))
