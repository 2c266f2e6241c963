"""Read a learner's notebook: whatever the bytes are, it comes out as plain cells or as a sentence that says why not.

Nobody validates the file: a learner is not punished for what an editor, a browser or an LMS did to it. Outputs
are dropped at once, of a large file before it is parsed; nothing is run. To be called in a process with limits on
memory and time: 20 MB of hostile JSON can ask for a gigabyte. The standard library alone, so that such a process
starts quickly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_FILE_BYTES, MOST_BYTES = 100 * 10**6, 20 * 10**6  # with its outputs, and without
MOST_CELLS = 2_000
MOST_CODE_CHARACTERS = 2 * 10**6
KNOWN_FORMATS = (2, 3, 4)

# What a terminal, a CSV or an encoder can choke on: control characters but for tab, newline and form feed, and
# half of a surrogate pair, which JSON can spell and UTF-8 cannot.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_OUTPUTS = re.compile(rf'"outputs"\s*:\s*\[|{_STRING}', re.DOTALL)
_IN_A_LIST = re.compile(rf"{_STRING}|[\[\]]", re.DOTALL)
_LINE_END = re.compile("\r\n?")
_CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONFLICT = re.compile(r"^<{7} ", re.MULTILINE)

# How files that are no notebooks begin, and what to tell whoever handed one in.
_OTHERS = (
    ("PK\x03\x04", "it is a zip archive: hand in the .ipynb that is in it"),
    ("%PDF", "it is a PDF: hand in the .ipynb itself"),
    ("<", "it is a web page, not the notebook: download the raw .ipynb file"),
    ("version https://git-lfs", "it is Git LFS's stand-in for the notebook: hand in the notebook itself"),
)


class Unreadable(Exception):  # noqa: N818 - a verdict on a file, not a fault of the program
    """No usable notebook; the text says why, to a person, with 'it' for the file."""


@dataclass(frozen=True)
class Cell:
    """One cell. `type` is 'code', 'markdown' or 'raw'; ids are None where the file has none that could be used.

    `is_check` is True where the file calls it a cell that grades: the learner's word, good for dropping it only.
    """

    type: str
    source: str
    id: str | None = None
    grade_id: str | None = None
    colab_id: str | None = None
    is_check: bool = False


@dataclass(frozen=True)
class Submitted:
    """A learner's notebook without outputs; `source_lab` is where its lab says that it came from, or ''."""

    cells: tuple[Cell, ...]
    warnings: tuple[str, ...] = ()
    source_lab: str = ""


def read(path: Path) -> Submitted:
    """The notebook in `path`. Unreadable when there is none: that, and nothing else, is raised.

    Tolerated: any UTF with or without a byte order mark, bytes that are no text, format 2, 3, and 4 in every
    revision, a later format of the same shape, missing and repeated ids, metadata of any type.
    """
    try:
        return _notebook(_parsed(_text(path)))
    except RecursionError:
        reason = "it is nested too deeply for a notebook"
    except MemoryError:
        reason = "reading it takes too much memory"
    raise Unreadable(reason)  # out here the failed attempt's memory is free again


def from_json(stored: dict) -> Submitted:
    """The notebook of which `asdict` was stored as JSON. TypeError or KeyError when it is none."""
    cells = tuple(Cell(**cell) for cell in stored["cells"])
    return Submitted(**{**stored, "cells": cells, "warnings": tuple(stored["warnings"])})


def cleaned(text: str) -> str:
    """`text` fit to be shown and stored: newlines as Unix has them, U+FFFD for each character that is not.

    >>> cleaned("a\\r\\nb\\x1b[2J\\ud800")
    'a\\nb�[2J�'
    """
    return _UNPRINTABLE.sub("\ufffd", _LINE_END.sub("\n", text))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be opened ({error.strerror or error})") from None
    if len(data) > MOST_FILE_BYTES:
        raise Unreadable(f"it is larger than {MOST_FILE_BYTES / 10**6:.0f} MB: clear its outputs")
    text = data.decode(json.detect_encoding(data), "replace").strip("\0 \t\r\n")
    if len(data) > MOST_BYTES and len(text := _without_outputs(text)) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES / 10**6:.0f} MB, even without its outputs")
    if not text:
        raise Unreadable("it is empty")
    return text


def _without_outputs(text: str) -> str:
    """JSON with every list under "outputs" empty; what is no JSON stays none.

    >>> _without_outputs('{"outputs": [["]", 1], 2], "source": "\\"outputs\\": [3]"}')
    '{"outputs": [], "source": "\\"outputs\\": [3]"}'
    """
    kept, start, at = [], 0, 0
    while found := _OUTPUTS.search(text, at):
        at = found.end()
        if found.group().endswith("["):
            kept.append(text[start:at])
            start = at = _end_of_list(text, at)
    return "".join([*kept, text[start:]])


def _end_of_list(text: str, start: int) -> int:
    """Where the list ends whose first item is at `start`."""
    depth = 1
    for token in _IN_A_LIST.finditer(text, start):
        depth += {"[": 1, "]": -1}.get(token.group(), 0)
        if depth == 0:
            return token.start()
    return len(text)


def _parsed(text: str) -> dict:
    try:
        # Not strict: a raw newline or NUL inside a string is no reason to refuse the rest. Of the numbers only the
        # format's is read; int() alone would refuse one of 4,301 digits, and with it the whole file.
        found = json.loads(
            text, strict=False, parse_int=_small, parse_float=lambda _: None, parse_constant=lambda _: None
        )
    except json.JSONDecodeError as error:
        raise Unreadable(_why_not_json(text, error)) from None
    if not isinstance(found, dict):
        raise Unreadable("it is JSON, but no notebook")
    return found


def _small(digits: str) -> int | None:
    return int(digits) if len(digits) < 10 else None


def _why_not_json(text: str, error: json.JSONDecodeError) -> str:
    if _CONFLICT.search(text):
        return "it holds the marks of an unresolved Git conflict (<<<<<<<)"
    for beginning, reason in _OTHERS:
        if text.startswith(beginning):
            return reason
    return f"it is no valid JSON from line {error.lineno}, column {error.colno}: cut off, or edited by hand"


def _notebook(stored: dict) -> Submitted:
    found = _raw_cells(stored)
    if len(found) > MOST_CELLS:
        raise Unreadable(f"it has {len(found):,} cells, more than {MOST_CELLS:,}")
    warnings = list(_format_warnings(stored))
    cells = tuple(cell for cell in map(_cell, found) if cell is not None)
    if len(cells) < len(found):
        warnings.append(f"{len(found) - len(cells)} cells of no known type were left out")
    if sum(len(cell.source) for cell in cells if cell.type == "code") > MOST_CODE_CHARACTERS:
        raise Unreadable(f"its code is longer than {MOST_CODE_CHARACTERS:,} characters")
    damaged = sum("\ufffd" in cell.source for cell in cells)
    if damaged:
        warnings.append(f"characters that cannot be read or printed are now \ufffd, in {damaged} cells")
    workbook = _dict(_dict(stored, "metadata"), "workbook")
    return Submitted(cells, tuple(warnings), _short_text(workbook, "source") or "")


def _raw_cells(stored: dict) -> list:
    """The list of cells: at the top since format 4, in worksheets before. Unreadable when there is neither."""
    cells, sheets = stored.get("cells"), stored.get("worksheets")
    if not isinstance(cells, list) and isinstance(sheets, list):
        lists = (sheet.get("cells") for sheet in sheets if isinstance(sheet, dict))
        cells = [cell for found in lists if isinstance(found, list) for cell in found]
    if not isinstance(cells, list):
        raise Unreadable("it is JSON, but no notebook: it has no list of cells")
    if not cells:
        raise Unreadable("it is a notebook without a single cell")
    return cells


def _format_warnings(stored: dict) -> Iterator[str]:
    major = stored.get("nbformat")
    if major not in KNOWN_FORMATS:
        known = isinstance(major, int)
        yield f"it is in format {major}, read as format 4" if known else "it does not say its format: read as format 4"


def _cell(stored: object) -> Cell | None:
    """The cell, or None for what is none. Format 3 had headings of their own, and markup in `html` cells."""
    if not isinstance(stored, dict):
        return None
    kind, source = stored.get("cell_type"), cleaned(_source(stored))
    if kind in ("heading", "html"):
        level = stored.get("level")
        marks = "#" * (level if isinstance(level, int) and 1 <= level <= 6 else 1)
        kind, source = "markdown", f"{marks} {source}" if kind == "heading" else source
    if kind not in ("code", "markdown", "raw"):
        return None
    metadata = _dict(stored, "metadata")
    graded = _dict(metadata, "nbgrader")
    return Cell(
        type=kind,
        source=source,
        id=_cell_id(stored),
        grade_id=_short_text(graded, "grade_id"),
        colab_id=_short_text(metadata, "id"),
        is_check=kind == "code" and graded.get("grade") is True and graded.get("solution") is not True,
    )


def _source(cell: dict) -> str:
    """What the learner wrote: a text or a list of texts, called `input` in a code cell of format 3."""
    found = cell.get("source", cell.get("input", ""))
    parts = found if isinstance(found, list) else [found]
    return "".join(part for part in parts if isinstance(part, str))


def _cell_id(cell: dict) -> str | None:
    found = cell.get("id")
    return found if isinstance(found, str) and _CELL_ID.fullmatch(found) else None


def _dict(parent: dict, key: str) -> dict:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _short_text(parent: dict, key: str) -> str | None:
    """A text that can be an identifier: some characters, printable ones, on one line."""
    found = parent.get(key)
    fits = isinstance(found, str) and 0 < len(found) <= 200 and found.isprintable()
    return found if fits else None
