"""The Linux system calls behind the sandbox, with errors as OSError; nothing here decides anything."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct

# clone(2)'s CLONE_NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_EVERY_NAMESPACE = 0x20000 | 0x4000000 | 0x8000000 | 0x10000000 | 0x20000000 | 0x40000000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DEATH_SIGNAL, _DUMPABLE, _DROP_FROM_BOUNDING_SET, _SUBREAPER, _NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
_SECCOMP, _SECCOMP_FILTER = 22, 2
_CAPABILITY_VERSION_3 = 0x20080522
_SET_FLAGS, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def unshare_all(inside: int) -> None:
    """New namespaces of every kind for this process; the one of processes holds for its children.

    We are the user and group `inside` afterwards, whoever we were; there is no other.
    """
    user, group = os.getuid(), os.getgid()  # afterwards we would be nobody
    _call("unshare", _EVERY_NAMESPACE)
    maps = {"setgroups": "deny", "uid_map": f"{inside} {user} 1", "gid_map": f"{inside} {group} 1"}
    for name, text in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """mount(2); `kind` None for bind mounts and changes of an existing one."""
    texts = [source.encode(), target.encode(), kind.encode() if kind else None]
    _call("mount", *texts, ctypes.c_ulong(flags), options.encode() or None)


def loopback_up() -> None:
    """In a network namespace of our own: 127.0.0.1 and nothing else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("16sH22x", b"lo", _UP))


def drop_privileges() -> None:
    """No capability is left, and none can come back, by exec or otherwise."""
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for capability in range(64):
        _libc.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)  # fails where it does not exist, or is gone
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", header, bytes(24))


def filter_calls(program: bytes) -> None:
    """Seccomp: Linux runs `program` before each system call of ours and our children's. First `drop_privileges`."""
    steps = ctypes.create_string_buffer(program, len(program))
    whole = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps))  # struct sock_fprog
    _call("prctl", _SECCOMP, _SECCOMP_FILTER, ctypes.c_char_p(whole), 0, 0)


def become(user: int) -> None:
    """From root to an ordinary user without a name, for good; /proc/self stays ours."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _call("prctl", _DUMPABLE, 1, 0, 0, 0)


def die_with_parent() -> None:
    """SIGKILL when the parent (the thread that forked us) ends."""
    _call("prctl", _DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)


def keep_orphans() -> None:
    """Descendants whose parent ends become our children, so that none gets away."""
    _call("prctl", _SUBREAPER, 1, 0, 0, 0)


def limit_cpu(seconds: int) -> None:
    """SIGXCPU when this process or one of its children has run for `seconds`, and SIGKILL five later."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


def limit(**bytes_or_counts: int) -> None:
    """Resource limits by name, hard ones too: limit(data=3 << 30, nofile=256). A lower one that holds stays."""
    for name, value in bytes_or_counts.items():
        which = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
