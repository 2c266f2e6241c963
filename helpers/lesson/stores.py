"""Where an answer could keep bytes that no meter counts, and that were opened before it was asked: they are shut.

What is opened while something is asked, `guard` refuses. A pipe, a socket, a file, shared memory or another process of
an earlier cell's is there already, and nothing tells of what goes into it. So before a question is asked,

*   a descriptor that holds bytes in this process (a pipe or a socket of which both ends are here, a terminal, a file
    that is open for writing) becomes one of nothing, which gives nothing back; what goes into a file is lost;
*   memory that is shared can be read alone, as long as it is asked;
*   processes end that cells of one's own have started.

What was there when answers began stays, as does what starts ranks and talks to them. For Linux alone. Nothing of a
learner's is called here, and no function by a name that a learner could change.
"""

from __future__ import annotations

import ctypes
import stat
from _socket import AF_UNIX, SO_PEERCRED, SOCK_DGRAM, SOL_SOCKET
from _socket import socket as _Raw
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from os import O_ACCMODE, O_RDONLY, O_RDWR, O_WRONLY, close, dup2, fstat, getpid, kill, listdir, major, stat_result
from os import open as _open
from signal import SIGKILL
from socket import socket as Socket
from struct import unpack
from typing import NamedTuple

LITTLE_BYTES = 1 << 16  # of shared memory in all: a lock that processes share takes a page
_PAGE_BYTES = 1 << 12
_MEMORY_DEVICES = 1  # the number of /dev/null, /dev/zero and /dev/urandom: they keep nothing
_READ, _WRITE = 1, 2  # of mprotect
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_mprotect, _prctl = _LIBC.mprotect, _LIBC.prctl
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NULL = "/dev/null"
number_of = Socket.fileno
Mapping = tuple[int, int]  # where it begins, where it ends


class There(NamedTuple):
    """What was there: descriptors with device and inode, shared memory, processes."""

    descriptors: frozenset[tuple[int, int, int]]
    mappings: frozenset[Mapping]
    processes: frozenset[int]


def now_there() -> There:
    """What is there now."""
    descriptors = frozenset((at, one.st_dev, one.st_ino) for at, one in _descriptors())
    return There(descriptors, frozenset(_shared()), frozenset(_descendants(())))


def adopt_orphans() -> None:
    """Whoever loses a parent among this process's descendants becomes its child, so that none is lost from sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def shut(before: There, spared: Iterable[int], ours: Iterable[int]) -> list[Mapping]:
    """Shut what came since; the shared memory that can no longer be written, for `reopen`.

    Descriptors in `spared` stay, and the processes in `ours` with theirs.
    """
    for process in _descendants({*before.processes, *ours}):
        with suppress(OSError):
            kill(process, SIGKILL)
    new = {at: one for at, one in _descriptors() if (at, one.st_dev, one.st_ino) not in before.descriptors}
    kept = [at for at in _keeping(new) if at not in spared]
    if kept:
        nothing, gone = _open(_NULL, O_RDONLY), _open(_NULL, O_WRONLY)
        for at in kept:
            dup2(gone if stat.S_ISREG(new[at].st_mode) else nothing, at)  # who writes a log goes on
        close(nothing)
        close(gone)
    return _protected(one for one in _shared() if one not in before.mappings)


def reopen(mappings: Iterable[Mapping]) -> None:
    """Shared memory can be written again."""
    for begin, end in mappings:
        _mprotect(begin, end - begin, _READ | _WRITE)


def _protected(mappings: Iterable[Mapping]) -> list[Mapping]:
    large = [(begin, end) for begin, end in mappings if end - begin > _PAGE_BYTES]
    if sum(end - begin for begin, end in large) <= LITTLE_BYTES:
        return []
    return [(begin, end) for begin, end in large if _mprotect(begin, end - begin, _READ) == 0]


def _descriptors() -> Iterator[tuple[int, stat_result]]:
    for name in listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own
            yield int(name), fstat(int(name))


def _keeping(new: dict[int, stat_result]) -> Iterator[int]:
    """Of descriptors, those that hold bytes here."""
    pipes: dict[int, set[int]] = {}  # by inode: the ends that are here
    sockets = []
    for at, one in new.items():
        with suppress(OSError):
            mode = fcntl(at, F_GETFL) & O_ACCMODE
            if stat.S_ISFIFO(one.st_mode):
                pipes.setdefault(one.st_ino, set()).add(mode)
            elif stat.S_ISSOCK(one.st_mode):
                sockets.append(at)
            elif _is_terminal(one) or (stat.S_ISREG(one.st_mode) and mode != O_RDONLY):
                yield at
    both = {inode for inode, modes in pipes.items() if O_RDWR in modes or modes >= {O_RDONLY, O_WRONLY}}
    yield from (at for at, one in new.items() if stat.S_ISFIFO(one.st_mode) and one.st_ino in both)
    yield from _with_both_ends(sockets)


def _is_terminal(one: stat_result) -> bool:
    return stat.S_ISCHR(one.st_mode) and major(one.st_rdev) != _MEMORY_DEVICES


def _with_both_ends(sockets: list[int]) -> Iterator[int]:
    """Of sockets, those that talk to this process, or to nobody that is known."""
    told = {at: _ends_of(at) for at in sockets}
    here = {name for name, _, _ in told.values() if name}
    for at, (_, peer, alone) in told.items():
        if alone or peer in here:
            yield at


def _ends_of(at: int) -> tuple[object, object, bool]:
    """Its own name and its peer's, and whether the peer is this process, or anybody."""
    one = _Raw(fileno=at)
    try:
        name, peer, process = None, None, 0
        with suppress(OSError):
            name = one.getsockname()
            peer = one.getpeername()
        if one.family == AF_UNIX:
            process = unpack("3i", one.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))[0]
        return name, peer, process == getpid() or one.type == SOCK_DGRAM
    finally:
        one.detach()


def _shared() -> Iterator[Mapping]:
    """Shared memory that can be written."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            where, rights = line.split(" ", 2)[:2]
            if rights[1] == "w" and rights[3] == "s":
                begin, _, end = where.partition("-")
                yield int(begin, 16), int(end, 16)


def _descendants(spared: Collection[int]) -> list[int]:
    """Processes that this one has started, and those that they have; without `spared` and theirs."""
    found, waiting = [], [getpid()]
    while waiting:
        process = waiting.pop()
        with suppress(OSError):
            for thread in listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children") as told:
                    waiting += [one for one in map(int, told.read().split()) if one not in spared]
        found.append(process)
    return found[1:]
