"""What a zip of submissions holds. Nothing of it is ever unpacked to a path, so that no name in it can lead anywhere.

The same shape as `listing.Folder`: `entries` with what is wrong with each, `contents` for the bytes of one.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from pathlib import Path

from helpers.catalog.errors import WorkbookError
from helpers.course.grade.listing import LINK, MOST_DEPTH, SPECIAL, TOO_DEEP, Entry, Refused, is_skipped, too_large
from helpers.course.grade.reading import MOST_BYTES

MOST_UNPACKED_BYTES = 4 * 10**9  # of all files together
MOST_RATIO = 250  # unpacked to packed, of a file over a megabyte: prose has 5, a flood of numbered lines 20
MOST_DIRECTORY_BYTES = 8 * 10**6
STRAYS = "has a path that leads out of the archive"
DAMAGED = "is damaged in the archive"
_CHUNK_BYTES = 2**16
_DRIVE = re.compile("[A-Za-z]:")
_UTF8 = 0x800
_ENCRYPTED = 0x1
# All that zipfile raises on broken archives, found by breaking some.
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError, OverflowError)


class Archive:
    """A zip, opened. WorkbookError when it cannot be read at all."""

    def __init__(self, path: Path) -> None:
        self._file = _Bounded(path)
        try:
            self._zip = zipfile.ZipFile(self._file)
        except _BROKEN as error:
            self._file.close()
            raise WorkbookError(
                f"{path} cannot be read as a zip: {error}",
                "the zip as the LMS made it",
                "download it again, or unpack it and give the folder",
            ) from None
        self._infos = self._zip.infolist()
        self._unpacked_bytes = 0
        entries = (_entry(info, position) for position, info in enumerate(self._infos))
        self.entries = [entry for entry in entries if entry]

    def contents(self, entry: Entry) -> bytes:
        """The file's bytes, unpacked in memory. Refused with the reason when it is too large or damaged."""
        if self._unpacked_bytes > MOST_UNPACKED_BYTES:
            raise Refused(f"comes after {MOST_UNPACKED_BYTES / 10**9:g} GB of this archive: unpack it yourself")
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

    def close(self) -> None:
        """Let go of the archive."""
        self._zip.close()
        self._file.close()  # which zipfile did not open, and leaves open


class _Bounded(io.FileIO):
    """A file that refuses to be read in one large piece: zipfile reads an archive's table of contents at once."""

    def read(self, size: int = -1) -> bytes:
        asked = size if size >= 0 else os.fstat(self.fileno()).st_size - self.tell()
        if asked > MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"its table of contents is larger than {MOST_DIRECTORY_BYTES / 10**6:g} MB")
        return super().read(size)


def _entry(info: zipfile.ZipInfo, position: int) -> Entry | None:
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
