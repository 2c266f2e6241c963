"""`workbook site`: the course, the calculators and the explainer as one static site."""

from __future__ import annotations

import argparse
from pathlib import Path

from .course import workbook_root
from .flags import Commands, add_command

FOLDER = Path("build", "site")  # which git ignores


def add(commands: Commands) -> None:
    text = "build all of this as a static site: calculators in the browser, an error explained, the book, claims"
    command = add_command(commands, "site", text, _site)
    offline = "npm, of Node.js, fetches pinned packages the first time; afterwards it needs no network."
    command.description = f"{text}. {offline} To look at it: python -m http.server --directory {FOLDER}"
    folder = "a new folder, or an earlier site"
    command.add_argument("--out", default=FOLDER, type=Path, metavar="FOLDER", help=folder)
    table = "what `workbook accuracy --json` printed, for all of its rows (default: those in closed form)"
    command.add_argument("--accuracy", type=Path, metavar="FILE", help=table)


def _site(arguments: argparse.Namespace) -> int:
    root = workbook_root()
    from ..course.site import site

    return site(root, arguments.out, arguments.accuracy)
