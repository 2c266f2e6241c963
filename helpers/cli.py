"""The `workbook` command: estimates from the terminal, and what builds, releases and checks the notebooks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from .catalog.devices import DEVICES, Device, device
from .catalog.errors import WorkbookError
from .catalog.models import MODELS
from .catalog.recipes import OPTIMIZERS, PRECISIONS
from .catalog.setup import ATTENTIONS, KV_FORMATS, WEIGHT_FORMATS, ServeSetup, TrainSetup
from .lesson.calculators.operators import DEFAULTS, OPERATORS, SIZES
from .memory.account import PARTS

if TYPE_CHECKING:
    from .memory.fit import Fit

USAGE_ERROR = 2


class Parser(argparse.ArgumentParser):
    """argparse, with errors told as what, expected, do."""

    def error(self, message: str) -> None:
        raise WorkbookError(message, self.format_usage().strip(), f"run `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 a check failed, 2 bad input."""
    try:
        arguments = _parser().parse_args(argv)
        return arguments.run(arguments)
    except WorkbookError as error:
        print(f"workbook: {error}", file=sys.stderr)
        return USAGE_ERROR


def _parser() -> Parser:
    parser = Parser(prog="workbook", description="The GPU Memory Workbook, from the terminal.", allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _estimate_parser(commands)
    _explain_parser(commands)
    _trace_parser(commands)
    for name, help_text, add, run in _COURSE:
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        add(command)
        command.set_defaults(run=run)
    return parser


def _estimate_parser(commands: argparse._SubParsersAction) -> None:
    estimate = commands.add_parser("estimate", help="predict memory and time without a GPU", allow_abbrev=False)
    kinds = estimate.add_subparsers(title="what to estimate", required=True, metavar="train|serve|op")
    train = kinds.add_parser("train", help="one training step, per rank", allow_abbrev=False)
    serve = kinds.add_parser("serve", help="weights and KV cache of one replica", allow_abbrev=False)
    for parser in (train, serve):
        parser.add_argument("--model", required=True, help=f"{', '.join(MODELS)}, or a path to a config.json")
        parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
        parser.add_argument("--fit", action="store_true", help="list what makes it fit --gpu, cheapest change first")
        parser.add_argument("--json", action="store_true", help="print JSON, in bytes")
    _train_flags(train)
    train.set_defaults(run=_estimate_train)
    _serve_flags(serve)
    serve.set_defaults(run=_estimate_serve)
    _op_parser(kinds)


def _train_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--precision", default="autocast-bf16", help=", ".join(PRECISIONS))
    parser.add_argument("--optimizer", default="adamw", help=", ".join(OPTIMIZERS))
    parser.add_argument("--micro-batch", type=_whole, default=1, help="sequences in one forward")
    parser.add_argument("--sequence", type=_whole, default=2048, help="tokens in a sequence")
    parser.add_argument("--checkpointing", default="none", help="none, full, every:K")
    parser.add_argument("--attention", default="sdpa", help=", ".join(ATTENTIONS))
    parser.add_argument("--zero", type=_whole, default=0, help="ZeRO stage, 0 to 3")
    parser.add_argument("--ranks", type=_whole, default=1, help="data-parallel ranks")


def _serve_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--weights", default="bf16", help=", ".join(WEIGHT_FORMATS))
    parser.add_argument("--kv", default="bf16", help=", ".join(KV_FORMATS))
    parser.add_argument("--users", type=_whole, default=1, help="sequences at once")
    parser.add_argument("--context", type=_whole, default=2048, help="tokens that each of them holds")


def _trace_parser(commands: argparse._SubParsersAction) -> None:
    trace = commands.add_parser("trace", help="run the real code without memory: the peak a GPU would report",
                                allow_abbrev=False)  # fmt: skip
    kinds = trace.add_subparsers(title="what to trace", required=True, metavar="train|serve")
    train = kinds.add_parser("train", help="training steps, on one rank", allow_abbrev=False)
    serve = kinds.add_parser("serve", help="prefill, and one decode step", allow_abbrev=False)
    for parser in (train, serve):
        parser.add_argument("--model", required=True, help=f"{', '.join(MODELS)}, or a path to a config.json")
        parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
        parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help="weights and what is computed with them")
        parser.add_argument("--json", action="store_true", help="print JSON, in bytes")
    _train_flags(train)
    train.add_argument("--lora-rank", type=_whole, help="train LoRA adapters of this rank, the base frozen")
    train.add_argument("--lora-targets", default="q_proj,v_proj", help="linear layers that get one, by name")
    train.add_argument("--steps", type=_whole, default=2, help="steps to run; the last is accounted for")
    train.set_defaults(run=_trace_train)
    _serve_flags(serve)
    serve.add_argument("--phase", choices=("prefill", "decode"), default="decode", help="which of the two")
    serve.set_defaults(run=_trace_serve)


def _explain_parser(commands: argparse._SubParsersAction) -> None:
    text = "why a run went out of memory, and what to change: from a log, or an allocator snapshot"
    explain = commands.add_parser("explain-oom", help=text, description=text, allow_abbrev=False)
    explain.add_argument("file", metavar="FILE", help="a log with the traceback, - for a pipe, or a snapshot pickle")
    explain.add_argument("--gpu", help=f"the card, where the file does not tell: {', '.join(DEVICES)}")
    explain.add_argument("--json", action="store_true", help="print JSON, in bytes")
    explain.add_argument("--model", help="also say what the closed form makes of this model, with the flags of "
                         "`estimate train` or of `estimate serve`")  # fmt: skip
    for add, run in ((_train_flags, "training run"), (_serve_flags, "serving replica")):
        group = explain.add_argument_group(f"with --model, for a {run}")
        add(group)
        for action in group._group_actions:
            action.default = argparse.SUPPRESS  # so that a flag which was given can be told from one that was not
    explain.set_defaults(run=_explain_oom)


def _op_parser(kinds: argparse._SubParsersAction) -> None:
    op = kinds.add_parser("op", help="one operator under a GPU's roof: the least time, and what sets it",
                          allow_abbrev=False)  # fmt: skip
    op.add_argument("--op", required=True, help=", ".join(OPERATORS))
    op.add_argument("--gpu", required=True, help=f"one of {', '.join(DEVICES)}")
    op.add_argument("--format", default="bf16", help="number format of the tensors: fp32, tf32, bf16, fp16, fp8-e4m3 …")
    for size, text in SIZES.items():
        op.add_argument(f"--{size.replace('_', '-')}", type=_whole, help=f"{text} (default {DEFAULTS[size]})")
    op.add_argument("--json", action="store_true", help="print JSON, in bytes, FLOPs and seconds")
    op.set_defaults(run=_estimate_op)


def _whole(text: str) -> int:
    """Digits only: Python's int() would take 1_000 and ' 7 ' too."""
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _estimate_train(arguments: argparse.Namespace) -> int:
    from .lesson.calculators import training_answer

    setup = TrainSetup(**_setup_arguments(TrainSetup, arguments))
    return _print_answer(training_answer(setup, _device(arguments)), arguments, {}, setup)


def _estimate_serve(arguments: argparse.Namespace) -> int:
    from .lesson.calculators import serving_answer
    from .memory import budget

    setup = ServeSetup(**_setup_arguments(ServeSetup, arguments))
    per_token = budget.serve(setup).kv_bytes_per_token
    return _print_answer(serving_answer(setup, _device(arguments)), arguments, {"kv_bytes_per_token": per_token}, setup)


def _estimate_op(arguments: argparse.Namespace) -> int:
    from .lesson.calculators import roofline_answer

    given = {size: getattr(arguments, size) for size in SIZES if getattr(arguments, size) is not None}
    answer = roofline_answer(arguments.gpu, arguments.op, arguments.format, **given)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _offers(setup: TrainSetup | ServeSetup, where: Device | None) -> list[Fit]:
    from .memory.fit import changes

    if where is None:
        raise WorkbookError("--fit needs a device to fit", "--gpu with one of its names", "add --gpu, as in --gpu h100")
    return list(changes(setup, where.capacity_bytes))


def _setup_arguments(kind: type, arguments: argparse.Namespace) -> dict[str, object]:
    return {field.name: getattr(arguments, field.name) for field in fields(kind)}


def _device(arguments: argparse.Namespace):
    return None if arguments.gpu is None else device(arguments.gpu)


def _explain_oom(arguments: argparse.Namespace) -> int:
    from .memory.oom import explain_file

    explained = explain_file(arguments.file, _device(arguments), _run_described(arguments))
    print(json.dumps(explained.figures) if arguments.json else explained)
    return 0


def _run_described(arguments: argparse.Namespace) -> TrainSetup | ServeSetup | None:
    """The setup of explain-oom's flags, a serving one if any of its own flags is there; None without --model."""
    given = {kind: {field.name for field in fields(kind)} & vars(arguments).keys() - {"model"}
             for kind in (TrainSetup, ServeSetup)}  # fmt: skip
    flags = {kind: ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names)) for kind, names in given.items()}
    if all(given.values()):
        raise WorkbookError(f"{flags[TrainSetup]} and {flags[ServeSetup]} together", "the flags of one kind of run",
                            "describe the training run or the serving replica that failed")  # fmt: skip
    if arguments.model is None:
        if any(given.values()):
            raise WorkbookError(f"{flags[TrainSetup] or flags[ServeSetup]} without --model", "a model to compute with",
                                "add --model, as in --model llama-3.2-1b")  # fmt: skip
        return None
    kind = ServeSetup if given[ServeSetup] else TrainSetup
    return kind(arguments.model, **{name: getattr(arguments, name) for name in given[kind]})


def _print_answer(answer, arguments: argparse.Namespace, extra: dict[str, int], setup: TrainSetup | ServeSetup) -> int:
    where = _device(arguments)
    offers = _offers(setup, where) if arguments.fit else None
    if not arguments.json:
        print(answer)
        if offers is not None:
            from .memory.fit import told

            print("", told(setup, where.capacity_bytes, offers), sep="\n")
        return 0
    if offers is not None:
        extra = {**extra, "fit": [offer.figures for offer in offers]}
    fits = None if where is None else {
        "name": where.name, "capacity_bytes": where.capacity_bytes,
        "fits": answer.parts.total <= where.capacity_bytes,
    }  # fmt: skip
    parts = {part: answer.parts.get(part, 0) for part in PARTS}  # every name, whatever the peak is made of
    print(json.dumps({"parts": parts, "peak_bytes": answer.parts.total, "device": fits, **extra}))
    return 0


def _trace_train(arguments: argparse.Namespace) -> int:
    from .memory import budget, trace

    if arguments.dtype:
        arguments.precision = arguments.dtype
    setup, where = TrainSetup(**_setup_arguments(TrainSetup, arguments)), _device(arguments)
    title = (f"{setup.model.name}, {setup.precision}, {setup.optimizer}, "
             f"{setup.micro_batch} × {setup.sequence:,} tokens")  # fmt: skip
    if arguments.lora_rank is not None:
        targets = arguments.lora_targets.split(",")
        found = trace.lora(setup, arguments.lora_rank, targets, where, steps=arguments.steps)
        return _print_trace(f"LoRA of rank {arguments.lora_rank} on {title}", found, None, arguments)
    found = trace.train(setup, where, steps=arguments.steps)
    try:
        predicted = budget.train(setup, cuda=True).parts
    except WorkbookError:  # no closed form for its activations: then the trace stands alone
        predicted = None
    return _print_trace(f"Training {title}", found, predicted, arguments)


def _trace_serve(arguments: argparse.Namespace) -> int:
    from .memory import budget, trace

    if arguments.dtype:
        arguments.weights = arguments.kv = arguments.dtype
    setup = ServeSetup(**_setup_arguments(ServeSetup, arguments))
    run = trace.prefill if arguments.phase == "prefill" else trace.decode
    title = f"One {arguments.phase} of {setup.model.name}, {setup.users:,} users × {setup.context:,} tokens"
    return _print_trace(title, run(setup, _device(arguments)), budget.serve(setup).parts, arguments)


def _print_trace(title: str, found, predicted, arguments: argparse.Namespace) -> int:
    from .lesson.traced import trace_figures, trace_report

    where = _device(arguments)
    print(json.dumps(trace_figures(found, predicted, where)) if arguments.json
          else trace_report(title, found, predicted, where))  # fmt: skip
    return 0


def _root() -> Path:
    """The workbook's folder: where solutions/ lies, here or above, else where the package was installed from."""
    for folder in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]):
        if (folder / "solutions").is_dir() and (folder / "notebooks").is_dir():
            return folder
    raise WorkbookError("no workbook here", "a folder with notebooks/ and solutions/", "run this in the clone")


def _build(arguments: argparse.Namespace) -> int:
    from .course.build import build

    return build(arguments.names, _root())


def _release(arguments: argparse.Namespace) -> int:
    from .course.release import release

    return release(_root(), check=arguments.check)


def _check(arguments: argparse.Namespace) -> int:
    from .course.check import check

    return check(arguments.lab, _root())


def _doctor(arguments: argparse.Namespace) -> int:
    from .course.doctor import doctor

    return doctor(_root(), as_json=arguments.json)


def _accuracy(arguments: argparse.Namespace) -> int:
    from .memory.accuracy import report

    return report(arguments.only, json_wanted=arguments.json)


def _accuracy_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", metavar="KIND", help="op (half a minute), lora (two, with peft), serving; else all")
    parser.add_argument("--json", action="store_true", help="print one JSON object, in bytes")


_COURSE = (
    ("build", "execute notebooks and store their outputs",
     lambda p: p.add_argument("names", nargs="*", help="chapter numbers like 02; all when none is given"), _build),
    ("release", "write labs/ from solutions/",
     lambda p: p.add_argument("--check", action="store_true", help="only say what would change"), _release),
    ("check", "run the checks of your lab and show points",
     lambda p: p.add_argument("lab", help="a number like 02, or the path of a notebook"), _check),
    ("doctor", "what this machine is, which chapters it can run, and what to fix",
     lambda p: p.add_argument("--json", action="store_true", help="print one JSON object"), _doctor),
    ("accuracy", "predictions beside published GPU measurements, with errors", _accuracy_flags, _accuracy),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
