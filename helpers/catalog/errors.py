"""The one error a reader meets: what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WorkbookError(ValueError):
    """Bad input, told in three parts so that nobody has to read a traceback.

    `what` names the offending value, `expected` what is allowed, `do` the next thing to type.

    >>> print(WorkbookError("micro_batch is 0", "a whole number from 1 up", "pass micro_batch=1"))
    micro_batch is 0
      expected: a whole number from 1 up
      do: pass micro_batch=1
    """

    def __init__(self, what: str, expected: str, do: str) -> None:
        self.what, self.expected, self.do = what, expected, do
        super().__init__(f"{what}\n  expected: {expected}\n  do: {do}")

    def _render_traceback_(self) -> list[str]:
        """IPython prints this instead of a traceback: the three parts are the whole story."""
        return [f"WorkbookError: {self}"]


def unknown_name(kind: str, name: object, allowed: Iterable[str]) -> WorkbookError:
    """The error for a name that is not in `allowed`; suggests one that begins so, else the nearest.

    >>> print(unknown_name("precision", "bf-16", ["bf16", "fp32"]).do)
    did you mean 'bf16'?
    """
    names = list(allowed)
    wanted = str(name).lower()
    longer = sorted((known for known in names if wanted and known.startswith(wanted)), key=len)
    close = longer or difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
    do = f"did you mean {close[0]!r}?" if close else f"pick one of the {len(names)} names above"
    return WorkbookError(f"unknown {kind} {name!r}", ", ".join(names), do)
