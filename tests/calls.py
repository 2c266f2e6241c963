"""Speed that a test may hold: function calls, the same on every machine and under any load, unlike seconds."""

import sys
from collections.abc import Callable

CALLS_IN_50_MS = 300_000  # of a calculator's arithmetic, on an ordinary core; the seconds are in tests/slow


def calls_of(run: Callable[[], object]) -> int:
    """Functions that `run()` calls, Python's and C's together."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return counted
