"""`workbook measured LOG…`: what an engine's own log measured, beside what is predicted, as rows for `accuracy`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..catalog.devices import DEVICES
from ..catalog.errors import WorkbookError
from ..questions.parameters import MODEL
from .flags import Commands, add_command

MOST_BYTES = 64 * 2**20  # of a log: what is read, from its beginning


def add(commands: Commands) -> None:
    text = "a run joins in by its log: what vLLM, SGLang, llama.cpp or PyTorch measured, and the prediction beside it"
    parser = add_command(commands, "measured", text, _measured)
    parser.add_argument("logs", nargs="+", metavar="LOG", help="of a start; - for a pipe")
    parser.add_argument("--model", help=f"where the log names a path or none: {MODEL.words}")
    parser.add_argument("--gpu", help=f"the card, which few logs name: {', '.join(DEVICES)}")
    words = "print a list that `workbook accuracy --measured FILE` reads, without paths, hosts or people"
    parser.add_argument("--json", action="store_true", help=words)


def _measured(arguments: argparse.Namespace) -> int:
    from ..memory.accuracy import from_logs
    from ..memory.accuracy.table import HEAD, rows_of

    read = [case for log in arguments.logs for case in from_logs.cases_of(_text(log), arguments.model, arguments.gpu)]
    if arguments.json:
        print(json.dumps([from_logs.as_entry(case) for case in read], indent=1))
        return 0
    print(HEAD)
    for case in read:
        for row in rows_of(case):
            print(row)
    return 0


def _text(path: str) -> str:
    """A log's beginning; bytes that are no UTF-8 are replaced."""
    try:
        data = sys.stdin.buffer.read(MOST_BYTES) if path == "-" else _head(Path(path))
    except OSError as error:
        what = f"cannot read {path}: {error.strerror}"
        raise WorkbookError(what, "a log of an engine", "give the path of a file, or - to read from a pipe") from None
    return data.decode(errors="replace")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_BYTES)
