"""What learners' code may see, and what a fork of the fork server gives up before it runs any.

Seen: Python, its packages, `helpers`; not labs, solutions, homes or other people. bubblewrap builds that view once;
in it each fork is three processes:

    keeper ── init (first process of its own PID namespace) ── kernel (a learner's code)

When the kernel ends, init ends, and with the first process every other of the namespace: no daemon survives. init
keeps its rights until the kernel's sockets are there, then makes their folder read-only; the kernel has none from
the start, and a filter before its system calls (`seccomp`).
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import linux, seccomp

NICENESS = 5  # whoever has other work goes first; the limits of cells are wall seconds, so not by much
USER = 1000  # inside; outside it is whoever runs the fork server
SOCKETS = "/run/kernel"
HELPERS_ROOT = Path(__file__).resolve().parents[3]
CONTROL = "/run/workbook"  # where the fork server and its kernels have their sockets, inside
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", *(f"/etc/{name}" for name in _ETC))


@dataclass(frozen=True)
class Limits:
    """What one submission may take: bytes of private memory per process and of all together, of its files; counts.

    `cpu_s` is processor time of each process, in seconds: `Worker` lowers it to what the run's time allows.
    """

    data_bytes: int = 3 << 30
    total_bytes: int = 4 << 30
    file_bytes: int = 64 << 20
    folder_bytes: int = 256 << 20
    processes: int = 512
    open_files: int = 512
    cpu_s: int = 3600


def readable() -> list[str]:
    """Every path that is shown, read-only; a symbolic link among the system's folders is one inside, too."""
    packages = [path for path in sys.path if path.endswith("-packages") and Path(path).is_dir()]
    own = [sys.prefix, sys.base_prefix, str(HELPERS_ROOT / "helpers"), *packages]
    paths = [path for path in (*_SYSTEM, *own) if os.path.lexists(path)]
    return [path for path in dict.fromkeys(paths) if not _inside_another(path, paths)]


def environment() -> dict[str, str]:
    """The whole environment of the fork server and its kernels: nothing of the grader's own goes in."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    return threads | {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/tmp",
        "USER": "learner",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(HELPERS_ROOT),
        "PYTHONHASHSEED": "0",  # the order of a set is the same for learner and reference
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_CURRENT_TEST": "workbook",  # ipykernel captures output as it did when the outputs were stored
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PIP_NO_INDEX": "1",  # there is no network: whoever installs something is told at once
    }


def bubblewrap(control: Path) -> list[str]:
    """The arguments of bwrap up to the program's own: the view, no network, IPC of its own.

    It shows the whole /proc, for the fork server alone: Linux lets a fork mount a /proc of its own only where it sees a
    whole one.
    """
    parents = {str(parent) for path in (*readable(), CONTROL) for parent in Path(path).parents[:-1]}
    shown = [word for parent in sorted(parents) for word in ("--perms", "0755", "--dir", parent)]  # else 0700
    for path in readable():
        shown += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    room = ("--perms", "1777", "--size", str(Limits().folder_bytes), "--tmpfs")
    if os.geteuid() == 0:  # to become an ordinary user inside: as root, no limit on processes holds
        user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        user = ["--unshare-user"]
    return [
        *("bwrap", "--die-with-parent", "--new-session", *user),
        *("--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "lab"),
        *("--bind", "/proc", "/proc", "--dev", "/dev", *room, "/tmp", *shown, "--bind", str(control), CONTROL),
        # What lies between the mounts is one file system for all kernels: for an ordinary user it would be writable.
        *("--remount-ro", "/dev", *room, "/dev/shm", "--remount-ro", "/", "--chdir", "/tmp", "--"),
    ]


def run_isolated(
    kernel: Callable[[Callable[[], None]], None], sockets: str, limits: Limits, namespaces: bool, filtered: bool
) -> None:
    """In a fresh fork: run `kernel(ready)` with nothing but `sockets` to write to; never returns.

    `kernel` makes its sockets, calls `ready()`, and serves. The exit status is the kernel's. Without
    `namespaces` only the resource limits hold, without `filtered` every system call is there.
    """
    start = partial(_kernel, kernel, limits, filtered)
    _exit_with(lambda: _keep(start, sockets, limits, namespaces))


def _keep(start: Callable, sockets: str, limits: Limits, namespaces: bool) -> int:
    """The keeper: makes the namespaces, whose first process is its child, and waits."""
    linux.keep_orphans()
    if namespaces:
        linux.unshare_all(inside=USER)
    linux.die_with_parent()
    if namespaces:
        return _in_child(lambda: _init(start, sockets, limits))
    return _in_child(lambda: _unshared(start))


def _unshared(start: Callable) -> int:
    """A kernel without namespaces, whose first process would take it along when the keeper is killed."""
    linux.die_with_parent()
    return start(lambda: None)


def _init(start: Callable, sockets: str, limits: Limits) -> int:
    """PID 1: mounts, starts the kernel, waits until its sockets are there, takes its rights, reaps."""
    linux.die_with_parent()
    _mounts(sockets, limits)
    linux.loopback_up()
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()

    def ready() -> None:
        os.write(ready_write, b"!")
        os.read(go_read, 1)

    child = os.fork()
    if child == 0:
        _exit_with(lambda: start(ready))
    os.close(ready_write)
    os.read(ready_read, 1)  # or the kernel's end
    linux.mount("none", SOCKETS, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)
    linux.drop_privileges()
    with suppress(BrokenPipeError):
        os.write(go_write, b"!")
    return _reap(child)


def _kernel(kernel: Callable, limits: Limits, filtered: bool, ready: Callable[[], None]) -> int:
    linux.drop_privileges()
    if filtered:
        seccomp.install()
    linux.limit(data=limits.data_bytes, fsize=limits.file_bytes, nproc=limits.processes, nofile=limits.open_files)
    linux.limit(core=0)
    linux.limit_cpu(limits.cpu_s)
    os.nice(NICENESS)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when the machine runs out of memory, this is what has to go
    kernel(ready)
    return 0


def _mounts(sockets: str, limits: Limits) -> None:
    """A /tmp, /dev/shm and /proc of our own; of the fork server's sockets only this kernel's folder."""
    linux.mount("none", "/", None, linux.RECURSIVE | linux.PRIVATE)
    parent = os.path.dirname(SOCKETS)
    held = os.open(sockets, os.O_PATH | os.O_DIRECTORY)
    linux.mount("tmpfs", parent, "tmpfs", linux.NO_SUID | linux.NO_DEV, "mode=755,size=64k,nr_inodes=16")
    os.mkdir(SOCKETS)
    linux.mount(f"/proc/self/fd/{held}", SOCKETS, None, linux.BIND)
    os.close(held)
    linux.mount("none", parent, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)
    shown = {path: os.open(path, os.O_PATH) for path in readable() if path.startswith("/tmp/")}
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
        traceback.print_exc(file=sys.__stderr__)  # the fork server's log
    finally:
        os._exit(status & 0xFF)


def _reap(kernel: int) -> int:
    """Wait for the kernel, and for the orphans that it leaves to us meanwhile; the kernel's exit status."""
    while True:
        child, status = os.wait()
        if child == kernel:
            return os.waitstatus_to_exitcode(status)


def _inside_another(path: str, paths: list[str]) -> bool:
    return any(other != path and path.startswith(f"{other}/") and not os.path.islink(other) for other in paths)
