"""The `workbook` command: estimates from the terminal, and what builds, releases and checks the notebooks.

Each module here holds one family of commands, with its flags; `add` puts it on the parser.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from ..catalog.errors import WorkbookError
from . import course, estimate, grade, number, oom, plan, serve, site, snapshot, trace, watch
from .flags import Parser

USAGE_ERROR = 2
# Of a trace of two seconds the process takes six: two of them in collecting no garbage while torch and Transformers
# load, and in taking their modules apart at the end. Commands that leave nothing behind end at once.
LOADING_THRESHOLD = 100_000  # objects that are made before the collector looks
THAT_ONLY_ANSWER = ("trace", "estimate", "plan", "accuracy", "number", "tensor", "explain-oom", "snapshot")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 a check failed, 2 bad input.

    `grade` has its own: 1 bad input, 2 the worked lab fails, 3 somebody needs attention.
    """
    is_process = argv is None
    argv = sys.argv[1:] if argv is None else argv
    if is_process:
        gc.set_threshold(LOADING_THRESHOLD)
    try:
        arguments = _parser().parse_args(argv)
        done = arguments.run(arguments)
        sys.stdout.flush()
        if is_process and argv[0] in THAT_ONLY_ANSWER:
            sys.stderr.flush()
            os._exit(done)
        return done
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (WorkbookError, ModuleNotFoundError) as error:
        print(f"workbook: {_as_told(error)}", file=sys.stderr)
        return grade.USAGE_ERROR if argv[:1] == ["grade"] else USAGE_ERROR


def _as_told(error: WorkbookError | ModuleNotFoundError) -> WorkbookError:
    """A package that `pip install` leaves out is the reader's to install; a missing module of ours is a bug."""
    if isinstance(error, WorkbookError):
        return error
    package = (error.name or "helpers").partition(".")[0]
    if package == "helpers":
        raise error
    do = f"python -m pip install {package}"
    return WorkbookError(f"{package} is not installed", "the packages of requirements.txt", do)


def _parser() -> Parser:
    parser = Parser(prog="workbook", description="The GPU Memory Workbook, from the terminal.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for family in (estimate, plan, number, oom, snapshot, trace, watch, serve, course, site, grade):
        family.add(commands)
    return parser
