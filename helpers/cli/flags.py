"""What several commands share: the parser and its errors, the flags of a setup, and the setup made of them."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..catalog.adapters import BASES, KINDS, TRACED_KINDS, TRAINERS, Adapter
from ..catalog.cache_formats import KV_FORMATS
from ..catalog.devices import Device, device
from ..catalog.errors import WorkbookError, require_name, require_whole
from ..catalog.losses import FULL, LOSSES
from ..catalog.models import MODELS
from ..catalog.models import model as resolve_model
from ..catalog.optimizers import OPTIMIZERS, RANKED, TRAINER_NAMES
from ..catalog.policies import POLICIES
from ..catalog.recipes import PRECISIONS
from ..catalog.serve_setup import PIECE_TOKENS, WEIGHT_FORMATS, ServeSetup
from ..catalog.setup_fields import flag_of
from ..catalog.shape import ModelShape
from ..catalog.shipped import SHIPPED, shipped
from ..catalog.split import STAGES_PER_RANK, Split
from ..catalog.train_setup import ATTENTIONS, OFFLOADS, TrainSetup
from ..memory.breakdown import format_bytes
from ..memory.step.refusals import attention_of

if TYPE_CHECKING:
    from ..lesson.calculators.answers import CalculatorAnswer

MOST_MIB = 2**20  # a terabyte
OPTIMIZER = "adamw-fused"  # as the calculators begin
LINE = 62  # letters beside a command's name, in a terminal of 80
Setup = TypeVar("Setup", TrainSetup, ServeSetup)
Commands = argparse._SubParsersAction
ADAPTER_FLAGS = {
    "kind": "adapter",
    "rank": "lora_rank",
    "targets": "lora_targets",
    "base": "lora_base",
    "trainer": "trainer",
    "prepared": "prepared",
    "adapter_dtype": "adapter_dtype",
    "dropout": "lora_dropout",
}
GPU_HELP = "a card, as h100, rtx-4090 or m3-max-64gb (`workbook cards` lists them), or its memory, as 12GiB"
_HUB = "a name of the hub, as Qwen/Qwen2.5-14B-Instruct-AWQ, or what people type for one, as qwen3:8b"
MODEL_HELP = f"{', '.join(MODELS)}; {_HUB}; or a path to a config.json or a GGUF file"


class HelpFormatter(argparse.HelpFormatter):
    """Says every option's default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return with_default(action)


def with_default(action: argparse.Action) -> str:
    """The option's help, with its default where the text has no word of it."""
    text, default = action.help or "", action.default
    if "default" in text or isinstance(default, bool) or default in (None, "", [], argparse.SUPPRESS):
        return text
    told = f"{default:g}" if isinstance(default, float) else default
    return f"{text} (default {','.join(told) if isinstance(told, tuple) else told})"


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with errors told as what, expected, do; of commands and none named, its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def add_subparsers(self, **options: Any) -> Commands:
        self.set_defaults(run=self._show_help)
        return super().add_subparsers(metavar="COMMAND", **options)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse's; but here already, where the command is known, nothing may be left over."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:  # a slip in --model is told before "--model is required"
            self._require_flags(itertools.takewhile(lambda word: word != "--", words))
        found, left = super().parse_known_args(words, namespace)
        self._require_flags(left)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        raise WorkbookError(message, self.format_usage().strip(), f"run `{self.prog} --help`")

    def _require_flags(self, words: Iterable[str]) -> None:
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for word in words:
            if word.startswith("--") and " " not in word:
                require_name("flag", word.partition("=")[0], known)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None:
            require_name("/".join(action.option_strings) or "command", value, list(action.choices))

    def _show_help(self, _: argparse.Namespace) -> int:
        self.print_help()
        return 0


def in_groups(parser: Parser, commands: Commands, groups: Mapping[str, Iterable[str]]) -> None:
    """List the parser's `commands`, all of which are in `groups`, under these titles in its help."""
    lines = {command.dest: command for command in commands._choices_actions}
    for title, names in groups.items():
        parser.add_argument_group(title)._group_actions.extend(lines.pop(name) for name in names)
    parser._positionals._group_actions.clear()


def add_command(
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A command that `text` describes; `run(arguments)` gives its exit code. A list shows a line: up to the colon."""
    line = text if len(text) <= LINE else text.partition(":")[0]
    command = commands.add_parser(name, help=line, description=text)
    command.set_defaults(run=run)
    return command


def model_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, help=MODEL_HELP)


def device_and_json_flags(parser: argparse.ArgumentParser, units: str = "bytes", required: bool = False) -> None:
    parser.add_argument("--gpu", required=required, help=GPU_HELP)
    parser.add_argument("--json", action="store_true", help=f"print JSON, in {units}")


def reserve_flag(parser: argparse._ActionsContainer, usual_mib: int | None = None) -> None:
    by_card = "" if usual_mib else " (default: by card, engine and ranks)"
    text = f"MiB of the GPU kept for the context and what else PyTorch does not count{by_card}"
    parser.add_argument("--reserve", type=whole, default=usual_mib, metavar="MIB", help=text)


def train_flags(parser: argparse._ActionsContainer, several: bool = False) -> None:
    """With `several` a step may be one of several lengths of batches."""
    step_flags(parser)
    text = "update each weight as soon as its gradient is there, and free that"
    parser.add_argument(flag_of("in_backward"), action="store_true", help=text)
    text = "tokens in a sequence" + ("; or of each batch of a run, as in 300,420,768" if several else "")
    parser.add_argument("--sequence", type=wholes if several else whole, default=2048, help=text)
    kinds = "all at once; Liger's fused; cut cross-entropy; SFTTrainer's"
    text = f"how the loss meets the logits: {', '.join(LOSSES)} ({kinds})"
    parser.add_argument("--loss", default=FULL, help=text)
    text = "tokens at the end of each sequence that have a loss, with --loss trl (completion_only_loss); default: all"
    parser.add_argument("--scored", type=whole, metavar="N", help=text)
    text = "attention is given a mask: sequences of a batch differ in length, or a row has several"
    parser.add_argument("--masked", action="store_true", help=text)
    parser.add_argument("--zero", type=whole, default=0, help="ZeRO stage, 0 to 3")
    parser.add_argument("--ranks", type=whole, default=1, help="data-parallel ranks")
    for part, stage in (("optimizer", 1), ("parameters", 3)):
        text = f"where their shards live, from ZeRO stage {stage} on: {', '.join(OFFLOADS)}"
        parser.add_argument(f"--offload-{part}", default="none", metavar="TIER", help=text)


def step_flags(
    parser: argparse._ActionsContainer,
    micro_batch: int = 1,
    policy: str = "none",
    rows: str = "sequences",
    quiet_base: str = "bf16",
) -> None:
    """What a step of any trainer has. Adapters on a base that is not quantized run in `quiet_base`."""
    text = f"{', '.join(PRECISIONS)}; default autocast-bf16, and {quiet_base} for adapters on a base not quantized"
    parser.add_argument("--precision", help=text)
    known = ", ".join((*OPTIMIZERS, *(f"{name}:R" for name in RANKED)))
    text = f"{known}; or as Trainer calls it: {', '.join(TRAINER_NAMES)}; default {OPTIMIZER}, as Trainer's"
    parser.add_argument("--optimizer", default=OPTIMIZER, help=text)
    parser.add_argument("--micro-batch", type=whole, default=micro_batch, help=f"{rows} in one forward")
    accumulate = (flag_of("micro_batches"), "--gradient-accumulation-steps")
    text = "micro-batches whose gradients add up before the optimizer steps"
    parser.add_argument(*accumulate, dest="micro_batches", type=whole, default=1, metavar="N", help=text)
    parser.add_argument("--checkpointing", default=policy, help=", ".join(POLICIES))
    text = f"{', '.join(ATTENTIONS)}; default sdpa, and eager where Transformers has nothing else"
    parser.add_argument("--attention", help=text)


def split_flags(parser: argparse.ArgumentParser, what: str) -> None:
    """How PyTorch shares the run over several GPUs, of which one rank is answered for."""
    split = parser.add_argument_group("several GPUs", what)
    text = "FSDP2 over N ranks; where --ranks counts all of them, what the others leave"
    split.add_argument("--fsdp", type=whole, metavar="N", help=text)
    split.add_argument("--tensor-parallel", type=whole, default=1, metavar="N", help="ranks that share each layer")
    split.add_argument("--pipeline", type=whole, default=1, metavar="N", help="ranks that share the layers")
    split.add_argument("--schedule", default="1F1B", help=f"the pipeline's: {', '.join(STAGES_PER_RANK)}")
    split.add_argument("--no-reshard", action="store_true", help="FSDP2 keeps what it gathered until the backward")
    split.add_argument("--rank", type=whole, default=0, metavar="N", help="which rank")


def adapter_flags(parser: argparse._ActionsContainer) -> None:
    """Any of the first two makes it a step that trains adapters alone."""
    kinds = (
        f"train adapters alone, the base frozen: {', '.join(KINDS)}; for `trace train` {', '.join(TRACED_KINDS)} too"
    )
    parser.add_argument("--adapter", metavar="KIND", help=kinds)
    parser.add_argument(
        "--lora-rank", type=whole, metavar="N", help="their rank, 16 if it is not said; LoRA if no kind is"
    )
    targets = "linear layers that get one, by name, or all-linear (default q_proj,v_proj)"
    parser.add_argument("--lora-targets", type=_names, metavar="NAMES", help=targets)
    parser.add_argument("--lora-base", choices=BASES, help="quantize the frozen base: QLoRA")
    text = f"whose recipe a quantized base and its adapters follow: {', '.join(TRAINERS)} (default peft's)"
    parser.add_argument("--trainer", metavar="NAME", help=text)
    text = "whether what is not quantized is cast to FP32, as peft's prepare_model_for_kbit_training does"
    parser.add_argument("--prepared", action=argparse.BooleanOptionalAction, help=text)
    parser.add_argument("--lora-dropout", type=decimal, metavar="P", help="share of an adapter's input that is dropped")
    parser.add_argument("--adapter-dtype", metavar="DTYPE", help="of the adapters: fp32 (default), bf16")


def _adapter_of(arguments: argparse.Namespace) -> Adapter | None:
    found = {field: getattr(arguments, flag, None) for field, flag in ADAPTER_FLAGS.items()}
    given: dict[str, Any] = {field: value for field, value in found.items() if value is not None}
    if not given.keys() & {"kind", "rank"}:
        if given:
            what = " and ".join(f"--{ADAPTER_FLAGS[field].replace('_', '-')}" for field in given)
            raise WorkbookError(f"{what} without adapters", "a kind or a rank of adapters", "add --lora-rank 16")
        return None
    trainer = given.pop("trainer", None)
    recipe = {"kind", "rank", "targets", "base"}
    adapter = Adapter(**{field: value for field, value in given.items() if field in recipe})
    adapter = adapter.trained_by(trainer) if trainer is not None else adapter
    return replace(adapter, **{field: value for field, value in given.items() if field not in recipe})


def serve_flags(parser: argparse._ActionsContainer) -> None:
    weights_flag(parser)
    skipped_flag(parser)
    parser.add_argument("--kv", default="bf16", help=", ".join(KV_FORMATS))
    parser.add_argument("--users", type=whole, default=1, help="sequences at once")
    parser.add_argument("--context", type=whole, default=2048, help="tokens that each of them holds")
    parser.add_argument("--prompt", type=whole, help="of these, the tokens of its prompt; default: all")
    pieces = f"tokens that one forward of prefill takes at most; default: of one prompt, up to {PIECE_TOKENS:,}"
    parser.add_argument("--prefill-tokens", type=whole, metavar="N", help=pieces)
    copies = "tokens guessed at once, for each of which the states of recurrent layers are kept once more"
    parser.add_argument("--drafts", type=whole, default=0, metavar="N", help=copies)


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
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{_digits_of(text)}")
    return int(text)


def _digits_of(text: str) -> str:
    """What to write for 8k, 8,192 or 1.000.

    >>> _digits_of("8k"), _digits_of("8,192"), _digits_of("ten")
    (': write 8192', ': write 8192', '')
    """
    if found := re.fullmatch(r"(\d{1,6})[kK]i?", text):
        return f": write {int(found[1]) * 1024}"
    return f": write {re.sub('[.,_ ]', '', text)}" if re.fullmatch(r"\d{1,3}([.,_ ]\d{3}){1,4}", text) else ""


def wholes(text: str) -> int | tuple[int, ...]:
    """One whole number, or several between commas."""
    return tuple(map(whole, text.split(","))) if "," in text else whole(text)


def decimal(text: str) -> float:
    """Digits with at most one point: Python's float() would take 1e9, nan and ' 7 ' too."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 18):
        point = f": write {text.replace(',', '.')}" if re.fullmatch(r"\d{1,9},\d{1,9}", text) else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not a decimal number{point}")
    return float(text)


def setup_of(kind: type[Setup], arguments: argparse.Namespace) -> Setup:
    """The setup that the flags of `train_flags`, `adapter_flags` or `serve_flags` describe."""
    given = {name: getattr(arguments, name) for name in names_of(kind) if hasattr(arguments, name)}
    if kind is TrainSetup:
        if any(getattr(arguments, name, None) for name in ("adapter", "lora_rank")) and not arguments.lora_base:
            arguments.lora_base = _base_of(resolve_model(arguments.model))
        given |= {"split": split_of(arguments), "adapter": _adapter_of(arguments)}
        return run_of(**given)  # type: ignore[return-value] # of the kind that is asked
    return kind(**given)


def names_of(kind: type) -> set[str]:
    """The fields that have a flag of their own name."""
    return {field.name for field in fields(kind)} - {"adapter", "split"}


def split_of(arguments: argparse.Namespace) -> Split:
    """The split that --zero, --ranks and those of `split_flags` describe; --ranks counts those of all dimensions."""
    said = vars(arguments)
    data, fsdp = require_whole("ranks", said.get("ranks", 1)), said.get("fsdp")
    tensor, pipeline = require_whole("tensor_parallel", said.get("tensor_parallel", 1)), said.get("pipeline", 1)
    inner = tensor * pipeline
    if fsdp is not None and data > 1:
        if data != fsdp * inner:
            what = f"--ranks {data:,} beside {fsdp * inner:,} of --fsdp, --tensor-parallel and --pipeline"
            raise WorkbookError(what, "--ranks counts those of all dimensions", "leave --ranks out")
        data = 1
    if inner > 1 and data > 1 and fsdp is None:
        if data % inner:
            expected = f"a multiple of {inner:,}"
            raise WorkbookError(f"{data:,} ranks", expected, "--ranks counts those of all dimensions")
        data, fsdp = 1, data // inner
    how = {"schedule": said.get("schedule", "1F1B"), "reshard": not said.get("no_reshard")}
    zero = said.get("zero", 0)
    return Split(data, 0 if inner > 1 and zero == 3 else zero, 1 if fsdp is None else fsdp, tensor, pipeline, **how)


def run_of(model: object, adapter: Adapter | None = None, **given: Any) -> TrainSetup:
    """A training run as the commands have it: what is None, or not said, is what people run."""
    shape = resolve_model(model)
    usual = {"optimizer": OPTIMIZER, "attention": attention_of(shape)}
    usual |= {"precision": adapter.usual_precision} if adapter else {}
    said = {name: value for name, value in given.items() if value is not None}
    return TrainSetup(shape, adapter=adapter, **{**usual, **said})  # type: ignore[arg-type] # a descriptor's field


def _base_of(shape: ModelShape) -> str | None:
    """The format of a checkpoint that bitsandbytes quantized, on which adapters are trained as it is: QLoRA."""
    with suppress(WorkbookError):  # a format that is not known here
        return found if (found := shipped(shape)[0]) in BASES else None
    return None


def ollama(text: str, setup: ServeSetup) -> tuple[str, ...]:
    """What to say under a model of Ollama's spelling, whose files are quantized by default.

    4.85 bits a weight are what llama.cpp's Q4_K_M takes of Llama-3.1-8B: 4.58 GiB.
    """
    if not re.fullmatch(r"[\w.-]+:[\w.-]+", text) or setup.model.stored:
        return ()
    size = format_bytes(setup.model.parameters * 485 // 800)
    return (f"Ollama's own {text} is Q4_K_M, about {size} of weights: name its GGUF file to count that.",)


def reserve_bytes_of(arguments: argparse.Namespace) -> int | None:
    """What --reserve says; None where the card, the engine and the ranks do (`memory.fit.reserves`)."""
    if arguments.reserve is None:
        return None
    kept = require_whole("reserve", arguments.reserve, 0, MOST_MIB, unit="MiB") * 2**20
    card = device_of(arguments) if getattr(arguments, "gpu", None) else None
    if card and kept > card.capacity_bytes:
        most = card.capacity_bytes // 2**20
        what = f"a reserve of {arguments.reserve:,} MiB on the {card.title}, which has {most:,}"
        raise WorkbookError(what, "less than the card has", "leave --reserve out: what a card keeps is known")
    return kept


def print_answer(answer: CalculatorAnswer, arguments: argparse.Namespace) -> int:
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def with_notes(code: int, notes: Iterable[str]) -> int:
    """`code`, with what is to be said under an answer."""
    for note in notes:
        print(note)
    return code


def device_of(arguments: argparse.Namespace) -> Device | None:
    return None if arguments.gpu is None else device(arguments.gpu)
