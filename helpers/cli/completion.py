"""`workbook completion`: what a shell types on at a tab, from the parser's own declarations, by argcomplete."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..catalog.adapters import KINDS, TRAINERS
from ..catalog.cache_formats import KV_FORMATS
from ..catalog.devices import DEVICES
from ..catalog.engines import ENGINES
from ..catalog.losses import LOSSES
from ..catalog.models import MODELS
from ..catalog.optimizers import OPTIMIZERS
from ..catalog.policies import POLICIES
from ..catalog.recipes import PRECISIONS
from ..catalog.serve_setup import WEIGHT_FORMATS
from ..catalog.split import STAGES_PER_RANK
from ..catalog.train_setup import ATTENTIONS, OFFLOADS
from .flags import Commands, add_command

SHELLS = ("bash", "zsh", "fish")
# Values of arguments that take more than these: a path, a size, a name of the hub. argparse itself offers `choices`.
VALUES: Mapping[str, tuple[str, ...]] = {
    "model": tuple(MODELS),
    "gpu": tuple(DEVICES),
    "precision": tuple(PRECISIONS),
    "optimizer": tuple(OPTIMIZERS),
    "checkpointing": tuple(POLICIES),
    "attention": ATTENTIONS,
    "loss": tuple(LOSSES),
    "weights": WEIGHT_FORMATS,
    "kv": tuple(KV_FORMATS),
    "engine": tuple(ENGINES),
    "schedule": tuple(STAGES_PER_RANK),
    "adapter": KINDS,
    "trainer": tuple(TRAINERS),
    "offload_optimizer": OFFLOADS,
    "offload_parameters": OFFLOADS,
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
