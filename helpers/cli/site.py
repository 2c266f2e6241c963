"""`workbook site`: the course, the calculators and the explainer as one static site."""

from __future__ import annotations

import argparse
from pathlib import Path

from .course import workbook_root
from .flags import Commands, add_command


def add(commands: Commands) -> None:
    text = "build the site: calculators in the browser, an error's explanation, the book, claims, accuracy"
    command = add_command(commands, "site", text, _site)
    offline = "Pinned packages are fetched by npm the first time, and need no network afterwards."
    command.description = f"{text}. {offline}"
    command.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="a new folder, or an earlier site")
    table = "what `workbook accuracy --json` printed, for all of its rows (default: those in closed form)"
    command.add_argument("--accuracy", type=Path, metavar="FILE", help=table)


def _site(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course.site import site

    return site(root, arguments.out, arguments.accuracy)
