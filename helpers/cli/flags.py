"""What several commands share: the parser and its errors, the flags of a setup, and the setup made of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NoReturn, TypeVar

from ..catalog.adapters import BASES, KINDS, Adapter
from ..catalog.devices import DEVICES, Device, device
from ..catalog.errors import WorkbookError, require_whole
from ..catalog.models import MODELS
from ..catalog.optimizers import OPTIMIZERS, RANKED
from ..catalog.policies import POLICIES
from ..catalog.recipes import PRECISIONS
from ..catalog.setup import (
    ATTENTIONS,
    KV_FORMATS,
    OFFLOADS,
    PIECE_TOKENS,
    WEIGHT_FORMATS,
    ServeSetup,
    TrainSetup,
    flag_of,
)
from ..catalog.shipped import SHIPPED
from ..lesson.calculators.answers import CalculatorAnswer
from ..memory.fit.room import RESERVE_MIB

MOST_MIB = 2**20  # a terabyte
Setup = TypeVar("Setup", TrainSetup, ServeSetup)
Commands = argparse._SubParsersAction
ADAPTER_FLAGS = {"kind": "adapter", "rank": "lora_rank", "targets": "lora_targets", "base": "lora_base"}
MODEL_HELP = f"{', '.join(MODELS)}; a name of the hub, as Qwen/Qwen2.5-14B; or a path to a config.json"


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with errors told as what, expected, do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise WorkbookError(message, self.format_usage().strip(), f"run `{self.prog} --help`")


def add_command(
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A command that `text` describes, ready for its flags; `run(arguments)` gives its exit code."""
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run)
    return command


def model_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help=MODEL_HELP)


def device_and_json_flags(parser: argparse.ArgumentParser, units: str = "bytes", required: bool = False) -> None:
    parser.add_argument("--gpu", required=required, help=f"one of {', '.join(DEVICES)}")
    parser.add_argument("--json", action="store_true", help=f"print JSON, in {units}")


def reserve_flag(parser: argparse._ActionsContainer, usual_mib: int = RESERVE_MIB) -> None:
    text = f"MiB of the GPU kept for the context and what else PyTorch does not count (default {usual_mib})"
    parser.add_argument("--reserve", type=whole, default=usual_mib, metavar="MIB", help=text)


def train_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--precision", default="autocast-bf16", help=", ".join(PRECISIONS))
    parser.add_argument(
        "--optimizer", default="adamw", help=", ".join((*OPTIMIZERS, *(f"{name}:R" for name in RANKED)))
    )
    text = "update each weight as soon as its gradient is there, and free that"
    parser.add_argument(flag_of("in_backward"), action="store_true", help=text)
    parser.add_argument("--micro-batch", type=whole, default=1, help="sequences in one forward")
    accumulate = (flag_of("micro_batches"), "--gradient-accumulation-steps")
    text = "micro-batches whose gradients add up before the optimizer steps"
    parser.add_argument(*accumulate, dest="micro_batches", type=whole, default=1, metavar="N", help=text)
    parser.add_argument("--sequence", type=whole, default=2048, help="tokens in a sequence")
    parser.add_argument("--checkpointing", default="none", help=", ".join(POLICIES))
    parser.add_argument("--attention", default="sdpa", help=", ".join(ATTENTIONS))
    parser.add_argument("--zero", type=whole, default=0, help="ZeRO stage, 0 to 3")
    parser.add_argument("--ranks", type=whole, default=1, help="data-parallel ranks")
    for part, stage in (("optimizer", 1), ("parameters", 3)):
        text = f"where their shards live, from ZeRO stage {stage} on: {', '.join(OFFLOADS)}"
        parser.add_argument(f"--offload-{part}", default="none", metavar="TIER", help=text)


def adapter_flags(parser: argparse._ActionsContainer) -> None:
    """Any of the first two makes it a step that trains adapters alone."""
    kinds = f"train adapters alone, the base frozen: {', '.join(KINDS)}"
    parser.add_argument("--adapter", metavar="KIND", help=kinds)
    parser.add_argument(
        "--lora-rank", type=whole, metavar="N", help="their rank, 16 if it is not said; LoRA if no kind is"
    )
    targets = "linear layers that get one, by name, or all-linear (default q_proj,v_proj)"
    parser.add_argument("--lora-targets", type=_names, metavar="NAMES", help=targets)
    parser.add_argument("--lora-base", choices=BASES, help="quantize the frozen base: QLoRA")


def _adapter_of(arguments: argparse.Namespace) -> Adapter | None:
    found = {field: getattr(arguments, flag, None) for field, flag in ADAPTER_FLAGS.items()}
    given: dict[str, Any] = {field: value for field, value in found.items() if value is not None}
    if not given.keys() & {"kind", "rank"}:
        if given:
            what = " and ".join(f"--{ADAPTER_FLAGS[field].replace('_', '-')}" for field in given)
            raise WorkbookError(f"{what} without adapters", "a kind or a rank of adapters", "add --lora-rank 16")
        return None
    return Adapter(**given)


def serve_flags(parser: argparse._ActionsContainer) -> None:
    weights_flag(parser)
    skipped_flag(parser)
    parser.add_argument("--kv", default="bf16", help=", ".join(KV_FORMATS))
    parser.add_argument("--users", type=whole, default=1, help="sequences at once")
    parser.add_argument("--context", type=whole, default=2048, help="tokens that each of them holds")
    parser.add_argument("--prompt", type=whole, help="of these, the tokens of its prompt; default: all")
    pieces = f"tokens that one forward of prefill takes at most; default: of one prompt, up to {PIECE_TOKENS:,}"
    parser.add_argument("--prefill-tokens", type=whole, metavar="N", help=pieces)


def weights_flag(parser: argparse._ActionsContainer) -> None:
    text = f"{', '.join(WEIGHT_FORMATS)}; default {SHIPPED}: as the checkpoint is"
    parser.add_argument("--weights", default=SHIPPED, help=text)


def skipped_flag(parser: argparse._ActionsContainer) -> None:
    left = "linears left in 16 bits, by part or name, as in lm_head,down_proj; '' for none"
    default = "default: what the format's tool leaves"
    parser.add_argument("--skipped", type=_names, metavar="NAMES", help=f"{left}; {default}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def whole(text: str) -> int:
    """Digits only: Python's int() would take 1_000 and ' 7 ' too."""
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def decimal(text: str) -> float:
    """Digits with at most one point: Python's float() would take 1e9, nan and ' 7 ' too."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not a decimal number")
    return float(text)


def setup_of(kind: type[Setup], arguments: argparse.Namespace) -> Setup:
    """The setup that the flags of `train_flags`, `adapter_flags` or `serve_flags` describe."""
    given = {field.name: getattr(arguments, field.name) for field in fields(kind) if field.name != "adapter"}
    if kind is TrainSetup:
        given["adapter"] = _adapter_of(arguments)
    return kind(**given)


def reserve_bytes_of(arguments: argparse.Namespace) -> int:
    return require_whole("reserve", arguments.reserve, 0, MOST_MIB, unit="MiB") * 2**20


def print_answer(answer: CalculatorAnswer, arguments: argparse.Namespace) -> int:
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def device_of(arguments: argparse.Namespace) -> Device | None:
    return None if arguments.gpu is None else device(arguments.gpu)
