"""The `workbook` command: estimates from the terminal, and what builds, releases and checks the notebooks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from .catalog.devices import DEVICES, device
from .catalog.errors import WorkbookError
from .catalog.models import MODELS
from .catalog.recipes import OPTIMIZERS, PRECISIONS
from .catalog.setup import ATTENTIONS, KV_FORMATS, WEIGHT_FORMATS, ServeSetup, TrainSetup
from .lesson.calculators.operators import DEFAULTS, OPERATORS, SIZES
from .memory.account import PARTS

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
        parser.add_argument("--json", action="store_true", help="print JSON, in bytes")
    train.add_argument("--precision", default="autocast-bf16", help=", ".join(PRECISIONS))
    train.add_argument("--optimizer", default="adamw", help=", ".join(OPTIMIZERS))
    train.add_argument("--micro-batch", type=_whole, default=1, help="sequences in one forward")
    train.add_argument("--sequence", type=_whole, default=2048, help="tokens in a sequence")
    train.add_argument("--checkpointing", default="none", help="none, full, every:K")
    train.add_argument("--attention", default="sdpa", help=", ".join(ATTENTIONS))
    train.add_argument("--zero", type=_whole, default=0, help="ZeRO stage, 0 to 3")
    train.add_argument("--ranks", type=_whole, default=1, help="data-parallel ranks")
    train.set_defaults(run=_estimate_train)
    serve.add_argument("--weights", default="bf16", help=", ".join(WEIGHT_FORMATS))
    serve.add_argument("--kv", default="bf16", help=", ".join(KV_FORMATS))
    serve.add_argument("--users", type=_whole, default=1, help="sequences at once")
    serve.add_argument("--context", type=_whole, default=2048, help="tokens that each of them holds")
    serve.set_defaults(run=_estimate_serve)
    _op_parser(kinds)


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

    answer = training_answer(TrainSetup(**_setup_arguments(TrainSetup, arguments)), _device(arguments))
    return _print_answer(answer, arguments, {})


def _estimate_serve(arguments: argparse.Namespace) -> int:
    from .lesson.calculators import serving_answer
    from .memory import budget

    setup = ServeSetup(**_setup_arguments(ServeSetup, arguments))
    per_token = budget.serve(setup).kv_bytes_per_token
    return _print_answer(serving_answer(setup, _device(arguments)), arguments, {"kv_bytes_per_token": per_token})


def _estimate_op(arguments: argparse.Namespace) -> int:
    from .lesson.calculators import roofline_answer

    given = {size: getattr(arguments, size) for size in SIZES if getattr(arguments, size) is not None}
    answer = roofline_answer(arguments.gpu, arguments.op, arguments.format, **given)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _setup_arguments(kind: type, arguments: argparse.Namespace) -> dict[str, object]:
    return {field.name: getattr(arguments, field.name) for field in fields(kind)}


def _device(arguments: argparse.Namespace):
    return None if arguments.gpu is None else device(arguments.gpu)


def _print_answer(answer, arguments: argparse.Namespace, extra: dict[str, int]) -> int:
    if not arguments.json:
        print(answer)
        return 0
    where = _device(arguments)
    fits = None if where is None else {
        "name": where.name, "capacity_bytes": where.capacity_bytes,
        "fits": answer.parts.total <= where.capacity_bytes,
    }  # fmt: skip
    parts = {part: answer.parts.get(part, 0) for part in PARTS}  # every name, whatever the peak is made of
    print(json.dumps({"parts": parts, "peak_bytes": answer.parts.total, "device": fits, **extra}))
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


_COURSE = (
    ("build", "execute notebooks and store their outputs",
     lambda p: p.add_argument("names", nargs="*", help="chapter numbers like 02; all when none is given"), _build),
    ("release", "write labs/ from solutions/",
     lambda p: p.add_argument("--check", action="store_true", help="only say what would change"), _release),
    ("check", "run the checks of your lab and show points",
     lambda p: p.add_argument("lab", help="a number like 02, or the path of a notebook"), _check),
    ("doctor", "what this machine is, which chapters it can run, and what to fix",
     lambda p: p.add_argument("--json", action="store_true", help="print one JSON object"), _doctor),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
