"""Zips, unpacked in memory and within bounds: that of a class, and those that single learners handed in."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from ...catalog.errors import WorkbookError
from .files import (
    LINK,
    MOST_DEPTH,
    MOST_FILES,
    SPECIAL,
    TOO_DEEP,
    Contents,
    Refused,
    SubmittedFile,
    is_skipped,
    moment,
    too_large,
)
from .reading import MOST_FILE_BYTES

MOST_ARCHIVES = 3  # of one learner that are opened
MOST_UNPACKED_BYTES = 4 * 10**9  # of all files together
MOST_RATIO = 250  # unpacked to packed, of a file over a megabyte: prose has 5, a flood of numbered lines 20
MOST_DIRECTORY_BYTES = 8 * 10**6
MOST_LEARNER_BYTES = 2 * MOST_FILE_BYTES  # unpacked of a zip that one learner handed in
MOST_LEARNER_DIRECTORY_BYTES = 10**6
STRAYS = "has a path that leads out of the archive"
DAMAGED = "is damaged in the archive"
_CHUNK_BYTES = 2**16
_DRIVE = re.compile("[A-Za-z]:")
_UTF8 = 0x800
_ENCRYPTED = 0x1
# All that zipfile raises on broken archives, found by breaking some.
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError, OverflowError)


class Archive:
    """A zip, opened. One of zipfile's errors (`_BROKEN`) when it cannot be read at all."""

    def __init__(self, file: io.FileIO | io.BytesIO, most_unpacked_bytes: int) -> None:
        self._file, self._most_unpacked_bytes = file, most_unpacked_bytes
        self._zip = zipfile.ZipFile(file)
        self._infos = self._zip.infolist()
        self._unpacked_bytes = 0
        entries = (_archived(info, position) for position, info in enumerate(self._infos))
        self.entries = [entry for entry in entries if entry]

    def contents(self, entry: SubmittedFile) -> bytes:
        """The file's bytes, unpacked in memory. Refused with the reason when it is too large or damaged."""
        if self._unpacked_bytes > self._most_unpacked_bytes:
            raise Refused(f"comes after {self._most_unpacked_bytes / 10**9:g} GB of this archive: unpack it yourself")
        unpacked = bytearray()
        try:
            with self._zip.open(self._infos[entry.position]) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    unpacked += chunk
                    if len(unpacked) > MOST_FILE_BYTES:
                        raise Refused(too_large(len(unpacked)))
        except _BROKEN:
            raise Refused(DAMAGED) from None
        finally:
            self._unpacked_bytes += len(unpacked)
        return bytes(unpacked)

    def modified(self, entry: SubmittedFile) -> str:
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


def _archived(info: zipfile.ZipInfo, position: int) -> SubmittedFile | None:
    name = _name(info)
    # Archives made on Windows separate with backslashes. No part keeps one, and none is a drive or leads upwards.
    steps = [step for step in re.split(r"[/\\]+", name) if step not in ("", ".")]
    # A name can have 65,535 characters here, and would be matched against patterns: its end tells more than its start.
    parts = tuple(step[-255:] for step in steps if step != ".." and not _DRIVE.fullmatch(step))
    if not parts or is_skipped(parts, info.is_dir()):
        return None
    strays = len(parts) < len(steps) or name.startswith(("/", "\\"))
    return SubmittedFile(parts, info.is_dir(), STRAYS if strays else _problem(info, len(parts)), position)


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
        (unpacked_bytes > MOST_FILE_BYTES, too_large(unpacked_bytes)),
        (unpacked_bytes > max(10**6, MOST_RATIO * packed_bytes), f"unpacks to over {MOST_RATIO} times its size"),
    )
    return next((problem for broken, problem in rules if broken), "")


def with_zips_opened(
    entries: Sequence[SubmittedFile], contents: Contents
) -> tuple[list[SubmittedFile], Contents, dict[SubmittedFile, SubmittedFile]]:
    """A learner's `entries` with what is in their zips, what gives their contents, the zip that each of them is in.

    One level is opened, in memory. A zip that cannot be opened stays, with what is wrong with it.
    """
    shown = list(entries)
    archives: dict[SubmittedFile, tuple[Archive, SubmittedFile, SubmittedFile]] = {}
    for packed in [one for one in entries if not one.is_folder and one.name.lower().endswith(".zip")][:MOST_ARCHIVES]:
        try:
            if packed.problem:
                raise Refused(packed.problem)
            archive = learners_archive(contents(packed))
        except Refused as problem:
            shown[shown.index(packed)] = replace(packed, problem=str(problem))
            continue
        inside = {replace(one, parts=(*packed.parts, *one.parts)): one for one in archive.entries}
        archives |= {shown_as: (archive, one, packed) for shown_as, one in inside.items()}
        shown[shown.index(packed) : shown.index(packed) + 1] = inside or [packed]

    def unpacked(entry: SubmittedFile) -> bytes:
        if entry not in archives:
            return contents(entry)
        archive, one, _ = archives[entry]
        return archive.contents(one)

    return shown, unpacked, {entry: packed for entry, (_, _, packed) in archives.items()}
