"""A warm process for our own work on files that may be hostile: reading a notebook, running nbval beside a kernel.

    python -m helpers.grading.sandbox.task_server

For each request, one line of JSON on stdin, it forks; the fork does the task within resource limits and a time; one
line of JSON answers how it ended. pytest and nbval are imported once, and each submission still has a process of its
own. Requests: {"task": "nbval", "arguments": [...], "environment": {...}, "log": FILE, "limit_s": 60} and {"task":
"read", "path": FILE, "to": FILE, "log": FILE, "limit_s": 20}.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from . import linux

MEMORY_BYTES, FILE_BYTES = 3 << 30, 200 << 20


def main() -> None:
    """Serve until stdin ends."""
    import nbval.plugin  # noqa: F401 (and with it jupyter_client, ipykernel, nbformat)
    import pytest  # noqa: F401

    from . import nbval_plugin  # noqa: F401 (and with it the reader of notebooks)

    linux.die_with_parent()
    gc.freeze()  # what is imported stays: no fork's garbage collector need copy its pages
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"ended": _run(request)}), flush=True)


def _run(request: dict) -> str:
    """'' when the task ended by itself, else what was done to it."""
    alive, held = os.pipe()  # closed when the fork has ended
    child = os.fork()
    if child == 0:
        _child(request)
    os.close(held)
    in_time = select.select([alive], [], [], request["limit_s"])[0]
    os.close(alive)
    if not in_time:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not in_time:
        return "time"
    return "" if status in (0, 1, 5) else f"exit status {status}"


def _child(request: dict) -> None:
    status = 3
    try:
        os.setsid()
        linux.die_with_parent()
        linux.limit(data=MEMORY_BYTES, fsize=FILE_BYTES, core=0)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for theirs, ours in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(theirs, ours)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = {"nbval": _nbval, "read": _read}[request["task"]](request)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
    finally:
        os._exit(status)


def _nbval(request: dict) -> int:
    import pytest

    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    return int(pytest.main(request["arguments"]))


def _read(request: dict) -> int:
    from ..intake import reading

    found: dict[str, object]
    try:
        found = {"submitted": asdict(reading.read(Path(request["path"])))}
    except reading.Unreadable as error:
        found = {"unreadable": str(error)}
    Path(request["to"]).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides when a terminal's Ctrl-C ends us
    main()
