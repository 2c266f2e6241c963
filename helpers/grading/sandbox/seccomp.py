"""A filter of system calls, for a kernel and whatever it starts: the doors into Linux that no lab needs.

Namespaces hide files, processes and networks. They do not hide AF_VSOCK, by which a virtual machine reaches its host,
nor the calls where most holes of the last years were: io_uring, bpf, perf, userfaultfd, keys, new namespaces.

The filter is a program of classic BPF, some fifty instructions that Linux runs before each call. It sees the
processor's architecture, the call's number and its arguments, and answers "allow" or an errno. It is written here by
hand, because libseccomp, which compiles such programs, is a library of the system that a grading machine may lack.
"""

from __future__ import annotations

import errno
import platform
import socket

from ...lesson.reading_only import (
    ALLOW,
    ARCHITECTURE,
    ARCHITECTURES,
    CLONE,
    CLONE3,
    ERRNO,
    IF_ANY_BIT,
    IF_AT_LEAST,
    IF_EQUAL,
    LOAD,
    NUMBER,
    RETURN,
    X32,
    on_argument,
    step,
)
from . import linux

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)  # 16 is AF_NETLINK: libc asks it for interfaces
# Names of calls and their numbers on x86_64 and aarch64; calls since Linux 5.1 have the same on both.
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265),
    "mknod": (133, 33), "mknodat": (259, 33),  # and with them mkfifo: ranks would talk by the names of pipes
}  # fmt: skip
SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW… of clone(2): users, processes, mounts, networks, IPC, names, cgroups


def program(machine: str) -> bytes:
    """The filter for `machine`, as platform.machine() names it. OSError ENOSYS where the numbers are not known.

    Each test jumps over the one instruction that follows it, or falls into it: "if equal, skip none, else skip one".
    """
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    column = list(ARCHITECTURES).index(machine)
    refuse = step(RETURN, ERRNO | errno.EPERM)
    steps = [step(LOAD, ARCHITECTURE), step(IF_EQUAL, ARCHITECTURES[machine], 1, 0), refuse]
    steps += [step(LOAD, NUMBER), step(IF_AT_LEAST, X32, 0, 1), refuse]
    # clone3 keeps its flags in memory, where no filter can look; libc falls back on clone.
    steps += [step(IF_EQUAL, CLONE3, 0, 1), step(RETURN, ERRNO | errno.ENOSYS)]
    for numbers in REFUSED.values():
        steps += [step(IF_EQUAL, numbers[column], 0, 1), refuse]
    namespaces = [step(IF_ANY_BIT, NEW_NAMESPACES, 0, 1), refuse, step(RETURN, ALLOW)]
    steps += on_argument(CLONE[column], 0, namespaces)
    families = [step(IF_EQUAL, int(family), len(FAMILIES) - at, 0) for at, family in enumerate(FAMILIES)]
    families += [step(RETURN, ERRNO | errno.EAFNOSUPPORT), step(RETURN, ALLOW)]
    for numbers in SOCKETS.values():
        steps += on_argument(numbers[column], 0, families)
    return b"".join([*steps, step(RETURN, ALLOW)])


def install(machine: str = platform.machine()) -> None:
    """Filter this process's calls and its children's, for good. OSError where Linux has no such filter."""
    linux.filter_calls(program(machine))
