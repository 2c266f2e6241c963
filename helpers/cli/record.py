"""`workbook record`: measure on the GPU at hand what the chapters show beside their predictions."""

from __future__ import annotations

import argparse
from pathlib import Path

from .course import workbook_root


def add(commands: argparse._SubParsersAction) -> None:
    text = "measure on this GPU what the chapters predict, and keep it in recordings/"
    command = commands.add_parser(
        "record",
        help=text,
        allow_abbrev=False,
        description=(
            f"{text}. Writes after each experiment; the same command goes on with what is missing. 1 when one failed."
        ),
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: recordings/)")
    command.add_argument("--only", nargs="+", action="extend", default=[], metavar="NAME", help="these experiments")
    command.add_argument("--list", action="store_true", help="say what there is and what it needs; no GPU needed")
    command.add_argument("--force", action="store_true", help="record again what is recorded already")
    command.add_argument("--minutes", type=float, default=10, metavar="N", help="begin nothing that ends later (10)")
    command.set_defaults(run=_record)


def _record(arguments: argparse.Namespace) -> int:
    from ..course.record import listing, record

    folder = arguments.out or workbook_root() / "recordings"
    if arguments.list:
        print(listing(folder))
        return 0
    return record(folder, arguments.only, arguments.force, arguments.minutes)
