"""Answers that a judge can weigh: recorded as one line of JSON where they were found, replayed where nobody can cheat.

Where many answers are right (a schedule, a placement, a memory plan) a check cell asks for them through `judged`:

    where = judged(place, layers, budgets)       # calls place(layers, budgets), prints its answer as one line
    assert fits(where, budgets), ...             # weighs what the line says

The grader takes the lines out of the learner's kernel and runs the same check again in a kernel that never saw the
learner's code: there `judged` calls nothing, and returns the recorded answers in order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from ..catalog.errors import WorkbookError

MARK = "judged: "
REPLAY = "WORKBOOK_JUDGED"  # the recorded answers' lines, a JSON list of texts; each call takes the first
MOST_CHARS = 20_000


def judged(answer: Callable, *arguments: Any) -> Any:
    """What `answer(*arguments)` returned, as JSON keeps it: tuples are lists, keys are texts. Printed as one line.

    WorkbookError when it is no plan: not JSON (a tensor, a set, NaN), or longer than 20,000 characters.

    >>> judged(lambda layers: {"keep": (0, layers)}, 3)
    judged: {"keep": [0, 3]}
    {'keep': [0, 3]}
    """
    if REPLAY in os.environ:
        return _replayed()
    found = answer(*arguments)
    try:
        line = json.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        what = f"{getattr(answer, '__name__', 'the answer')} returned {type(found).__name__} that is no plain data"
        do = "turn tensors into numbers with .item() or .tolist(), sets into lists"
        raise WorkbookError(f"{what} ({error})", "numbers, texts, lists, dicts, True, False, None", do) from None
    if len(line) > MOST_CHARS:
        what, most = f"an answer of {len(line):,} characters", f"at most {MOST_CHARS:,}"
        raise WorkbookError(what, most, "return the plan alone")
    print(f"{MARK}{line}")
    return json.loads(line)


def _replayed() -> Any:
    """The next recorded answer. AssertionError when there is none, or it is nothing that `judged` prints."""
    lines = json.loads(os.environ[REPLAY])
    assert lines, "the check printed fewer answers than it asked for"
    os.environ[REPLAY] = json.dumps(lines[1:])
    line = lines[0]
    assert len(line) <= MOST_CHARS, f"the recorded answer has {len(line):,} characters"
    try:
        found = json.loads(line, parse_constant=_refuse)
        json.dumps(found, allow_nan=False)  # 1e999 is read as infinite
    except (ValueError, RecursionError) as error:
        raise AssertionError(f"the recorded answer is no plain data ({error})") from None
    print(f"{MARK}{line}")
    return found


def _refuse(name: str) -> None:
    raise AssertionError(f"the recorded answer holds {name}, which is no number")
