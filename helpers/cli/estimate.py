"""`workbook estimate`: memory and time in closed form, and what makes a setup fit."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from ..catalog.devices import DEVICES, Device
from ..catalog.errors import WorkbookError
from ..catalog.models import MODELS
from ..catalog.setup import WEIGHT_FORMATS, ServeSetup, TrainSetup
from ..lesson.calculators.operators import DEFAULTS, OPERATORS, SIZES
from ..lesson.traced import fit_figures
from ..memory.closed_form.breakdown import PARTS
from .flags import device_of, serve_flags, setup_of, skipped_flag, train_flags, whole

if TYPE_CHECKING:
    from ..lesson.calculators.calculator import MemoryAnswer


def add(commands: argparse._SubParsersAction) -> None:
    estimate = commands.add_parser("estimate", help="predict memory and time without a GPU", allow_abbrev=False)
    kinds = estimate.add_subparsers(
        title="what to estimate", required=True, metavar="train|serve|checkpointing|zero|quantize|op|kv"
    )
    train = kinds.add_parser("train", help="one training step, per rank", allow_abbrev=False)
    serve = kinds.add_parser("serve", help="weights and KV cache of one replica", allow_abbrev=False)
    for parser in (train, serve):
        parser.add_argument("--model", required=True, help=f"{', '.join(MODELS)}, or a path to a config.json")
        parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
        parser.add_argument("--fit", action="store_true", help="list what makes it fit --gpu, cheapest change first")
        parser.add_argument("--json", action="store_true", help="print JSON, in bytes")
    train_flags(train)
    train.set_defaults(run=_estimate_train)
    serve_flags(serve)
    serve.set_defaults(run=_estimate_serve)
    _checkpointing_parser(kinds)
    _zero_parser(kinds)
    _quantize_parser(kinds)
    _op_parser(kinds)
    _kv_parser(kinds)


def _checkpointing_parser(kinds: argparse._SubParsersAction) -> None:
    parser = kinds.add_parser(
        "checkpointing", help="every policy: what it keeps, where it peaks, what it runs again", allow_abbrev=False
    )
    parser.add_argument("--model", required=True, help=f"{', '.join(MODELS)}, or a path to a config.json")
    train_flags(parser)
    parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and FLOPs")
    parser.set_defaults(run=_estimate_checkpointing)


def _zero_parser(kinds: argparse._SubParsersAction) -> None:
    parser = kinds.add_parser(
        "zero", help="every ZeRO stage: bytes on a rank, bytes sent, link or arithmetic first", allow_abbrev=False
    )
    _model_twice(parser)
    train_flags(parser)
    parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
    parser.add_argument("--link", type=_link, help="between ranks: a link of the GPU, or GB/s one way, as in 25")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(run=_estimate_zero)


def _link(text: str) -> str | float:
    """A name, or a rate: plain decimal digits only."""
    plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 18
    return float(text) * 1e9 if plain else text


def _quantize_parser(kinds: argparse._SubParsersAction) -> None:
    parser = kinds.add_parser(
        "quantize", help="weights in a format: bytes by part, GPUs that hold them, tokens/s", allow_abbrev=False
    )
    parser.add_argument("--model", required=True, help=f"{', '.join(MODELS)}, or a path to a config.json")
    parser.add_argument("--weights", default="nf4-dq", help=", ".join(WEIGHT_FORMATS))
    skipped_flag(parser)
    parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
    parser.add_argument("--context", type=whole, default=2048, help="tokens of one user's KV cache")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(run=_estimate_quantize)


def _op_parser(kinds: argparse._SubParsersAction) -> None:
    op = kinds.add_parser(
        "op", help="one operator under a GPU's roof: the least time, and what sets it", allow_abbrev=False
    )
    op.add_argument("--op", required=True, help=", ".join(OPERATORS))
    op.add_argument("--gpu", required=True, help=f"one of {', '.join(DEVICES)}")
    op.add_argument("--format", default="bf16", help="number format of the tensors: fp32, tf32, bf16, fp16, fp8-e4m3 …")
    for size, text in SIZES.items():
        op.add_argument(f"--{size.replace('_', '-')}", type=whole, help=f"{text} (default {DEFAULTS[size]})")
    op.add_argument("--json", action="store_true", help="print JSON, in bytes, FLOPs and seconds")
    op.set_defaults(run=_estimate_op)


def _kv_parser(kinds: argparse._SubParsersAction) -> None:
    parser = kinds.add_parser(
        "kv", help="the KV cache on each rank: bytes, users and tokens that fit, tokens/s", allow_abbrev=False
    )
    _model_twice(parser)
    serve_flags(parser)
    parser.add_argument(
        "--cache",
        metavar="KIND",
        help="int8, int4, int2, also with -per-token, or window:1024+4: the "
        "last 1,024 tokens and the first 4; default: everything, in --kv",
    )
    parser.add_argument("--tensor-parallel", type=whole, default=1, metavar="N", help="GPUs that share the heads")
    parser.add_argument("--gpu", help=f"one of {', '.join(DEVICES)}")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and seconds")
    parser.set_defaults(run=_estimate_kv)


def _model_twice(parser: argparse.ArgumentParser) -> None:
    """The model by position, or as --model like everywhere else; `_only_model` takes the one that was given."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as --model, which may take its place")
    parser.add_argument(
        "--model", dest="named", metavar="MODEL", help=f"{', '.join(MODELS)}, or a path to a config.json"
    )


def _only_model(arguments: argparse.Namespace, example: str) -> str:
    if (arguments.model is None) == (arguments.named is None):
        raise WorkbookError(
            "no model" if arguments.named is None else "a model twice",
            "one model",
            f"name it once, as in workbook estimate {example}",
        )
    return arguments.model or arguments.named


def _estimate_train(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import training_answer

    setup = setup_of(TrainSetup, arguments)
    return _print_answer(training_answer(setup, device_of(arguments)), arguments, {}, setup)


def _estimate_serve(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import serving_answer
    from ..memory.closed_form import budget

    setup = setup_of(ServeSetup, arguments)
    per_token = budget.serve(setup).kv_bytes_per_token
    return _print_answer(
        serving_answer(setup, device_of(arguments)), arguments, {"kv_bytes_per_token": per_token}, setup
    )


def _estimate_checkpointing(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import checkpointing_answer

    answer = checkpointing_answer(setup_of(TrainSetup, arguments), arguments.gpu)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _estimate_zero(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import zero_answer

    arguments.model = _only_model(arguments, "zero llama-2-70b")
    answer = zero_answer(setup_of(TrainSetup, arguments), arguments.gpu, arguments.link)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _estimate_kv(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import kv_cache_answer

    arguments.model = _only_model(arguments, "kv llama-3-8b --users 64")
    setup = setup_of(ServeSetup, arguments)
    answer = kv_cache_answer(setup, arguments.gpu, arguments.cache, arguments.tensor_parallel)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _estimate_quantize(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import quantization_answer

    chosen = (arguments.model, arguments.weights, arguments.gpu, arguments.skipped, arguments.context)
    answer = quantization_answer(*chosen)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _estimate_op(arguments: argparse.Namespace) -> int:
    from ..lesson.calculators import roofline_answer

    given = {size: getattr(arguments, size) for size in SIZES if getattr(arguments, size) is not None}
    answer = roofline_answer(arguments.gpu, arguments.op, arguments.format, **given)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _print_answer(
    answer: MemoryAnswer, arguments: argparse.Namespace, extra: dict[str, object], setup: TrainSetup | ServeSetup
) -> int:
    where = device_of(arguments)
    fitting = _require_device(where) if arguments.fit else None
    if fitting:
        from ..memory.fit import changes, format_fits

        offers = list(changes(setup, fitting.capacity_bytes, fitting))
    if not arguments.json:
        print(answer)
        if fitting:
            print("", format_fits(setup, fitting.capacity_bytes, offers, fitting), sep="\n")
        return 0
    if fitting:
        extra = {**extra, "fit": [offer.figures for offer in offers]}
    parts = {part: answer.parts.get(part, 0) for part in PARTS}  # every name, whatever the peak is made of
    fits = None if where is None else fit_figures(where, answer.parts.total)
    print(json.dumps({"parts": parts, "peak_bytes": answer.parts.total, "device": fits, **extra}))
    return 0


def _require_device(where: Device | None) -> Device:
    if where is None:
        raise WorkbookError("--fit needs a device to fit", "--gpu with one of its names", "add --gpu, as in --gpu h100")
    return where
