"""What ranks pass to each other beside their collectives is counted nowhere: here it is refused."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import cache
from unittest import mock

import torch.distributed as dist

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_NAMES = "mkdir rmdir rename remove link symlink truncate utime chmod chown setxattr"  # a name is a message, too
_STARTS = "system exec fork forkpty posix_spawn spawn kill"
_REFUSED = {f"os.{name}" for name in f"{_NAMES} {_STARTS}".split()}
_REFUSED |= {f"socket.{name}" for name in ("__new__", "bind", "connect", "sendto", "sendmsg")}
_REFUSED |= {"subprocess.Popen", "mmap.__new__", "sqlite3.connect", "syslog.syslog"}
_STORES = ("set", "append", "compare_set", "multi_set", "queue_push")


class CollectivesAlone:
    """While it is open, this process reaches no other by files, their names, sockets, stores or new processes.

    `Collectives` counts what collectives carry, and would see nothing of these. PermissionError for the first of them,
    which Python's own imports take for a folder without room for a cache. torch.distributed makes new groups as before.
    What a library writes in C++ alone is not seen.

    >>> with CollectivesAlone():
    ...     open("for-rank-1", "w")
    Traceback (most recent call last):
    PermissionError: open('for-rank-1'): ranks pass values by collectives alone here, for nothing else is counted
    """

    def __init__(self) -> None:
        self._patched = ExitStack()

    def __enter__(self) -> CollectivesAlone:
        for name in _STORES:
            self._patched.enter_context(mock.patch.object(dist.Store, name, _refused))
        _open().append(self)
        return self

    def __exit__(self, *problem: object) -> None:
        _open().remove(self)
        self._patched.close()


@cache
def _open() -> list[CollectivesAlone]:
    """Those that are open. The hook that asks for them is there from the first call on: Python takes none out again."""
    found: list[CollectivesAlone] = []

    def refuse(event: str, args: tuple) -> None:
        if found and (event in _REFUSED or (event == "open" and args[2] & _WRITES)):
            raise _refusal(event, args)

    sys.addaudithook(refuse)
    return found


def _refused(store: object, *arguments: object) -> None:
    raise _refusal("a store", arguments)


def _refusal(what: str, args: tuple) -> PermissionError:
    told = f"{what}({', '.join(map(repr, args[:1]))})"
    return PermissionError(f"{told}: ranks pass values by collectives alone here, for nothing else is counted")
