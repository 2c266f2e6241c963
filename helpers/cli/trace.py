"""`workbook trace`: the real code run without memory, beside the closed form."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ..catalog.errors import WorkbookError
from ..catalog.hardware import reference_of, require_cuda
from ..catalog.setup import ServeSetup, TrainSetup
from . import flags
from .flags import Commands, add_command, device_of, setup_of, whole


def add(commands: Commands) -> None:
    trace = commands.add_parser("trace", help="run the real code without memory: the peak a GPU would report")
    kinds = trace.add_subparsers(title="what to trace", required=True, metavar="train|serve")
    train = add_command(kinds, "train", "training steps, on one rank", _trace_train)
    serve = add_command(kinds, "serve", "prefill, and one decode step", _trace_serve)
    for parser in (train, serve):
        flags.model_flag(parser)
        flags.device_and_json_flags(parser)
        flags.reserve_flag(parser)
        parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="weights and what is computed with them")
    flags.train_flags(train)
    flags.adapter_flags(train)
    train.add_argument("--steps", type=whole, default=2, help="steps to run; the last is accounted for")
    flags.serve_flags(serve)
    serve.add_argument("--phase", choices=("prefill", "decode"), default="decode", help="which of the two")


def _trace_train(arguments: argparse.Namespace) -> int:
    from ..memory import trace
    from ..memory.closed_form import budget

    if arguments.dtype:
        arguments.precision = arguments.dtype
    setup, where = setup_of(TrainSetup, arguments), device_of(arguments)
    require_cuda(where, "a trace")  # before a large model is built
    title = f"{setup.model.name}, {setup.precision}, {setup.optimizer}, {setup.micro_batch} × {setup.sequence:,} tokens"
    title += f", {setup.micro_batches:,} accumulated" if setup.micro_batches > 1 else ""
    title += ", the optimizer in the backward" if setup.in_backward else ""
    title = f"{setup.adapter}, of {title}" if setup.adapter else f"Training {title}"
    found = trace.train(setup, where, steps=arguments.steps, apply=_policy(setup), **_make(setup))
    try:
        predicted = budget.train(setup, where or reference_of(setup)).parts
    except WorkbookError:  # no closed form for its activations: then the trace stands alone
        predicted = None
    return _print_trace(title, found, predicted, arguments)


def _policy(setup: TrainSetup) -> Callable | None:
    """What puts the setup's policy into a model; None for those that `memory` knows how to put in."""
    if setup.checkpoint_every is not None:
        return None
    from ..techniques.checkpointing import apply

    return apply


def _make(setup: TrainSetup) -> dict[str, Any]:
    """What builds the setup's optimizer, where no library does."""
    if not setup.optimizer_rule.ours:
        return {}
    from ..techniques.optimizers import make

    return {"make": make}


def _trace_serve(arguments: argparse.Namespace) -> int:
    from ..memory import trace
    from ..memory.closed_form import budget

    if arguments.dtype:
        arguments.weights = arguments.kv = arguments.dtype
    setup = setup_of(ServeSetup, arguments)
    run = trace.prefill if arguments.phase == "prefill" else trace.decode
    title = f"One {arguments.phase} of {setup.model.name}, {setup.users:,} users × {setup.context:,} tokens"
    return _print_trace(title, run(setup, device_of(arguments)), budget.serve(setup).parts, arguments)


def _print_trace(title: str, found, predicted, arguments: argparse.Namespace) -> int:
    from ..lesson.traced import trace_figures, trace_report

    told = found, predicted, device_of(arguments), flags.reserve_bytes_of(arguments)
    print(json.dumps(trace_figures(*told)) if arguments.json else trace_report(title, *told))
    return 0
