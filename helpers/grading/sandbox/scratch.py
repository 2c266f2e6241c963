"""Folders of our own in /tmp. Who is killed leaves theirs behind, and the next run sweeps it.

Each owner holds a lock on a file in its folder, which the kernel of the system lets go of when the process ends,
however it ends. So a folder without an owner is known without asking for process numbers, which are given out again
and are other ones in a container.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PLACE = Path("/tmp")  # because the path of a socket may have 107 characters
PREFIX, UNOWNED = "wb-", "wb.new-"
OWNER = "owner.lock"


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder that nobody else may look into, gone at the end."""
    made = Path(tempfile.mkdtemp(prefix=UNOWNED, dir=PLACE))
    with open(made / OWNER, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Only now does it have a name that is swept: a folder so named has had an owner.
        folder = made.rename(made.with_name(made.name.replace(UNOWNED, PREFIX, 1)))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> list[Path]:
    """Remove what our own runs left behind when they were killed; which folders those were.

    Left alone: another user's, what still has its owner, a link, and a folder that says nothing about its owner.
    """
    found = [one for one in PLACE.glob(f"{PREFIX}*") if _is_abandoned(one)]
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _is_abandoned(folder: Path) -> bool:
    with suppress(OSError):  # gone, another user's, or its owner holds the lock
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(place).st_uid != os.geteuid():
                return False
            lock = os.open(OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            finally:
                os.close(lock)
        finally:
            os.close(place)
    return False
