"""What a fork of the nursery gives up before it runs a learner's code, and the small process that watches over it.

    keeper ── init (first process of its own PID namespace) ── kernel (a learner's code)

When the kernel ends, init ends, and with the first process every other of the namespace: no daemon survives. init
keeps its rights until the kernel's sockets are there, then makes their folder read-only; the kernel has none from
the start.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from helpers.course.sandbox import linux, view

USER = 1000  # inside; outside it is whoever runs the nursery
SOCKETS = "/run/kernel"


@dataclass(frozen=True)
class Limits:
    """What one submission may take: bytes of private memory per process and of all together, of its files; counts."""

    data_bytes: int = 3 << 30
    total_bytes: int = 4 << 30
    file_bytes: int = 64 << 20
    folder_bytes: int = 256 << 20
    processes: int = 512
    open_files: int = 512


def run_isolated(kernel: Callable[[Callable[[], None]], None], sockets: str, limits: Limits, spaces: bool) -> None:
    """In a fresh fork: run `kernel(ready)` with nothing but `sockets` to write to; never returns.

    `kernel` makes its sockets, calls `ready()`, and serves. The exit status is the kernel's. Without `spaces`
    (namespaces) only the resource limits hold.
    """
    _exit_with(lambda: _keep(kernel, sockets, limits, spaces))


def _keep(kernel: Callable, sockets: str, limits: Limits, spaces: bool) -> int:
    """The keeper: makes the namespaces, whose first process is its child, and waits."""
    linux.keep_orphans()
    if spaces:
        linux.unshare(linux.EVERY_NAMESPACE, inside=USER)
    linux.die_with_parent()
    if spaces:
        return _in_child(lambda: _init(kernel, sockets, limits))
    return _in_child(lambda: _kernel(kernel, limits, lambda: None))


def _init(kernel: Callable, sockets: str, limits: Limits) -> int:
    """PID 1: mounts, starts the kernel, waits until its sockets are there, takes its rights, reaps."""
    linux.die_with_parent()
    _mounts(sockets, limits)
    linux.loopback_up()
    told, tell = os.pipe()
    go, let_go = os.pipe()

    def ready() -> None:
        os.write(tell, b"!")
        os.read(go, 1)

    child = os.fork()
    if child == 0:
        _exit_with(lambda: _kernel(kernel, limits, ready))
    os.close(tell)
    os.read(told, 1)  # or the kernel's end
    linux.mount("none", SOCKETS, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)
    linux.drop_privileges()
    with suppress(BrokenPipeError):
        os.write(let_go, b"!")
    return _reap(child)


def _kernel(kernel: Callable, limits: Limits, ready: Callable[[], None]) -> int:
    linux.drop_privileges()
    linux.limit(data=limits.data_bytes, fsize=limits.file_bytes, nproc=limits.processes, nofile=limits.open_files)
    linux.limit(core=0)
    os.nice(5)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when the machine runs out of memory, this is what has to go
    kernel(ready)
    return 0


def _mounts(sockets: str, limits: Limits) -> None:
    """A /tmp, /dev/shm and /proc of our own; of the nursery's sockets only this kernel's folder."""
    linux.mount("none", "/", None, linux.RECURSIVE | linux.PRIVATE)
    parent = os.path.dirname(SOCKETS)
    held = os.open(sockets, os.O_PATH | os.O_DIRECTORY)
    linux.mount("tmpfs", parent, "tmpfs", linux.NO_SUID | linux.NO_DEV, "mode=755,size=64k,nr_inodes=16")
    os.mkdir(SOCKETS)
    linux.mount(f"/proc/self/fd/{held}", SOCKETS, None, linux.BIND)
    os.close(held)
    linux.mount("none", parent, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)
    shown = {path: os.open(path, os.O_PATH) for path in view.readable() if path.startswith("/tmp/")}
    for folder in ("/tmp", "/dev/shm"):
        size = f"mode=1777,size={limits.folder_bytes},nr_inodes=20000"
        linux.mount("tmpfs", folder, "tmpfs", linux.NO_SUID | linux.NO_DEV, size)
    for path, descriptor in shown.items():  # the workbook itself may lie in /tmp
        os.makedirs(path)
        linux.mount(f"/proc/self/fd/{descriptor}", path, None, linux.BIND | linux.RECURSIVE)
        os.close(descriptor)
    linux.mount("proc", "/proc", "proc", linux.NO_SUID | linux.NO_DEV | linux.NO_EXEC)
    with suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")  # no rights by way of another namespace
    os.chdir("/tmp")


def _in_child(function: Callable[[], int]) -> int:
    """The exit status of `function` run in a fork; minus the signal that ended it, as subprocess says."""
    child = os.fork()
    if child == 0:
        _exit_with(function)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF


def _exit_with(function: Callable[[], int]) -> None:
    status = 1
    try:
        status = function()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)  # the nursery's log
    finally:
        os._exit(status & 0xFF)


def _reap(kernel: int) -> int:
    """Wait for the kernel, and for the orphans that it leaves to us meanwhile; the kernel's exit status."""
    while True:
        child, status = os.wait()
        if child == kernel:
            return os.waitstatus_to_exitcode(status)
