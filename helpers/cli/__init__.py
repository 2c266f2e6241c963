"""The `workbook` command: estimates from the terminal, and what builds, releases and checks the notebooks.

Each module here holds one family of commands, with its flags; `add` puts it on the parser. They are imported when a
command runs, so that Ctrl-C is answered in one line from the first moment on.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..catalog.errors import WorkbookError
    from .flags import Parser

USAGE_ERROR, INTERRUPTED = 2, 130
# Of a trace of two seconds the process takes six: two of them in collecting no garbage while torch and Transformers
# load, and in taking their modules apart at the end. Commands that leave nothing behind end at once.
LOADING_THRESHOLD = 100_000  # objects that are made before the collector looks
THAT_ONLY_ANSWER = (
    "can-i-run",
    "estimate",
    "plan",
    "explain-oom",
    "number",
    "tensor",
    "cards",
    "formats",
    "trace",
    "snapshot",
    "accuracy",
    "measured",
)
GROUPS = {
    "learn": ("workspace", "check", "progress", "doctor", "record"),
    "calculate": (*THAT_ONLY_ANSWER, "watch", "serve", "serve-bench"),
    "teach": ("grade", "sample-class"),
    "author": ("build", "release", "topics", "publish", "site", "train-lm"),
    "shell": ("completion",),
}
FAMILIES = (
    *("estimate", "plan", "number", "listed", "oom", "snapshot", "trace"),
    *("watch", "serve", "measured", "course", "site", "grade", "completion"),
)
ALONE = ("estimate", "plan", "snapshot", "trace")  # families of one command, their own name: it needs no other's flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, which means the same for all of them.

    0 done; 1 a check failed, or the answer is no; 2 bad input; 130 stopped by Ctrl-C. `grade` has two more: 3 somebody
    needs attention, 4 the results cannot be written.
    """
    return _process(sys.argv[1:]) if argv is None else _run(argv)


def _process(argv: Sequence[str]) -> int:
    """`_run` as a process of its own, which Ctrl-C ends with one line.

    A KeyboardInterrupt alone would not do: raised while torch is imported, it may come out as an ImportError, or be
    printed and dropped by whoever collects garbage. The second Ctrl-C waits for nothing.
    """
    gc.set_threshold(LOADING_THRESHOLD)
    if "_ARGCOMPLETE" in os.environ:  # a shell asks, at a tab
        from .completion import complete

        complete(_parser())
    only_answers = bool(argv) and argv[0] in THAT_ONLY_ANSWER
    pressed: list[bool] = []

    def stop(*_: object) -> None:
        if only_answers or pressed:
            _stopped()
            os._exit(INTERRUPTED)
        pressed.append(True)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as under nohup
        signal.signal(signal.SIGINT, stop)
    try:
        done = _run(argv)
    except BaseException as error:
        if not (pressed or isinstance(error, KeyboardInterrupt)):
            raise
        _stopped()
        done = INTERRUPTED
    if done == INTERRUPTED:  # then to the end, but no further: of an interrupted `exec` CPython would die of SIGINT
        atexit._run_exitfuncs()
    if only_answers or done == INTERRUPTED:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(done)
    return done


def _stopped() -> None:
    os.write(2, b"\nStopped.\n" if os.isatty(2) else b"Stopped.\n")  # a terminal has just shown ^C


def _run(argv: Sequence[str]) -> int:
    from ..catalog.errors import WorkbookError
    from ..catalog.logs import hold_back_torchao

    hold_back_torchao()
    try:
        arguments = _parser(argv[0] if argv and argv[0] in ALONE else None).parse_args(argv)
        done = arguments.run(arguments)
        sys.stdout.flush()
        return done
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (WorkbookError, ModuleNotFoundError) as error:
        print(f"workbook: {_as_told(error)}", file=sys.stderr)
        return USAGE_ERROR


def _as_told(error: WorkbookError | ModuleNotFoundError) -> WorkbookError:
    """A package that `pip install` leaves out is the reader's to install; a missing module of ours is a bug."""
    from .. import PACKAGE
    from ..catalog.errors import WorkbookError
    from ..catalog.extras import extra_with

    if isinstance(error, WorkbookError):
        return error
    package = (error.name or PACKAGE).partition(".")[0]
    if package == PACKAGE:
        raise error
    extra, brings = extra_with(package)
    do = f"python -m pip install {' '.join(brings)}"
    return WorkbookError(
        f"{package} is not installed", f"what the extra [{extra}] brings" if extra else f"the package {package}", do
    )


def _parser(command: str | None = None) -> Parser:
    """The parser of all commands, or of one of ALONE, which starts a tenth of a second sooner."""
    from .. import __version__
    from .flags import Parser, in_groups

    parser = Parser(prog="workbook", description="The GPU Memory Workbook, from the terminal.")
    parser.add_argument("--version", action="version", version=f"workbook {__version__}")
    commands = parser.add_subparsers()
    for family in (command,) if command else FAMILIES:
        import_module(f".{family}", __name__).add(commands)
    if command is None:
        in_groups(parser, commands, GROUPS)
    return parser
