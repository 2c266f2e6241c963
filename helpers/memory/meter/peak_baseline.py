"""Peaks of a test run beside those of an earlier one: a file in the repository, so that growth shows in a review.

A budget says what must not be passed; a baseline says what was. `--memory-baseline FILE` fails a run in which a test's
peak is more than `SLACK` above the one in the file; `--memory-baseline-update` writes what this run found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ...catalog.errors import WorkbookError
from ..breakdown import format_bytes

SLACK = 0.02  # peaks on one version of torch are equal to the byte; another moves small ones by a percent
Peaks = Mapping[str, int]  # by the test's name


def read_baseline(path: Path) -> dict[str, int]:
    """The file's peaks. WorkbookError where it is missing or is no table of bytes."""
    update = "run once with --memory-baseline-update, and commit the file"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkbookError(f"{path}: {error.strerror}", "the peaks of an earlier run", update) from None
    except ValueError as error:
        raise WorkbookError(f"{path} is no JSON: {error}", "the peaks of an earlier run", update) from None
    if not isinstance(told, dict) or not all(type(size) is int and size >= 0 for size in told.values()):
        raise WorkbookError(f"{path} holds something else", "a peak in bytes for each test", update)
    return told


def write_baseline(path: Path, old: Peaks, found: Peaks) -> None:
    """Put what was found beside what is there, for a run may be of some tests alone."""
    text = json.dumps(dict(sorted({**old, **found}.items())), indent=2)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise WorkbookError(f"{path}: {error.strerror}", "a file that can be written", "pass another path") from None


def growth(old: Peaks, found: Peaks) -> list[str]:
    """A line for each test that needs more than it did; a test that the baseline does not know is no growth.

    >>> growth({"a": 100 * 2**20, "b": 2**20}, {"a": 103 * 2**20, "b": 2**20, "new": 5})
    ['a: 103.00 MiB, 100.00 MiB before (+3.0 %)']
    """
    return [
        f"{name}: {format_bytes(peak)}, {format_bytes(old[name])} before (+{(peak / old[name] - 1) * 100:.1f} %)"
        for name, peak in sorted(found.items())
        if old.get(name) and peak > old[name] * (1 + SLACK)
    ]
