"""What a test needs and `make env` may not have brought: looked for when it is asked for, and skipped with the reason.

A library: `@pytest.mark.needs("triton", "pip install -r requirements-triton.txt")`. Chromium: the fixture `chromium`.
A sandbox: nothing to say, whoever grades asks for one (`_sandbox_or_skip` in conftest.py).

WORKBOOK_REQUIRE_ALL=1, for CI once all of it is installed, turns each skip into a failure, and `pytest --skipped` runs
what the run before had skipped so.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

REQUIRE_ALL = "WORKBOOK_REQUIRE_ALL"
SKIPPED = "workbook/skipped"  # where pytest's cache keeps the tests that the last run skipped so
WORDS = "not on this machine: "


def missing(reason: str) -> None:
    """Skip the test that is running; fail it where everything should be there."""
    if os.environ.get(REQUIRE_ALL) == "1":
        pytest.fail(f"{REQUIRE_ALL}=1, and {WORDS}{reason}")
    pytest.skip(WORDS + reason)


def look_for(item: pytest.Item) -> None:
    """Skip a test whose `needs` names a library that cannot be imported."""
    for mark in item.iter_markers("needs"):
        library, *how = mark.args
        if find_spec(library) is None:
            missing(f"the package {library}" + "".join(f" ({word})" for word in how))


def was_skipped(report: pytest.TestReport) -> bool:
    """Whether `missing` skipped it."""
    return report.skipped and isinstance(report.longrepr, tuple) and WORDS in report.longrepr[2]
