"""A pytest plugin beside an unmodified nbval: a JSON line per finished cell, a kernel's death seen at once.

Loaded with `-p helpers.course.nbval_report --workbook-results=FILE`.
"""

from __future__ import annotations

import json
import re
import time
from queue import Empty

import pytest

MESSAGE_CHARS = 2000
_FILE = re.compile(r"\(\d+\.py, ")  # a SyntaxError names the kernel's temporary file
_WARNING = re.compile(r"\w+: .*$", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workbook-results", default=None, help="write one JSON line per cell to this file")


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """After nbval started the kernel: let its waits notice a dead process (nbval waits out its timeout)."""
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None and not hasattr(kernel, "workbook_watched"):
        kernel.get_message, kernel.workbook_watched = _watching(kernel), True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    path = item.config.option.workbook_results
    if path and (report.when == "call" or (report.when == "setup" and not report.passed)):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(_row(item, call, report)) + "\n")
    return report


def _row(item: pytest.Item, call: pytest.CallInfo, report: pytest.TestReport) -> dict:
    # Only an explicit pass counts: skipped, xfailed and xpassed cells were not shown to be right.
    reached = not hasattr(report, "wasxfail") and not report.skipped
    outcome = report.outcome if reached else "not reached"
    message = "" if outcome == "passed" else _message(item, call)[:MESSAGE_CHARS]
    return {"cell": item.cell.id, "outcome": outcome, "message": message, "seconds": round(call.duration, 3)}


def _message(item: pytest.Item, call: pytest.CallInfo) -> str:
    """Why the cell did not pass, for the learner: the exception's words, or the first line that differs."""
    outputs = item.test_outputs or []
    error = next((output for output in outputs if output.output_type == "error"), None)
    if error is not None and error.ename == "KeyboardInterrupt":
        return f"ran longer than {item.config.option.nbval_cell_timeout:g} seconds and was stopped"
    if error is not None and error.ename == "AssertionError":
        return error.evalue or "an assertion of the check failed"
    if error is not None:
        return f"{error.ename}: {_FILE.sub('(', error.evalue)}"
    reason = str(call.excinfo.value) if call.excinfo else "skipped"
    if reason == "Kernel dead on test start":
        return "not reached: the kernel died in an earlier cell"
    return _difference(item.cell.outputs, outputs) if reason == "Cell outputs differ" else reason


def _difference(stored: list, fresh: list) -> str:
    expected, found = _stream(stored, "stdout").splitlines(), _stream(fresh, "stdout").splitlines()
    for number in range(max(len(expected), len(found))):
        pair = [lines[number] if number < len(lines) else "(no such line)" for lines in (expected, found)]
        if pair[0] != pair[1]:
            return f"line {number + 1} of the check's output\n  expected: {pair[0]}\n  yours:    {pair[1]}"
    warning = _stream(fresh, "stderr").strip()
    if warning:
        words = _WARNING.search(warning)
        return f"the values agree, but your code wrote to stderr: {words[0] if words else warning}"
    return "the check showed something other than its printed lines: does your code display or plot?"


def _stream(outputs: list, name: str) -> str:
    return "".join(output.text for output in outputs if output.get("name") == name)


def _watching(kernel):
    """`kernel.get_message` in steps of a second, with a look at the process after each."""
    original = kernel.get_message

    def get_message(stream: str, timeout: float | None = None):
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return original(stream, timeout=max(0.0, min(1.0, end - time.monotonic())))
            except Empty:
                if not kernel.is_alive():
                    raise RuntimeError("the kernel died: killed, out of memory, or the code left Python") from None
                if time.monotonic() >= end:
                    raise

    return get_message
