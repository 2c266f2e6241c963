"""A line of the terminal, answered in text: what the site's console runs in a browser.

Only commands that compute in closed form and read no file are known here; the others need PyTorch, a GPU or a clone.
"""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout

from ..catalog.errors import WorkbookError, require_name
from . import USAGE_ERROR, main

COMMANDS = ("estimate", "plan", "number", "tensor")
ELSEWHERE = ("--write", "--confirm")  # flags that read or write files, or run PyTorch
LONGEST = 2000  # letters of a line


def run(line: str) -> tuple[str, int]:
    """What the terminal prints for `line`, with or without the word `workbook` in front, and the exit code.

    >>> run("workbook number 1e-8 --format fp16")[0].splitlines()[0]
    '1e-8 in fp16: 0 (becomes 0)'
    """
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = main(_words(line))
        except WorkbookError as error:
            print(f"workbook: {error}")
            code = USAGE_ERROR
        except SystemExit as stopped:  # --help
            code = int(stopped.code or 0)
    return printed.getvalue(), code


def run_as_json(line: str) -> str:
    """The same as JSON: what a page's worker calls."""
    text, code = run(line)
    return json.dumps({"text": text, "code": code})


def _words(line: str) -> list[str]:
    if len(line) > LONGEST:
        raise WorkbookError(f"a line of {len(line):,} letters", f"{LONGEST:,} at most", "ask for less at once")
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise WorkbookError(f"cannot read the line: {error}", "closed quotation marks", "close them") from None
    words = words[words[:1] == ["workbook"] :]
    if not words:
        raise WorkbookError("an empty line", f"one of {', '.join(COMMANDS)}", "try estimate --help")
    if words[0] not in ("--help", "-h"):
        require_name("command of this console", words[0], COMMANDS)
    for word in words:
        if word.split("=")[0] in ELSEWHERE:
            raise WorkbookError(f"{word} needs files or PyTorch", "closed forms alone, here", "run it in a terminal")
    return words
