"""`workbook completion`: what a shell types on at a tab, from the parser's own declarations, by argcomplete."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..lesson.calculators.serving_memory import POOLED
from ..questions.parameters import ADAPTED, GPU, MODEL, SERVED, SPLIT, TRAINED
from .flags import Commands, add_command

SHELLS = ("bash", "zsh", "fish")
# Values of arguments that take more than these: a path, a size, a name of the hub. argparse itself offers `choices`.
VALUES = {
    one.name: one.completes for one in (MODEL, GPU, *TRAINED, *ADAPTED, *SPLIT, *SERVED, *POOLED) if one.completes
}


def add(commands: Commands) -> None:
    text = 'complete commands, flags and names at a tab: eval "$(workbook completion bash)" in ~/.bashrc'
    command = add_command(commands, "completion", text, _script)
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def _script(arguments: argparse.Namespace) -> int:
    from argcomplete import shellcode

    print(shellcode(["workbook"], shell=arguments.shell))
    return 0


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell that asks, and end the process. A model may be a file as well."""
    from argcomplete import autocomplete
    from argcomplete.completers import FilesCompleter

    def named(dest: str, **asked: Any) -> list[str]:
        return [*VALUES[dest], *(FilesCompleter()(**asked) if dest == "model" else ())]

    for action in _actions(parser):
        if action.dest in VALUES and not action.choices:
            action.completer = partial(named, action.dest)  # type: ignore[attr-defined]
    autocomplete(parser, always_complete_options=False)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of the parser and of all commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield from _actions(command)
