"""A process that leaves nothing behind: no file, no name, no process, no number that the system keeps of another one.

Linux asks a small program of classic BPF before each call (seccomp), so it does not matter who calls: Python, which
tells of most such things, or a library that tells nobody, as the semaphores of multiprocessing and readline's history.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # as Linux's audit counts them; column of the numbers
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, RETURN, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the lower half of the argument
X32 = 0x40000000  # x86_64's calls under other numbers, which would walk round the filter
CLONE, CLONE3 = (56, 220), 435
_CLONE_THREAD, _NONE = 0x10000, -1  # _NONE: a call that aarch64 does not have
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | 0x400000  # the last begins O_TMPFILE
_OPEN, _OPENAT, _OPENAT2 = (2, _NONE), (257, 56), (437, 437)
# Names of calls and their numbers on x86_64 and aarch64.
_REFUSED = {
    "creat": (85, _NONE), "rename": (82, _NONE), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, _NONE),
    "linkat": (265, 37), "symlink": (88, _NONE), "symlinkat": (266, 36), "mkdir": (83, _NONE), "mkdirat": (258, 34),
    "mknod": (133, _NONE), "mknodat": (259, 33), "unlink": (87, _NONE), "unlinkat": (263, 35), "rmdir": (84, _NONE),
    "truncate": (76, 45), "chmod": (90, _NONE), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, _NONE),
    "fchown": (93, 55), "lchown": (94, _NONE), "fchownat": (260, 54), "utime": (132, _NONE), "utimes": (235, _NONE),
    "futimesat": (261, _NONE), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "pidfd_send_signal": (424, 424),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "socket": (41, 198),
    "fork": (57, _NONE), "vfork": (58, _NONE), "execve": (59, 221), "execveat": (322, 281),
}  # fmt: skip
_PRLIMIT = (302, 261)  # of this process alone: glibc asks its own limits by it
_NO_NEW_PRIVILEGES, _SECCOMP, _SECCOMP_FILTER = 38, 22, 2


def leave_nothing_behind(machine: str = platform.machine()) -> None:
    """From here on this process reads, and nothing else. OSError where Linux has no such filter.

    Its threads begin as before, and what is open for writing stays so.
    """
    text = program(machine)
    steps = ctypes.create_string_buffer(text, len(text))
    whole = struct.pack("HxxxxxxP", len(text) // 8, ctypes.addressof(steps))  # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _SECCOMP_FILTER, ctypes.c_char_p(whole), 0, 0)):
        if libc.prctl(*arguments) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"prctl: {os.strerror(number)}")


def program(machine: str) -> bytes:
    """The filter for `machine`, as platform.machine() names it. OSError ENOSYS where the numbers are not known."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls is known for {machine}")
    column = list(ARCHITECTURES).index(machine)
    refuse, missing = step(RETURN, ERRNO | errno.EPERM), step(RETURN, ERRNO | errno.ENOSYS)
    steps = [step(LOAD, ARCHITECTURE), step(IF_EQUAL, ARCHITECTURES[machine], 1, 0), refuse]
    steps += [step(LOAD, NUMBER), step(IF_AT_LEAST, X32, 0, 1), refuse]
    for number in (CLONE3, _OPENAT2[column]):  # whose flags lie where no filter can look; libc falls back
        steps += [step(IF_EQUAL, number, 0, 1), missing]
    for numbers in _REFUSED.values():
        steps += [step(IF_EQUAL, numbers[column], 0, 1), refuse] if numbers[column] != _NONE else []
    steps += on_argument(CLONE[column], 0, [step(IF_ANY_BIT, _CLONE_THREAD, 1, 0), refuse, step(RETURN, ALLOW)])
    steps += on_argument(_PRLIMIT[column], 0, [step(IF_EQUAL, 0, 1, 0), refuse, step(RETURN, ALLOW)])
    for numbers, place in ((_OPEN, 1), (_OPENAT, 2)):
        if numbers[column] != _NONE:
            looks = [step(IF_ANY_BIT, _WRITES, 0, 1), refuse, step(RETURN, ALLOW)]
            steps += on_argument(numbers[column], place, looks)
    return b"".join([*steps, step(RETURN, ALLOW)])


def on_argument(number: int, place: int, steps: list[bytes]) -> list[bytes]:
    """Of the call `number`, look at an argument; `steps` decide and never go on."""
    return [step(IF_EQUAL, number, 0, len(steps) + 1), step(LOAD, FIRST_ARGUMENT + 8 * place), *steps]


def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter: what to do, how many steps to skip if the test holds, and if it does not."""
    return struct.pack("=HBBI", code, if_true, if_false, value)
