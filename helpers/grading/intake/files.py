"""What was handed in, a folder, a file or a zip (see `archives`), looked at without trusting any of it.

Nothing is followed, run or unpacked to a path: `entries` names what is there and why it could not be used, and
`contents` gives the bytes of one regular file of bounded size. Only what a grader asks for is ever opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from .reading import MOST_FILE_BYTES

MOST_FILES = 1_000  # of one learner
MOST_ENTRIES = 500_000  # of all
MOST_DEPTH = 10
SUBMITTED = "submitted"  # nbgrader's folder of everybody's work: submitted/LEARNER/LAB/

LINK = "is a link: the file itself is needed"
SPECIAL = "is not a regular file"
TOO_DEEP = f"lies more than {MOST_DEPTH} folders deep"
_SKIPPED = frozenset({".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git", ".DS_Store"})


class Refused(Exception):  # noqa: N818 - a verdict on a file, not a fault of the program
    """A file that cannot be used; the text is the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class SubmittedFile:
    """One file or folder: its path below the root, and why it cannot be used ('' when it can).

    `position` tells two files of one path apart, which an archive can hold.
    """

    parts: tuple[str, ...]
    is_folder: bool = False
    problem: str = ""
    position: int = 0

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.parts[-1]


Contents = Callable[[SubmittedFile], bytes]  # a file's bytes; Refused with the reason when there are none


class OneFile:
    """A single file, given by its path; the path itself may be a link."""

    def __init__(self, path: Path) -> None:
        self._path, self.entries = path, [SubmittedFile((path.name,))]

    def contents(self, entry: SubmittedFile) -> bytes:
        """The file's bytes. Refused with the reason when it is no regular file, too large or unreadable."""
        return _contents(lambda: os.open(self._path, _read_only()))

    def modified(self, entry: SubmittedFile) -> str:
        """When the file was last written, as `moment` says it."""
        return _modified(lambda: os.open(self._path, _read_only()))

    def close(self) -> None:
        """Nothing is held open."""


class Folder:
    """A folder and what is below it. Links below the root are listed as such and never followed."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.entries = list(islice(self._class(), MOST_ENTRIES + 1))

    def contents(self, entry: SubmittedFile) -> bytes:
        """The file's bytes. Refused with the reason when it is no regular file, too large or unreadable."""
        return _contents(lambda: self._open(entry.parts, _read_only()))

    def modified(self, entry: SubmittedFile) -> str:
        """When the file was last written, as `moment` says it; '' when that cannot be told."""
        return _modified(lambda: self._open(entry.parts, _read_only()))

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._root)

    def _open(self, parts: tuple[str, ...], flags: int) -> int:
        """Step by step from the root, so that no part of the path can be a link, not even one put there since."""
        here = os.dup(self._root)
        try:
            for part in parts[:-1]:
                deeper = os.open(part, _folder_only(), dir_fd=here)
                os.close(here)
                here = deeper
            return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=here)
        finally:
            os.close(here)

    def _class(self, parts: tuple[str, ...] = ()) -> Iterator[SubmittedFile]:
        """Every entry; below each learner's folder one over MOST_FILES at the most, so that the others are reached."""
        found = self._scanned(parts, MOST_ENTRIES)
        yield from found
        is_lone = sum(entry.is_folder or ".ipynb" in entry.name.lower() for entry in found) == 1
        for entry in found:
            can_hold_all = is_lone or entry.name == SUBMITTED
            if entry.is_folder and can_hold_all and not entry.problem:
                yield from self._class(entry.parts)
            else:
                yield from islice(self._below(entry), MOST_FILES + 1)

    def _below(self, entry: SubmittedFile) -> Iterator[SubmittedFile]:
        if entry.is_folder and not entry.problem:
            found = self._scanned(entry.parts, MOST_FILES)
            yield from found  # before what is deeper: a notebook beside a data set is found first
            for one in found:
                yield from self._below(one)

    def _scanned(self, parts: tuple[str, ...], most: int) -> list[SubmittedFile]:
        """What lies directly in a folder, sorted; one more than `most` where there are more."""
        try:
            descriptor = self._open(parts, _folder_only()) if parts else os.dup(self._root)
            try:
                with os.scandir(descriptor) as found:
                    items = sorted(islice(found, most + 1), key=lambda item: item.name)
                    entries = [_entry(item, (*parts, item.name)) for item in items]
            finally:
                os.close(descriptor)
        except OSError as error:
            return [SubmittedFile(parts, is_folder=True, problem=_cannot(error))]
        return [entry for entry in entries if not is_skipped(entry.parts, entry.is_folder)]


def is_skipped(parts: tuple[str, ...], is_folder: bool) -> bool:
    """True for what editors and systems leave behind, and for hidden folders of a learner (.venv holds thousands)."""
    folders = parts if is_folder else parts[:-1]
    left_behind = any(part in _SKIPPED or part.startswith("._") for part in parts)
    return left_behind or any(part.startswith(".") for part in folders[1:])


def too_large(size_bytes: int) -> str:
    """What is wrong with a file of this size."""
    return f"has {size_bytes / 10**6:,.0f} MB, more than {MOST_FILE_BYTES / 10**6:.0f} MB: clear its outputs"


def _read_only() -> int:
    # Not blocking: opening a FIFO would wait for somebody to write into it.
    return os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def _folder_only() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _contents(opened: Callable[[], int]) -> bytes:
    try:
        with os.fdopen(opened(), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise Refused(SPECIAL)
            if facts.st_size > MOST_FILE_BYTES:
                raise Refused(too_large(facts.st_size))
            found = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise Refused(_cannot(error)) from None
    if len(found) > MOST_FILE_BYTES:  # it grew since
        raise Refused(too_large(len(found)))
    return found


def _modified(opened: Callable[[], int]) -> str:
    try:
        with os.fdopen(opened(), "rb") as file:
            return moment(datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC))
    except (OSError, OverflowError, ValueError):  # gone since, or a time before the calendar
        return ""


def moment(time: datetime) -> str:
    """A time as it is stored: UTC, ISO 8601, to the second. One without a zone is taken in this machine's zone.

    >>> moment(datetime(2026, 10, 1, 12, tzinfo=UTC))
    '2026-10-01T12:00:00+00:00'
    """
    return time.astimezone(UTC).isoformat(timespec="seconds")


def _cannot(error: OSError) -> str:
    return f"cannot be read ({(error.strerror or type(error).__name__).lower()})"


def _entry(item: os.DirEntry, parts: tuple[str, ...]) -> SubmittedFile:
    if item.is_symlink():
        return SubmittedFile(parts, problem=LINK)
    if item.is_dir(follow_symlinks=False):
        return SubmittedFile(parts, is_folder=True, problem=TOO_DEEP if len(parts) > MOST_DEPTH else "")
    return SubmittedFile(parts, problem="" if item.is_file(follow_symlinks=False) else SPECIAL)
