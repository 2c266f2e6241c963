"""Runs one notebook at a time, with two warm processes: a fork server for learners' kernels, a task server for nbval.

    with Worker(level, modules=["torch"]) as worker:
        cells = worker.run(notebook, wall_s=120)

The task server holds what is expected and never runs a learner's code; the kernel runs it and holds nothing. Between
the two are the kernel's sockets, in a folder of that one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path

from nbformat import NotebookNode

from ...catalog.errors import WorkbookError
from ...course import notebook as nb
from ..intake import reading
from . import isolation, levels
from .isolation import Limits
from .nbval_run import ASKING_KERNEL, CellResults, arguments, not_run, pytest_environment, results, write_kernelspec
from .run_folder import FREE_SOME, lacks_room, run_folder

READ_S = 30
_NO_TRICKS = os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO is empty rather than waited for
PROXY = str(Path(__file__).with_name("kernel_proxy.py"))
FORK_SERVER, TASK_SERVER = "helpers.grading.sandbox.fork_server", "helpers.grading.sandbox.task_server"
SOCKET = "server.sock"  # the fork server's, in the control folder


class SandboxError(WorkbookError):
    """The grader's own machinery failed: nothing is known about the submission."""

    def __init__(
        self, what: str, do: str = "run the same command again; if it fails again, report these lines"
    ) -> None:
        super().__init__(what, "a sandbox that works", do)


class Worker:
    """Runs notebooks in the sandbox at `level`; `modules` are imported once, before any learner's code.

    So are `more`, if they can be in all forks: what libraries import when they are first used.
    """

    def __init__(
        self, level: levels.SandboxLevel, modules: Sequence[str], more: Sequence[str] = (), limits: Limits | None = None
    ) -> None:
        self.level, self.modules, self.more, self.limits = level, modules, more, limits or Limits()
        self.runs = 0
        self.fork_server: subprocess.Popen[str] | None = None
        self.task_server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Worker:
        with contextlib.ExitStack() as opened:
            self.folder = opened.enter_context(run_folder())
            self.control = self.folder / "control"
            self.control.mkdir(mode=0o700)
            levels.hand_over(self.control, self.level)
            self.restart()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_processes()
        self._opened.close()

    def restart(self) -> None:
        """New processes for the next submission, after ours have failed."""
        self._end_processes()
        self.task_server = _start([sys.executable, "-m", TASK_SERVER], _own_environment())

    def read(self, path: Path) -> reading.Submitted:
        """The notebook at `path`, read where it can do no harm. reading.Unreadable when it is none."""
        answer = self.folder / "read.json"
        answer.unlink(missing_ok=True)
        ended = self._ask({"task": "read", "path": str(path), "to": str(answer), "limit_s": READ_S})
        self._require_room()
        if not answer.exists():
            raise reading.Unreadable("it takes too long to read" if ended == "time" else "reading it takes too much")
        found = json.loads(answer.read_text(encoding="utf-8"))
        if "unreadable" in found:
            raise reading.Unreadable(found["unreadable"])
        return reading.from_json(found["submitted"])

    def run(self, notebook: NotebookNode, *, wall_s: float) -> CellResults:
        """How each cell went, by its id; a cell that is not in it was not reached in `wall_s` seconds.

        SandboxError when no cell could be run, or nothing could be written: the sandbox failed, not the learner.
        """
        try:
            return self._run(notebook, wall_s)
        except OSError as error:
            self._require_room()
            raise SandboxError(f"the sandbox failed: {error}") from None

    def _run(self, notebook: NotebookNode, wall_s: float) -> CellResults:
        self._ready()
        self.runs += 1
        name = f"k{self.runs}"
        sockets, folder = self.control / name, self.folder / name
        for path in (sockets, folder):
            path.mkdir(mode=0o700)
        levels.hand_over(sockets, self.level)
        try:
            nb.write(folder / "lab.ipynb", notebook)
            ended = self._ask(self._nbval(folder, sockets, wall_s))
            self._require_room()
            found = results(folder / "results.jsonl")
            if not_run(found) and ended != "time":
                raise SandboxError(f"nbval could not run a cell ({ended or 'no kernel'})\n{self._log()}")
            why = _reason(self.control / f"{name}.why")
            died = [key for key, one in found.items() if why and one.fatal == "died"]  # for its memory
            return found | {key: replace(found[key], message=why) for key in died}
        finally:
            for path in (sockets, folder):
                shutil.rmtree(path, ignore_errors=True)

    def _ready(self) -> None:
        if self.fork_server is None or self.fork_server.poll() is not None:
            (self.control / SOCKET).unlink(missing_ok=True)
            options = {"modules": [ASKING_KERNEL, *self.modules], "more": list(self.more)}
            started = levels.command(self.level, self.control, FORK_SERVER, options)
            self.fork_server = _start(started, isolation.environment(), self.folder / "fork_server.log")

    def _nbval(self, folder: Path, sockets: Path, wall_s: float) -> dict:
        """The request that runs lab.ipynb in `folder` with a kernel from the fork server."""
        limits = replace(self.limits, cpu_s=min(self.limits.cpu_s, ceil(wall_s)))
        words = [sys.executable, "-I", "-S", PROXY, "{connection_file}", str(self.control / SOCKET)]
        words += [sockets.name, json.dumps(asdict(limits))]
        write_kernelspec(folder, words)
        return {
            "task": "nbval",
            "folder": str(folder),
            "arguments": [*arguments(folder), f"--workbook-sockets={sockets}"],
            "environment": _own_environment() | {"JUPYTER_PATH": str(folder)},
            "limit_s": wall_s,
        }

    def _require_room(self) -> None:
        """SandboxError on a full disk: what could not be written would count as an answer that is not there."""
        if problem := lacks_room(self.folder):
            raise SandboxError(problem, FREE_SOME)

    def _ask(self, request: dict) -> str:
        """Have the task server do it; '' when the task ended by itself, else what was done to it."""
        server = self.task_server
        if server is None or server.poll() is not None or server.stdin is None or server.stdout is None:
            raise SandboxError("the task server has ended")
        server.stdin.write(json.dumps(request | {"log": str(self.folder / "task_server.log")}) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            raise SandboxError("the task server has ended")
        return str(json.loads(answer)["ended"])

    def _end_processes(self) -> None:
        _end(self.fork_server)
        _end(self.task_server)
        self.fork_server = self.task_server = None

    def _log(self) -> str:
        texts = []
        for name in ("task_server.log", "fork_server.log"):
            with contextlib.suppress(OSError):
                texts.append(f"{name}: " + (self.folder / name).read_text(errors="replace")[-2000:])
        return "\n".join(texts)


def _reason(path: Path) -> str:
    """What the fork server noted there, or ''. At the level `limits` it may be a learner's file, link or FIFO."""
    try:
        with open(path, errors="replace", opener=lambda name, flags: os.open(name, flags | _NO_TRICKS)) as file:
            return file.read(200)
    except OSError:
        return ""


def _own_environment() -> dict[str, str]:
    """For our own processes: the grader's, without Jupyter's settings."""
    return pytest_environment("JUPYTER_") | {"OMP_NUM_THREADS": "1"}


def _start(command: list[str], environment: dict[str, str], log: Path | None = None) -> subprocess.Popen[str]:
    """The process, once it says that it is ready. SandboxError when it ends before."""
    with open(log or os.devnull, "w") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True, start_new_session=True
        )
    if process.stdout is None or process.stdout.readline().strip() != "ready":
        words = log.read_text(errors="replace")[-2000:] if log else ""
        raise SandboxError(f"{command[-3]} did not start\n{words}")
    return process


def _end(process: subprocess.Popen[str] | None) -> None:
    """Closing stdin is the signal; a process that does not hear it is killed."""
    if process is None or process.stdin is None or process.stdout is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
