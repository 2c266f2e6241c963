"""`workbook grade`: a class's submissions to a gradebook."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..catalog.errors import WorkbookError
from ..questions.parameter import whole
from .course import workbook_root
from .flags import Commands, add_command


def add(commands: Commands) -> None:
    text = "grade a class, with feedback for each learner: gradebook, pages, a summary; see docs/grading.md"
    command = add_command(commands, "grade", text, _grade)
    command.add_argument("lab", nargs="?", help="a number like 02, the whole name, or the lab's file")
    submissions = "a folder of notebooks or of folders, a zip, or one notebook"
    command.add_argument("submissions", nargs="?", type=Path, help=submissions)
    command.add_argument("--out", required=True, type=Path, metavar="DIR", help="where everything is written")
    command.add_argument("--seed", metavar="N", help="draw the inputs of an earlier run again (default: secret, new)")
    command.add_argument("--jobs", type=whole, default=2, metavar="N", help="submissions at a time")
    command.add_argument("--only", action="append", default=[], metavar="ID", help="this learner; may be repeated")
    command.add_argument("--force", action="store_true", help="grade again what was graded before")
    command.add_argument("--strict", action="store_true", help="whatever a learner is warned of needs attention")
    without = "run without a sandbox where there can be none: limits alone"
    command.add_argument("--trust-learners", action="store_true", help=without)
    command.add_argument("--checks", type=Path, metavar="DIR", help="folder with your own private checks")
    command.add_argument("--cluster", metavar="PROFILE", help="an ipyparallel cluster's profile, instead of --jobs")
    listed = "the class as CSV, an LMS's export or your own: who handed in nothing gets a row"
    command.add_argument("--roster", type=Path, metavar="CSV", help=listed)
    _add_publishing(command)


def _add_publishing(command: argparse.ArgumentParser) -> None:
    """What is made of the points: deductions, tables for an LMS, a total over several labs."""
    command.add_argument("--due", type=Path, metavar="POLICY", help="TOML file: due date, deductions, extensions")
    command.add_argument("--format", choices=("canvas", "moodle"), help="also write a gradebook that this LMS imports")
    export = "the gradebook or grading worksheet that the LMS exported: its column of points is filled in"
    command.add_argument("--gradebook", type=Path, metavar="CSV", help=export)
    column = "the column of points in the LMS's table (default: the one with the lab's number)"
    command.add_argument("--assignment", metavar="NAME", help=column)
    several = "no grading: one table over the labs that were graded into these folders"
    command.add_argument("--total", type=Path, nargs="+", metavar="OUT", help=several)
    weight = "what a lab counts in the total, as in 02=40; for each lab (default: its points)"
    command.add_argument("--weight", action="append", default=[], metavar="LAB=N", help=weight)


def _grade(arguments: argparse.Namespace) -> int:
    if arguments.total:
        return _total(arguments)
    if arguments.submissions is None or arguments.weight:
        what = "--weight without --total" if arguments.weight else "no lab, or no submissions"
        expected = "workbook grade LAB SUBMISSIONS --out DIR, or workbook grade --total OUT OUT --out DIR"
        raise WorkbookError(what, expected, "run `workbook grade --help`")
    root = workbook_root()
    from ..grading.batch import Options, grade

    options = Options(
        seed=arguments.seed,
        jobs=arguments.jobs,
        only=tuple(arguments.only),
        force=arguments.force,
        strict=arguments.strict,
        trust_learners=arguments.trust_learners,
        checks=arguments.checks,
        cluster=arguments.cluster,
        roster=arguments.roster,
        due=arguments.due,
        format=arguments.format,
        gradebook=arguments.gradebook,
        assignment=arguments.assignment,
    )
    return grade(arguments.lab, arguments.submissions, arguments.out, root, options)


def _total(arguments: argparse.Namespace) -> int:
    if arguments.lab or arguments.due:
        what = f"--total with {'--due' if arguments.due else arguments.lab!r}"
        raise WorkbookError(what, "folders of earlier runs only", "workbook grade --total OUT OUT --out DIR")
    from ..grading.total import total

    weights = dict(map(_weight, arguments.weight)) or None
    arguments_of_lms = (arguments.format, arguments.gradebook, arguments.assignment)
    print(*total(arguments.total, arguments.out, weights, *arguments_of_lms), sep="\n")
    return 0


def _weight(text: str) -> tuple[str, float]:
    """('02', 40.0) for '02=40'."""
    lab, _, weight = text.partition("=")
    if not re.fullmatch(r"\d+(\.\d+)?", weight, re.ASCII) or not lab or float(weight) <= 0:
        raise WorkbookError(f"the weight {text!r}", "a lab and a number above 0, as in 02=40", "correct it")
    return lab, float(weight)
