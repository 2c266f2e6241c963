"""The warm process: imports what a lab imports, then becomes a kernel by forking, once for each request.

    python -m helpers.grading.sandbox.fork_server CONTROL '{"modules": ["torch"], "more": [], "namespaces": true, ...}'

It listens at CONTROL/server.sock. A request is one line of JSON: {"connection": Jupyter's connection file, "folder":
"k1" (under CONTROL, for the sockets), "limits": {...}}. The answer comes when the kernel has ended. A
caller that hangs up ends its kernel. Here no learner's code runs, ever: only in forks, after `run_isolated`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from . import linux
from .isolation import SOCKETS, Limits, run_isolated

LOOK_S = 0.25
_OUT_OF_TIME = -signal.SIGXCPU & 0xFF  # the exit status of a keeper whose kernel that signal ended
_ROUGHLY_BYTES = 2 << 30  # from here on it is worth counting exactly
_GUARD = "helpers.lesson.guard"


def main(control: Path, options: dict) -> None:
    """Serve until the process that started us is gone."""
    if options["become"]:
        linux.become(options["become"])
    linux.die_with_parent()
    _import([_GUARD, *options["modules"]])
    sys.modules[_GUARD].read_ahead()  # the code of libraries that look at frames, once for all kernels
    if options["more"] and _harmless(options["more"]):
        _import(options["more"])
    gc.freeze()  # what is imported stays: no fork's garbage collector need copy its pages
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(control / "server.sock"))
    server.listen(8)
    print("ready", flush=True)
    _serve(server, control, options)


def _import(modules: list[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # what is not there will be missed by the cell that imports it
            importlib.import_module(module)


def _harmless(modules: list[str]) -> bool:
    """Whether importing them starts no thread and no process, which a fork would lack or share: tried in a fork."""
    trial = os.fork()
    if trial == 0:
        os.setsid()
        _import(modules)
        alone = len(os.listdir("/proc/self/task")) == 1 and len(_family(os.getpid())) == 1
        os._exit(0 if alone else 1)
    status = os.waitpid(trial, 0)[1]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(trial, signal.SIGKILL)
    return status == 0


def _serve(server: socket.socket, control: Path, options: dict) -> None:
    callers: dict[socket.socket, _Kernel] = {}
    while True:
        readable, _, _ = select.select([server, sys.stdin, *callers], [], [], LOOK_S)
        if sys.stdin in readable:  # nothing is ever written there: it was closed
            return
        if server in readable:
            caller = server.accept()[0]
            with contextlib.suppress(ValueError, KeyError, OSError):
                callers[caller] = _Kernel(caller, control, server, options)
        for caller, kernel in list(callers.items()):
            if caller in readable or kernel.over():
                kernel.end()
                del callers[caller]


class _Kernel:
    """One kernel and the caller that asked for it."""

    def __init__(self, caller: socket.socket, control: Path, server: socket.socket, options: dict) -> None:
        request = json.loads(caller.makefile("rb").readline(100_000))
        self.caller, self.limits, self.why = caller, Limits(**request.get("limits", {})), ""
        sockets = str(control / request["folder"])
        self.notes = control / f"{request['folder']}.why"
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            server.close()
            caller.close()
            os.closerange(3, 1024)
            namespaces, filtered = options["namespaces"], options["filtered"]
            become = partial(_become_kernel, request, sockets, namespaces)
            run_isolated(become, sockets, self.limits, namespaces, filtered)

    def over(self) -> bool:
        """True when the kernel has ended, or had to be ended for its memory.

        What is said of it is the same however busy the machine is: two gradings of one class are compared.
        """
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self.pid = 0
            if os.waitstatus_to_exitcode(status) == _OUT_OF_TIME:
                self.why = "took far more processor time than the worked lab does"
            return True
        used = _bytes_of(self.pid)
        if used > self.limits.total_bytes:
            self.why = f"took more memory than the {self.limits.total_bytes / 2**30:g} GiB that are allowed"
            return True
        return False

    def end(self) -> None:
        """End every process of the kernel, note why, and hang up."""
        for process in _family(self.pid) if self.pid else ():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.pid:
            os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):  # a full disk: then it ended, and nobody hears why
            if self.why:
                self.notes.write_text(self.why)
        self.caller.close()


def _become_kernel(request: dict, sockets: str, namespaces: bool, ready: Callable[[], None]) -> None:
    """In the fork: an ordinary ipykernel, with its sockets in the folder that it alone can see."""
    folder = SOCKETS if namespaces else sockets
    connection = request["connection"]
    connection["ip"] = f"{folder}/{os.path.basename(connection['ip'])}"
    home = "/tmp" if namespaces else f"{sockets}/home"
    os.makedirs(home, exist_ok=True)
    os.chdir(home)
    os.environ.update(HOME=home, **request.get("environment", {}))
    path = f"{home}/connection.json"
    Path(path).write_text(json.dumps(connection))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # what C code prints goes nowhere, rather than into pipes that we would have to empty
        os.dup2(nothing, stream)
    from ipykernel.kernelapp import IPKernelApp

    from .asking_kernel import AskingKernel

    app = IPKernelApp.instance(kernel_class=AskingKernel)
    app.initialize(["-f", path, "--HistoryManager.enabled=False"])
    ready()
    app.start()


def _bytes_of(pid: int) -> int:
    """Memory of a process and its descendants; a page that forks share is counted once."""
    processes = _family(pid)
    total = 0
    with contextlib.suppress(psutil.Error):
        total = sum(process.memory_info().rss for process in processes)
        if total > _ROUGHLY_BYTES:
            total = sum(process.memory_full_info().pss for process in processes)
    return total


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the grader decides when a terminal's Ctrl-C ends us
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
