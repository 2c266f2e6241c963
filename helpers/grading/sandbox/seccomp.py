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
import struct

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
CLONE, CLONE3 = (56, 220), 435
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW… of clone(2): users, processes, mounts, networks, IPC, names, cgroups
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as Linux's audit counts them; column of the numbers
_X32 = 0x40000000  # x86_64's calls under other numbers, which would walk round the filter
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _RETURN, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the lower half of the argument


def program(machine: str) -> bytes:
    """The filter for `machine`, as platform.machine() names it. OSError ENOSYS where the numbers are not known.

    Each test jumps over the one instruction that follows it, or falls into it: "if equal, skip none, else skip one".
    """
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    column = list(ARCHITECTURES).index(machine)
    refuse = _step(_RETURN, _ERRNO | errno.EPERM)
    steps = [_step(_LOAD, _ARCHITECTURE), _step(_IF_EQUAL, ARCHITECTURES[machine], 1, 0), refuse]
    steps += [_step(_LOAD, _NUMBER), _step(_IF_AT_LEAST, _X32, 0, 1), refuse]
    # clone3 keeps its flags in memory, where no filter can look; libc falls back on clone.
    steps += [_step(_IF_EQUAL, CLONE3, 0, 1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for numbers in REFUSED.values():
        steps += [_step(_IF_EQUAL, numbers[column], 0, 1), refuse]
    namespaces = [_step(_IF_ANY_BIT, NEW_NAMESPACES, 0, 1), refuse, _step(_RETURN, _ALLOW)]
    steps += _on_argument(CLONE[column], namespaces)
    families = [_step(_IF_EQUAL, int(family), len(FAMILIES) - at, 0) for at, family in enumerate(FAMILIES)]
    families += [_step(_RETURN, _ERRNO | errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)]
    for numbers in SOCKETS.values():
        steps += _on_argument(numbers[column], families)
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def install(machine: str = platform.machine()) -> None:
    """Filter this process's calls and its children's, for good. OSError where Linux has no such filter."""
    linux.filter_calls(program(machine))


def _on_argument(number: int, steps: list[bytes]) -> list[bytes]:
    """Of the call `number`, look at the first argument; `steps` decide and never go on."""
    return [_step(_IF_EQUAL, number, 0, len(steps) + 1), _step(_LOAD, _FIRST_ARGUMENT), *steps]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter: what to do, how many steps to skip if the test holds, and if it does not."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
