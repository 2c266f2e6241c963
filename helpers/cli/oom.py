"""`workbook explain-oom`: from a log or a snapshot to the cause and the cheapest change."""

from __future__ import annotations

import argparse
import json

from ..catalog.errors import WorkbookError
from ..catalog.gguf import is_gguf
from ..catalog.serve_setup import ServeSetup
from ..catalog.setup_fields import flag_of
from ..catalog.train_setup import TrainSetup
from ..questions.parameters import ADAPTED, GPU, SERVED, TRAINED
from ..questions.setups import names_of, setup_of
from .flags import Commands, add_command, add_parameters, device_of, with_default


def add(commands: Commands) -> None:
    text = "why a run went out of memory, and what to change: from a log, or an allocator snapshot"
    explain = add_command(commands, "explain-oom", text, _explain_oom)
    explain.add_argument("file", metavar="FILE", help="a log with the traceback, - for a pipe, or a snapshot pickle")
    explain.add_argument("--gpu", help=f"the card, where the file does not tell: {GPU.words}")
    explain.add_argument("--json", action="store_true", help="print JSON, in bytes")
    text = "also say what the closed form makes of this model, with the flags of `estimate train` or `estimate serve`"
    explain.add_argument("--model", help=text)
    for parameters, run in (((*TRAINED, *ADAPTED), "training run"), (SERVED, "serving replica")):
        group = explain.add_argument_group(f"with --model, for a {run}")
        add_parameters(group, parameters)
        for action in group._group_actions:
            action.help = with_default(action)
            action.default = argparse.SUPPRESS  # so that a flag which was given can be told from one that was not


def _explain_oom(arguments: argparse.Namespace) -> int:
    from ..memory.oom import explain_file

    explained = explain_file(arguments.file, device_of(arguments), _run_described(arguments))
    print(json.dumps(explained.figures) if arguments.json else explained)
    return 0


def _run_described(arguments: argparse.Namespace) -> TrainSetup | ServeSetup | None:
    """The setup of explain-oom's flags, a serving one if any of its own flags is there; None without --model."""
    given = {kind: names_of(kind) & vars(arguments).keys() - {"model"} for kind in (TrainSetup, ServeSetup)}
    flags = {kind: ", ".join(map(flag_of, sorted(names))) for kind, names in given.items()}
    if all(given.values()):
        what, do = " and ".join(flags.values()), "describe the training run or the serving replica that failed"
        raise WorkbookError(f"{what} together", "the flags of one kind of run", do)
    if arguments.model is None:
        if any(given.values()):
            what, do = flags[TrainSetup] or flags[ServeSetup], "add --model, as in --model llama-3.2-1b"
            raise WorkbookError(f"{what} without --model", "a model to compute with", do)
        return None
    if given[ServeSetup] or (is_gguf(arguments.model) and not given[TrainSetup]):
        return setup_of(ServeSetup, vars(arguments))
    return setup_of(TrainSetup, vars(arguments))
