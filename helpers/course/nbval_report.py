"""A pytest plugin beside an unmodified nbval: its kernel behind a guard, a JSON line for every finished cell.

Loaded with `-p helpers.course.nbval_report --workbook-results=FILE`; with `--workbook-sockets=FOLDER` the kernel
is reached by sockets in that folder, as in the sandbox. Only stdout and errors reach nbval: a warning on stderr, a
picture or a displayed value is reported, and compared with nothing. After a cell that the kernel did not survive, the
run ends.
"""

from __future__ import annotations

import json
import re
from functools import partial

import pytest

from helpers.course.grade.reading import cleaned
from helpers.course.nbval_guard import CELL_LIMIT_S, Fatal, Guard
from helpers.course.run import NO_KERNEL

MESSAGE_CHARS, OUTPUT_CHARS = 2000, 1_000_000
MOST_MESSAGE_BYTES = 32 << 20  # a longer message is never read: ZeroMQ hangs up
_FILE = re.compile(r"\(\d+\.py, ")  # a SyntaxError names the kernel's temporary file
_KINDS = ("text/plain", "image/png")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workbook-results", default=None, help="write one JSON line per cell to this file")
    parser.addoption("--workbook-sockets", default=None, help="reach the kernel by sockets in this folder")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.option.workbook_sockets:
        import nbval.kernel
        import zmq

        context = zmq.Context.instance()
        context.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES)
        way = {"transport": "ipc", "context": context, "connection_file": f"{folder}/connection.json"}
        nbval.kernel.KernelManager = partial(nbval.kernel.KernelManager, **way)


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """After nbval started the kernel: put the guard before it."""
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None:
        if not isinstance(kernel.get_message, Guard):
            kernel.get_message = Guard(kernel)
        kernel.get_message.begin(item.cell.metadata.get("workbook", {}).get("limit_s", CELL_LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    path = item.config.option.workbook_results
    if path and (report.when == "call" or (report.when == "setup" and not report.passed)):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in _rows(item, call, report))
    return report


def _rows(item: pytest.Item, call: pytest.CallInfo, report: pytest.TestReport) -> list[dict]:
    # Only an explicit pass counts: skipped, xfailed and xpassed cells were not shown to be right.
    reached = not hasattr(report, "wasxfail") and not report.skipped
    error = call.excinfo.value if call.excinfo else None
    row = {
        "cell": item.cell.id,
        "outcome": report.outcome if reached else "not reached",
        "message": "" if reached and report.passed else cleaned(_message(item, call)[:MESSAGE_CHARS]),
        "seconds": round(call.duration, 3),
        "outputs": _outputs(item),
        "fatal": error.kind if isinstance(error, Fatal) else "",
    }
    rows = [row]
    if report.when == "setup":
        row["outcome"] = NO_KERNEL
        item.session.shouldstop = "there is no kernel"
    if str(error) == "Kernel dead on test start":
        row.update(outcome="not reached", message="not reached: the kernel had ended")
        last = getattr(item.parent, "workbook_last", None)
        if last is not None:  # it answered, and the kernel was gone before the next cell
            words = "ended the kernel: it was killed, ran out of memory, or left Python"
            rows.append({**last, "outcome": "failed", "message": words, "fatal": "died"})
    if any(one["fatal"] for one in rows):
        item.session.shouldstop = "the kernel cannot go on"
    item.parent.workbook_last = row
    return rows


def _message(item: pytest.Item, call: pytest.CallInfo) -> str:
    """Why the cell did not pass, for the learner: the exception's words, or the first line that differs."""
    outputs = item.test_outputs or []
    error = next((output for output in outputs if output.output_type == "error"), None)
    if call.excinfo and isinstance(call.excinfo.value, Fatal):
        return str(call.excinfo.value)
    if error is not None and error.ename == "AssertionError":
        return error.evalue or "an assertion of the check failed"
    if error is not None:
        return f"{error.ename}: {_FILE.sub('(', error.evalue)}"
    reason = str(call.excinfo.value) if call.excinfo else "skipped"
    return _difference(item.cell.outputs, outputs) if reason == "Cell outputs differ" else reason


def _difference(stored: list, fresh: list) -> str:
    expected, found = _stdout(stored).splitlines(), _stdout(fresh).splitlines()
    for number in range(max(len(expected), len(found))):
        pair = [lines[number] if number < len(lines) else "(no such line)" for lines in (expected, found)]
        if pair[0] != pair[1]:
            return f"line {number + 1} of the check's output\n  expected: {pair[0]}\n  yours:    {pair[1]}"
    return "the check's output differs in its blank space"


def _stdout(outputs: list) -> str:
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def _outputs(item: pytest.Item) -> list[dict]:
    """What the cell showed, text and pictures, for a person to look at; no more than can be looked at."""
    guard = getattr(getattr(item.parent, "kernel", None), "get_message", None)
    apart = guard.apart if isinstance(guard, Guard) else []
    shown, left = [], OUTPUT_CHARS
    for output in [*(item.test_outputs or []), *apart]:
        plain = _plain(output)
        left -= len(json.dumps(plain))
        if left < 0:
            break
        shown.append(plain)
    return shown


def _plain(output: dict) -> dict:
    kind = output["output_type"]
    if kind == "stream":
        return {"output_type": kind, "name": output["name"], "text": cleaned(output["text"][:OUTPUT_CHARS])}
    if kind == "error":
        return {
            "output_type": kind,
            "ename": cleaned(output["ename"]),
            "evalue": cleaned(output["evalue"]),
            "traceback": [],
        }
    data = {name: cleaned(value) for name in _KINDS if isinstance(value := output["data"].get(name), str)}
    return {"output_type": "display_data", "data": data, "metadata": {}}
