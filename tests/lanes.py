"""Which tests wait for a longer lane because of what they cost, on two slow cores without units for BF16.

A test that needs minutes by its nature says so itself (`@pytest.mark.slow`). lanes.txt names the ordinary ones that
came out slow (`--durations`): from three seconds up under [slow], and under [all] what CI has no time for either, where
another case or test of the same mechanism runs in a shorter lane. A name is that of a test, or of one of its cases with
its brackets, which goes before. A name that is no test any more is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("lanes.txt")


def assign(items: list[pytest.Item], whole: bool) -> None:
    """Move each named test to its lane; `whole`: these are all tests of their files, so that every name must be one."""
    lanes = _read(LIST.read_text(encoding="utf-8"))
    met = set()
    for item in items:
        names = [name for name in (item.nodeid, item.nodeid.partition("[")[0]) if name in lanes]
        met |= {*names}
        if names:
            item.own_markers = [mark for mark in item.own_markers if mark.name not in ("slow", "all")]
            item.add_marker(lanes[names[0]])
    files = {item.nodeid.partition("::")[0] for item in items}
    stale = [name for name in lanes if name.partition("::")[0] in files and name not in met]
    if whole and stale:
        raise pytest.UsageError(f"{LIST.name} names what is no test: {stale[0]} (expected: a test's name; correct it)")


def _read(text: str) -> dict[str, str]:
    """
    >>> _read("[slow]\\ntests/test_a.py::test_one[a case]\\n\\n[all]\\ntests/test_a.py::test_one\\n")
    {'tests/test_a.py::test_one[a case]': 'slow', 'tests/test_a.py::test_one': 'all'}
    """
    found, lane = {}, ""
    for line in filter(None, text.splitlines()):
        if line in ("[slow]", "[all]"):
            lane = line.strip("[]")
        else:
            found[line] = lane
    return found
