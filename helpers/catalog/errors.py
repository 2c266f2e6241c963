"""The one error a reader meets: what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Protocol, TypeVar

from .. import PACKAGE
from .extras import extra_with
from .logs import quiet

_OURS = re.compile(r"\bhelpers(?=[./][a-z])")  # which has another name in a wheel


class WorkbookError(ValueError):
    """Bad input, told in three parts so that nobody has to read a traceback.

    `what` names the offending value, `expected` what is allowed, `do` the next thing to type.

    >>> print(WorkbookError("micro_batch is 0", "a whole number from 1 up", "pass micro_batch=1"))
    micro_batch is 0
      expected: a whole number from 1 up
      do: pass micro_batch=1
    """

    def __init__(self, what: str, expected: str, do: str) -> None:
        what, expected, do = (_OURS.sub(PACKAGE, text) for text in (what, expected, do))
        self.what, self.expected, self.do = what, expected, do
        super().__init__(f"{what}\n  expected: {expected}\n  do: {do}")

    def _render_traceback_(self) -> list[str]:
        """IPython prints this instead of a traceback: the three parts are the whole story."""
        return [f"{type(self).__name__}: {self}"]


def unknown_name(kind: str, name: object, allowed: Iterable[str]) -> WorkbookError:
    """The error for a name that is not in `allowed`; suggests one that begins so, else the nearest.

    >>> print(unknown_name("precision", "bf-16", ["bf16", "fp32"]).do)
    did you mean 'bf16'?
    """
    names, wanted = list(allowed), str(name).lower().lstrip("-")
    bare = {known.lstrip("-"): known for known in names}  # else the dashes alone make any two flags alike
    longer = sorted((known for known in bare if wanted and known.startswith(wanted)), key=len)
    close = longer or difflib.get_close_matches(wanted, bare, n=1, cutoff=0.4)
    do = f"did you mean {bare[close[0]]!r}?" if close else f"pick one of the {len(names)} names above"
    return WorkbookError(f"unknown {kind} {name!r}", ", ".join(names), do)


def require_whole(
    name: str,
    value: object,
    least: int = 1,
    most: int | None = None,
    *,
    unit: str = "",
    expected: str = "",
    do: str = "",
) -> int:
    """`value` if it is an int from `least` to `most`, and no bool; else a WorkbookError that calls it `name`.

    >>> require_whole("micro_batch", 8)
    8
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        counted = f"a whole number of {unit}" if unit else "a whole number"
        reach = f"{counted} from {least} {'up' if most is None else f'to {most:,}'}"
        raise WorkbookError(f"{name} is {value!r}", expected or reach, do or f"pass {name} as an int, {least} or more")
    return value


def require_number(name: str, value: object, *, below: float | None = None, expected: str, do: str) -> float:
    """`value` if it is an int or a float above 0, and below `below`; else a WorkbookError that calls it `name`."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
    if not number > 0 or (below is not None and number >= below):
        raise WorkbookError(f"{name} is {value!r}", expected, do)
    return number


def require_name(kind: str, name: object, allowed: Collection[str]) -> str:
    """`name` if it is a string among `allowed`; else the error of `unknown_name`."""
    if not isinstance(name, str) or name not in allowed:
        raise unknown_name(kind, name, allowed)
    return name


class Named(Protocol):
    """An entry of the catalogue."""

    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


Entry = TypeVar("Entry", bound=Named)


def require_entry(kind: str, name: object, entries: Mapping[str, Entry]) -> Entry:
    """The entry that has `name` as its name or among its aliases, in any case; else the error of `unknown_name`."""
    wanted = name.strip().lower() if isinstance(name, str) else None
    for entry in entries.values():
        if wanted == entry.name or wanted in entry.aliases:
            return entry
    raise unknown_name(kind, name, [n for entry in entries.values() for n in (entry.name, *entry.aliases)])


def require_package(name: str, user: str, do: str = "") -> ModuleType:
    """The module `name`, imported without its warnings; WorkbookError says that `user` needs it where that fails."""
    package = name.partition(".")[0]
    try:
        with quiet():
            return importlib.import_module(name)
    except ImportError as error:
        extra, brings = extra_with(package)
        what, expected = f"{package} cannot be imported: {error}", f"the package {package}, which {user} needs"
        if extra and PACKAGE != "helpers":  # in a clone `make env` brings them all
            do = do or f"python -m pip install {' '.join(brings)}, which is what [{extra}] brings"
        raise WorkbookError(what, expected, do or f"pip install --no-deps {package}, then restart the kernel") from None
