"""`workbook grade`: a class's submissions to a gradebook."""

from __future__ import annotations

import argparse
from pathlib import Path

from .course import workbook_root
from .flags import Commands, add_command, whole

USAGE_ERROR = 1  # 2 says that the worked lab fails


def add(commands: Commands) -> None:
    text = "grade a class: gradebook, feedback for each learner, a summary; see docs/grading.md"
    command = add_command(commands, "grade", text, _grade)
    command.add_argument("lab", help="a number like 02, or the whole name")
    command.add_argument("submissions", type=Path, help="a folder of notebooks or of folders, a zip, or one notebook")
    command.add_argument("--out", required=True, type=Path, metavar="DIR", help="where everything is written")
    command.add_argument("--seed", metavar="N", help="draw the inputs of an earlier run again (default: secret, new)")
    command.add_argument("--jobs", type=whole, default=2, metavar="N", help="submissions at a time (default 2)")
    command.add_argument("--only", action="append", default=[], metavar="ID", help="this learner; may be repeated")
    command.add_argument("--force", action="store_true", help="grade again what was graded before")
    command.add_argument("--strict", action="store_true", help="whatever a learner is warned of needs attention")
    without = "run without a sandbox where there can be none: limits alone"
    command.add_argument("--trust-learners", action="store_true", help=without)
    command.add_argument("--checks", type=Path, metavar="DIR", help="folder with your own private checks")
    command.add_argument("--cluster", metavar="PROFILE", help="an ipyparallel cluster's profile, instead of --jobs")


def _grade(arguments: argparse.Namespace) -> int:
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
    )
    return grade(arguments.lab, arguments.submissions, arguments.out, root, options)
