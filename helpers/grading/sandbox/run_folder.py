"""A worker's folder in /tmp: its owner's alone, and removed by the next run where a killed one left it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...catalog.errors import WorkbookError

PLACE = Path("/tmp")  # whatever TMPDIR says: the path of a socket may have 107 characters
PREFIX = "wb-run-"
YOUNG_S = 10  # it may not be locked yet
LEAST_BYTES, LEAST_FILES = 16 << 20, 100  # of room, for one run's notebook, results and logs
FREE_SOME = "free some space there, and run the same command again"


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """A folder that nobody else can look into, removed at the end. WorkbookError when none can be made.

    It is locked as long as this process lives. Linux opens the lock of a process that is killed, so a folder without
    a lock has no owner: neither a process's number, which another one may have by now, nor a clock is asked.
    """
    sweep()
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))  # mode 0700
        lock = _lock(folder)
    except OSError as error:
        what, expected = f"no folder can be made in {PLACE}: {error.strerror}", f"a {PLACE} that can be written to"
        raise WorkbookError(what, expected, FREE_SOME) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep() -> None:
    """Remove our folders whose owner is gone."""
    for path in PLACE.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, or in use, or just removed
            lock = _lock(path)
            try:
                status = os.fstat(lock)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > YOUNG_S:
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def lacks_room(folder: Path) -> str:
    """What is used up on the disk of `folder`, or ''."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return f"{PLACE}: {error.strerror}"
    if found.f_bavail * found.f_frsize < LEAST_BYTES:
        return f"there is no room left in {PLACE}: see df -h {PLACE}"
    if found.f_files and found.f_favail < LEAST_FILES:
        return f"there is no room for more files in {PLACE}: see df -i {PLACE}"
    return ""


def _lock(folder: Path) -> int:
    """The open folder, locked; BlockingIOError while another process holds it. No link is followed."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise
    return opened
