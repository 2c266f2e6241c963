"""A pytest plugin beside an unmodified nbval: its kernel behind a guard, a JSON line for every finished cell.

Loaded with `-p helpers.grading.sandbox.nbval_plugin --workbook-results=FILE`; with `--workbook-sockets=FOLDER` the
kernel is reached by sockets in that folder, as in the sandbox. Only stdout and errors reach nbval: a warning on
stderr, a picture or a displayed value is reported, and compared with nothing. After a cell that the kernel did not
survive, the run ends.

nbval waits for a dead kernel until its timeout, keeps whatever a kernel prints, and trusts the shape of messages. The
guard replaces one method of nbval's kernel, `get_message`, and weighs every message of a kernel that may be hostile: it
notices death within a second, counts output while the cell still runs, drops what is malformed, and keeps what is not
graded (stderr, pictures, results) apart.
"""

from __future__ import annotations

import json
import re
import time
from collections import deque
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING

import pytest
import zmq

from ...course import lab_cells
from ...course import notebook as nb
from ...lesson import asking
from ...lesson.tracebacks import in_words
from ..intake.reading import cleaned
from .nbval_run import NO_KERNEL

if TYPE_CHECKING:
    from nbformat import NotebookNode
    from nbval.plugin import IPyNbCell

MOST_CHARS = 1_000_000  # of one cell's output
MOST_ERROR_CHARS = 5_000
MOST_MALFORMED = 100  # messages of one cell
CELL_LIMIT_S = 60.0  # for a cell that does not say
DIED = "ended the kernel: it was killed, ran out of memory, or left Python"
HUNG = "ran far longer than the worked answer takes and was stopped"  # no seconds: limits vary with the machine's load
_TEXTS = {
    "stream": ("name", "text"),
    "error": ("ename", "evalue"),
    "status": ("execution_state",),
    "display_data": (),
    "execute_result": (),
}
_SHOWN = ("display_data", "execute_result")
MESSAGE_CHARS, OUTPUT_CHARS = 2000, 1_000_000
MOST_MESSAGE_BYTES = 32 << 20  # a longer message is never read: ZeroMQ hangs up
_FILE = re.compile(r"\(\d+\.py, ")  # a SyntaxError names the kernel's temporary file
_KINDS = ("text/plain", "image/png", asking.MIME)


class Fatal(Exception):  # noqa: N818 (the outcome of a cell, not an error of ours)
    """The kernel cannot go on after this cell: `kind` is 'hung', 'died' or 'flooded'; the words say why."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class MessageFilter:
    """In the place of `kernel.get_message`, for nbval's kernel `kernel`; `begin` before every cell."""

    def __init__(self, kernel) -> None:
        self.kernel = kernel
        self.channels = {"shell": kernel.kc.shell_channel, "iopub": kernel.kc.iopub_channel}
        self.poller = zmq.Poller()
        for channel in self.channels.values():
            self.poller.register(channel.socket, zmq.POLLIN)
        self.begin(CELL_LIMIT_S)

    def begin(self, limit_s: float) -> None:
        """Count from zero for a cell that may take `limit_s` seconds."""
        self.end = time.monotonic() + limit_s
        self.chars = self.malformed = 0
        self.waiting: dict[str, deque] = {"shell": deque(), "iopub": deque()}
        self.apart: list[dict] = []

    def __call__(self, stream: str, timeout: float | None = None) -> dict:
        """The next message on `stream`; queue.Empty never comes: a kernel that says nothing more is Fatal."""
        quiet_until = float("inf") if stream == "shell" or timeout is None else time.monotonic() + timeout
        while not self.waiting[stream]:
            now = time.monotonic()
            if now >= self.end:
                raise Fatal("hung", HUNG)
            if now >= quiet_until:
                raise Fatal("flooded", "its output did not come through: it prints more than can be read")
            wait_ms = 1000 * min(1.0, self.end - now, quiet_until - now)
            if self.poller.poll(wait_ms):  # type: ignore[arg-type]  # its stub knows whole milliseconds alone
                self._take()
            elif not self.kernel.is_alive():
                raise Fatal("died", DIED)
        return self.waiting[stream].popleft()

    def _take(self) -> None:
        """One message of each stream that has one, into `waiting`; what nbval should not see is kept or dropped."""
        for stream, channel in self.channels.items():
            try:
                message = channel.get_msg(timeout=0)
            except Empty:
                continue
            except Exception:  # forged signatures, no JSON, JSON that is too deep: whatever a hostile kernel sends
                message = None
            if not _well_formed(message, stream):
                self._count_malformed()
            elif stream == "shell":
                self._reply(message)
            else:
                self._output(message)

    def _reply(self, message: dict) -> None:
        payload = message["content"].get("payload")
        for item in payload if isinstance(payload, list) else ():
            if isinstance(item, dict) and item.get("source") == "ask_exit":
                raise Fatal("died", "ended the kernel: it called exit() or quit()")
        message["content"] = {"status": message["content"]["status"]}  # the error's words come by iopub as well
        self._count(message["content"])
        self.waiting["shell"].append(message)

    def _output(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "error":  # one message, already here: cut, so that a learner gets its words
            cut = {name: content[name][:MOST_ERROR_CHARS] for name in ("ename", "evalue")}
            content.update(cut, traceback=[])
        self._count({} if kind == "execute_input" else content)  # which is the cell's own source
        if kind in _SHOWN or (kind == "stream" and content["name"] != "stdout"):
            self.apart.append({**content, "output_type": kind})
        elif kind in _TEXTS:
            self.waiting["iopub"].append(message)

    def _count(self, content: dict) -> None:
        self.chars += 100 + len(str(content))
        if self.chars > MOST_CHARS:
            raise Fatal("flooded", f"printed more than {MOST_CHARS:,} characters and was stopped")

    def _count_malformed(self) -> None:
        self.malformed += 1
        if self.malformed > MOST_MALFORMED:
            raise Fatal("flooded", "sent messages that no kernel sends, and was stopped")


def _well_formed(message: object, stream: str) -> bool:
    """True when nbval can read the message without an error of its own."""
    if not isinstance(message, dict) or not isinstance(message.get("parent_header"), dict):
        return False
    kind, content = message.get("msg_type"), message.get("content")
    if not isinstance(kind, str) or not isinstance(content, dict):
        return False
    if stream == "shell":
        return isinstance(content.get("status"), str)
    texts = all(isinstance(content.get(name), str) for name in _TEXTS.get(kind, ()))
    if kind == "error":
        lines = content.get("traceback")
        return texts and isinstance(lines, list) and all(isinstance(line, str) for line in lines)
    return texts and (kind not in _SHOWN or isinstance(content.get("data"), dict))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workbook-results", default=None, help="write one JSON line per cell to this file")
    parser.addoption("--workbook-sockets", default=None, help="reach the kernel by sockets in this folder")


def pytest_configure(config: pytest.Config) -> None:
    if folder := config.option.workbook_sockets:
        import nbval.kernel

        context: zmq.Context = zmq.Context.instance()
        context.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE_BYTES)
        way = {"transport": "ipc", "context": context, "connection_file": f"{folder}/connection.json"}
        nbval.kernel.KernelManager = partial(nbval.kernel.KernelManager, **way)


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: IPyNbCell) -> None:
    """After nbval started the kernel: put the guard before it."""
    kernel = getattr(item.parent, "kernel", None)
    if kernel is not None:
        if not isinstance(kernel.get_message, MessageFilter):
            kernel.get_message = MessageFilter(kernel)
        kernel.get_message.begin(item.cell.metadata.get("workbook", {}).get("limit_s", CELL_LIMIT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: IPyNbCell, call: pytest.CallInfo):
    report = yield
    path = item.config.option.workbook_results
    if path and (report.when == "call" or (report.when == "setup" and not report.passed)):
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in _rows(item, call, report))
    return report


def _rows(item: IPyNbCell, call: pytest.CallInfo, report: pytest.TestReport) -> list[dict]:
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
            rows.append({**last, "outcome": "failed", "message": DIED, "fatal": "died"})
    if any(one["fatal"] for one in rows):
        item.session.shouldstop = "the kernel cannot go on"
    item.parent.workbook_last = row
    return rows


def _message(item: IPyNbCell, call: pytest.CallInfo) -> str:
    """Why the cell did not pass, for the learner: the exception's words, or the first line that differs."""
    outputs = item.test_outputs or []
    error = next((output for output in outputs if output.output_type == "error"), None)
    if call.excinfo and isinstance(call.excinfo.value, Fatal):
        return str(call.excinfo.value)
    if error is not None and (error.ename == "AssertionError" or _is_ours(item.cell)):
        return in_words(error.ename, error.evalue)
    if error is not None:
        return f"{error.ename}: {_FILE.sub('(', error.evalue)}"
    reason = str(call.excinfo.value) if call.excinfo else "skipped"
    return _difference(item.cell.outputs, outputs) if reason == "Cell outputs differ" else reason


def _is_ours(cell: NotebookNode) -> bool:
    return lab_cells.is_ask(cell) or lab_cells.is_check(cell)


def _difference(stored: list, fresh: list) -> str:
    expected, found = (nb.stream(outputs, "stdout").splitlines() for outputs in (stored, fresh))
    for number in range(max(len(expected), len(found))):
        pair = [lines[number] if number < len(lines) else "(no such line)" for lines in (expected, found)]
        if pair[0] != pair[1]:
            return f"line {number + 1} of the check's output\n  expected: {pair[0]}\n  yours:    {pair[1]}"
    return "the check's output differs in its blank space"


def _outputs(item: IPyNbCell) -> list[dict]:
    """What the cell showed, text and pictures, no more than a person can look at; and all that was answered."""
    guard = getattr(getattr(item.parent, "kernel", None), "get_message", None)
    apart = guard.apart if isinstance(guard, MessageFilter) else []
    shown, left = [], OUTPUT_CHARS
    for output in [*(item.test_outputs or []), *apart]:
        plain = _plain(output)
        if asking.MIME not in plain.get("data", {}):
            left -= len(json.dumps(plain))
            if left < 0:  # whoever prints too much is still answered for
                continue
        shown.append(plain)
    return shown


def _plain(output: dict) -> dict:
    kind = output["output_type"]
    if kind == "stream":
        return {"output_type": kind, "name": output["name"], "text": cleaned(output["text"][:OUTPUT_CHARS])}
    if kind == "error":
        words = {name: cleaned(output[name]) for name in ("ename", "evalue")}
        return {"output_type": kind, **words, "traceback": []}
    data = {name: cleaned(value) for name in _KINDS if isinstance(value := output["data"].get(name), str)}
    return {"output_type": "display_data", "data": data, "metadata": {}}
