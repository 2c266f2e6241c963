"""The files that learners' code may see: Python, its packages, `helpers`; not labs, solutions, homes or other people.

The same list becomes arguments of bubblewrap, or mounts of our own where there is no bubblewrap.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from helpers.course.sandbox import linux
from helpers.course.sandbox.isolation import Limits

HELPERS_ROOT = Path(__file__).resolve().parents[3]
CONTROL = "/run/workbook"  # where the nursery and its kernels have their sockets, inside
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
)
_DEVICES = ("null", "zero", "full", "random", "urandom")


def readable() -> list[str]:
    """Every path that is shown, read-only; a symbolic link among the system's folders is one inside, too."""
    packages = [path for path in sys.path if path.endswith("-packages") and Path(path).is_dir()]
    own = [sys.prefix, sys.base_prefix, str(HELPERS_ROOT / "helpers"), *packages]
    paths = [path for path in (*_SYSTEM, *own) if os.path.lexists(path)]
    return [path for path in dict.fromkeys(paths) if not _inside_another(path, paths)]


def environment(preload_threads: int = 1) -> dict[str, str]:
    """The whole environment of the nursery and its kernels: nothing of the grader's own goes in."""
    threads = {f"{name}_NUM_THREADS": str(preload_threads) for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
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
    }


def bubblewrap(control: Path, own_processes: bool) -> list[str]:
    """The arguments of bwrap up to the program's own: the view, no network, IPC of its own.

    Without `own_processes` it shows the whole /proc, for the nursery alone: Linux lets a fork mount a /proc of its own
    only where it sees a whole one.
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
        *(["--unshare-pid", "--proc", "/proc"] if own_processes else ["--bind", "/proc", "/proc"]),
        *("--dev", "/dev", *room, "/tmp", *shown, "--bind", str(control), CONTROL),
        # What lies between the mounts is one file system for all kernels: for an ordinary user it would be writable.
        *("--remount-ro", "/dev", *room, "/dev/shm", "--remount-ro", "/", "--chdir", "/tmp", "--"),
    ]


def enter(control: Path) -> None:
    """The same view by mounts of our own, for the fork that returns from here. OSError if refused.

    Next to the folder `control` an empty folder `root` is expected, to mount on.
    """
    as_root = os.geteuid() == 0
    linux.unshare(linux.EVERY_NAMESPACE & ~(linux.NEW_USER if as_root else 0), inside=os.getuid())
    if child := os.fork():  # the new PID namespace holds for children
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    linux.die_with_parent()
    linux.mount("none", "/", None, linux.RECURSIVE | linux.PRIVATE)
    root = str(control.parent / "root")  # an empty folder; one of the system's would hide what lies in it
    linux.mount("tmpfs", root, "tmpfs", linux.NO_SUID | linux.NO_DEV, "mode=755,size=1m")
    _fill(root, control)
    linux.pivot_root(root)
    os.chdir("/tmp")


def _fill(root: str, control: Path) -> None:
    # First, since the workbook itself may lie in /tmp.
    for folder in ("/tmp", "/dev/shm"):
        os.makedirs(root + folder, exist_ok=True)
        linux.mount("tmpfs", root + folder, "tmpfs", linux.NO_SUID | linux.NO_DEV, "mode=1777,size=64m")
    for path in readable():
        if os.path.islink(path):
            _parent(root + path)
            os.symlink(os.readlink(path), root + path)
        else:
            linux.bind(path, _place(path, root + path))
    linux.bind(str(control), _place(str(control), root + CONTROL), writable=True)
    for name in _DEVICES:
        target = _place(f"/dev/{name}", f"{root}/dev/{name}")
        linux.mount(f"/dev/{name}", target, None, linux.BIND)
    os.makedirs(f"{root}/proc")
    linux.mount("proc", f"{root}/proc", "proc", linux.NO_SUID | linux.NO_DEV | linux.NO_EXEC)
    # One file system for all kernels, and for an ordinary user it would be writable.
    linux.mount("none", root, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)


def _place(source: str, target: str) -> str:
    """An empty folder or file at `target`, to mount over."""
    _parent(target)
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "a").close()
    return target


def _parent(path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)


def _inside_another(path: str, paths: list[str]) -> bool:
    return any(other != path and path.startswith(f"{other}/") and not os.path.islink(other) for other in paths)
