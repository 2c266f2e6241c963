"""What was handed in, a folder or a zip, looked at without trusting any of it.

Nothing is followed, run or unpacked to a path: `entries` names what is there and why it could not be used, and
`contents` gives the bytes of one regular file of bounded size. Only what a grader asks for is ever opened.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from ...catalog.errors import WorkbookError
from .reading import MOST_BYTES

MOST_FILES = 1_000  # of one learner
MOST_ENTRIES = 500_000  # of all
MOST_DEPTH = 10
SUBMITTED = "submitted"  # nbgrader's folder of everybody's work: submitted/LEARNER/LAB/

LINK = "is a link: the file itself is needed"
SPECIAL = "is not a regular file"
TOO_DEEP = f"lies more than {MOST_DEPTH} folders deep"
_SKIPPED = frozenset({".ipynb_checkpoints", "__MACOSX", "__pycache__", ".git", ".DS_Store"})
MOST_UNPACKED_BYTES = 4 * 10**9  # of all files together
MOST_RATIO = 250  # unpacked to packed, of a file over a megabyte: prose has 5, a flood of numbered lines 20
MOST_DIRECTORY_BYTES = 8 * 10**6
MOST_LEARNER_BYTES = 5 * MOST_BYTES  # unpacked of a zip that one learner handed in
MOST_LEARNER_DIRECTORY_BYTES = 10**6
STRAYS = "has a path that leads out of the archive"
DAMAGED = "is damaged in the archive"
_CHUNK_BYTES = 2**16
_DRIVE = re.compile("[A-Za-z]:")
_UTF8 = 0x800
_ENCRYPTED = 0x1
# All that zipfile raises on broken archives, found by breaking some.
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError, OverflowError)


class Refused(Exception):  # noqa: N818 - a verdict on a file, not a fault of the program
    """A file that cannot be used; the text is the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class Entry:
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


class OneFile:
    """A single file, given by its path; the path itself may be a link."""

    def __init__(self, path: Path) -> None:
        self._path, self.entries = path, [Entry((path.name,))]

    def contents(self, entry: Entry) -> bytes:
        """The file's bytes. Refused with the reason when it is no regular file, too large or unreadable."""
        return _contents(lambda: os.open(self._path, _read_only()))

    def modified(self, entry: Entry) -> str:
        """When the file was last written, as `moment` says it."""
        return _modified(lambda: os.open(self._path, _read_only()))

    def close(self) -> None:
        """Nothing is held open."""


class Folder:
    """A folder and what is below it. Links below the root are listed as such and never followed."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.entries = list(islice(self._class(), MOST_ENTRIES + 1))

    def contents(self, entry: Entry) -> bytes:
        """The file's bytes. Refused with the reason when it is no regular file, too large or unreadable."""
        return _contents(lambda: self._open(entry.parts, _read_only()))

    def modified(self, entry: Entry) -> str:
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

    def _class(self, parts: tuple[str, ...] = ()) -> Iterator[Entry]:
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

    def _below(self, entry: Entry) -> Iterator[Entry]:
        if entry.is_folder and not entry.problem:
            found = self._scanned(entry.parts, MOST_FILES)
            yield from found  # before what is deeper: a notebook beside a data set is found first
            for one in found:
                yield from self._below(one)

    def _scanned(self, parts: tuple[str, ...], most: int) -> list[Entry]:
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
            return [Entry(parts, is_folder=True, problem=_cannot(error))]
        return [entry for entry in entries if not is_skipped(entry.parts, entry.is_folder)]


def is_skipped(parts: tuple[str, ...], is_folder: bool) -> bool:
    """True for what editors and systems leave behind, and for hidden folders of a learner (.venv holds thousands)."""
    folders = parts if is_folder else parts[:-1]
    left_behind = any(part in _SKIPPED or part.startswith("._") for part in parts)
    return left_behind or any(part.startswith(".") for part in folders[1:])


def too_large(size_bytes: int) -> str:
    """What is wrong with a file of this size."""
    return f"has {size_bytes / 10**6:,.0f} MB, more than {MOST_BYTES / 10**6:.0f} MB: clear its outputs"


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
            if facts.st_size > MOST_BYTES:
                raise Refused(too_large(facts.st_size))
            found = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Refused(_cannot(error)) from None
    if len(found) > MOST_BYTES:  # it grew since
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


def _entry(item: os.DirEntry, parts: tuple[str, ...]) -> Entry:
    if item.is_symlink():
        return Entry(parts, problem=LINK)
    if item.is_dir(follow_symlinks=False):
        return Entry(parts, is_folder=True, problem=TOO_DEEP if len(parts) > MOST_DEPTH else "")
    return Entry(parts, problem="" if item.is_file(follow_symlinks=False) else SPECIAL)


class Archive:
    """A zip, opened. One of zipfile's errors (`_BROKEN`) when it cannot be read at all."""

    def __init__(self, file: io.FileIO | io.BytesIO, most_unpacked_bytes: int) -> None:
        self._file, self._most_unpacked_bytes = file, most_unpacked_bytes
        self._zip = zipfile.ZipFile(file)
        self._infos = self._zip.infolist()
        self._unpacked_bytes = 0
        entries = (_archived(info, position) for position, info in enumerate(self._infos))
        self.entries = [entry for entry in entries if entry]

    def contents(self, entry: Entry) -> bytes:
        """The file's bytes, unpacked in memory. Refused with the reason when it is too large or damaged."""
        if self._unpacked_bytes > self._most_unpacked_bytes:
            raise Refused(f"comes after {self._most_unpacked_bytes / 10**9:g} GB of this archive: unpack it yourself")
        unpacked = bytearray()
        try:
            with self._zip.open(self._infos[entry.position]) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    unpacked += chunk
                    if len(unpacked) > MOST_BYTES:
                        raise Refused(too_large(len(unpacked)))
        except _BROKEN:
            raise Refused(DAMAGED) from None
        finally:
            self._unpacked_bytes += len(unpacked)
        return bytes(unpacked)

    def modified(self, entry: Entry) -> str:
        """The time that the archive gives the file, as `moment` says it; '' when it gives none.

        A zip's times have no zone. They are taken in this machine's, as they are when the zip is unpacked here.
        """
        stated = self._infos[entry.position].date_time
        try:
            # Midnight of 1 January 1980 is what a program writes that has no time to tell.
            return moment(datetime(*stated)) if stated > (1980, 1, 1, 0, 0, 0) else ""
        except (ValueError, OverflowError):  # month 13, second 62
            return ""

    def close(self) -> None:
        """Let go of the archive."""
        self._zip.close()
        self._file.close()  # which zipfile did not open, and leaves open


def class_archive(path: Path) -> Archive:
    """The zip of a class. WorkbookError when it cannot be read."""
    file = _BoundedFile(path)
    try:
        return Archive(file, MOST_UNPACKED_BYTES)
    except _BROKEN as error:
        file.close()
        what, do = f"{path} cannot be read as a zip: {error}", "download it again, or unpack it and give the folder"
        raise WorkbookError(what, "the zip as the LMS made it", do) from None


def learners_archive(packed: bytes) -> Archive:
    """The zip that one learner handed in. Refused when it cannot be read, or lists thousands of files."""
    try:
        archive = Archive(_BoundedBytes(packed), MOST_LEARNER_BYTES)
    except _BROKEN:
        raise Refused("cannot be read as a zip: pack it again, or hand in the notebook itself") from None
    if len(archive.entries) > MOST_FILES:
        raise Refused(f"holds more than {MOST_FILES:,} files: hand in the notebook itself")
    return archive


class _BoundedFile(io.FileIO):
    """A file that refuses to be read in one large piece: zipfile reads an archive's table of contents at once."""

    def read(self, size: int | None = -1) -> bytes:
        asked = size if size is not None and size >= 0 else os.fstat(self.fileno()).st_size - self.tell()
        return super().read(_within(MOST_DIRECTORY_BYTES, asked))


class _BoundedBytes(io.BytesIO):
    """The same of a zip in memory, whose table of contents is shorter."""

    def read(self, size: int | None = -1) -> bytes:
        asked = size if size is not None and size >= 0 else self.getbuffer().nbytes - self.tell()
        return super().read(_within(MOST_LEARNER_DIRECTORY_BYTES, asked))


def _within(most: int, asked: int) -> int:
    if asked > most:
        raise zipfile.BadZipFile(f"its table of contents is larger than {most / 10**6:g} MB")
    return asked


def _archived(info: zipfile.ZipInfo, position: int) -> Entry | None:
    name = _name(info)
    # Archives made on Windows separate with backslashes. No part keeps one, and none is a drive or leads upwards.
    steps = [step for step in re.split(r"[/\\]+", name) if step not in ("", ".")]
    # A name can have 65,535 characters here, and would be matched against patterns: its end tells more than its start.
    parts = tuple(step[-255:] for step in steps if step != ".." and not _DRIVE.fullmatch(step))
    if not parts or is_skipped(parts, info.is_dir()):
        return None
    strays = len(parts) < len(steps) or name.startswith(("/", "\\"))
    return Entry(parts, info.is_dir(), STRAYS if strays else _problem(info, len(parts)), position)


def _name(info: zipfile.ZipInfo) -> str:
    """The entry's path. macOS and others write UTF-8 without saying so, which zipfile reads as code page 437."""
    if info.flag_bits & _UTF8:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _problem(info: zipfile.ZipInfo, depth: int) -> str:
    kind = stat.S_IFMT(info.external_attr >> 16)
    packed_bytes, unpacked_bytes = info.compress_size, info.file_size
    rules = (
        (depth > MOST_DEPTH + 1, TOO_DEEP),
        (kind == stat.S_IFLNK, LINK),
        (kind not in (0, stat.S_IFREG, stat.S_IFDIR), SPECIAL),
        (info.flag_bits & _ENCRYPTED, "is encrypted"),
        (info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED), "is packed in an unusual way"),
        (unpacked_bytes > MOST_BYTES, too_large(unpacked_bytes)),
        (unpacked_bytes > max(10**6, MOST_RATIO * packed_bytes), f"unpacks to over {MOST_RATIO} times its size"),
    )
    return next((problem for broken, problem in rules if broken), "")
