"""`workbook estimate`: memory and time in closed form, and what makes a setup fit."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from ..catalog.errors import WorkbookError
from ..catalog.serve_setup import WEIGHT_FORMATS, ServeSetup
from ..catalog.train_setup import TrainSetup
from ..lesson import calculators
from ..lesson.calculators.allocation import TRACES
from ..lesson.calculators.operators import DEFAULTS, OPERATORS, SIZES
from ..lesson.traced import fit_figures
from ..memory.breakdown import PARTS
from ..memory.fit import changes, format_fits
from . import by_trace, flags
from .engine import engine_flags, engine_of, estimate_engine
from .flags import Commands, add_command, print_answer, setup_of, whole
from .load import add_load
from .megatron import add_megatron
from .mesh import add_mesh
from .offload import add_offload
from .packing import lay_out, packing_flags
from .preference import add_preference


def add(commands: Commands) -> None:
    estimate = commands.add_parser("estimate", help="predict memory and time without a GPU")
    kinds = estimate.add_subparsers(title="what to estimate")
    train = add_command(kinds, "train", "one training step, per rank", _estimate_train)
    serve = add_command(
        kinds, "serve", "one replica: weights, KV cache, and what prefill and decoding take", _estimate_serve
    )
    for parser in (train, serve):
        flags.model_flag(parser)
        flags.device_and_json_flags(parser)
        flags.reserve_flag(parser)
        parser.add_argument("--fit", action="store_true", help="list what makes it fit --gpu, cheapest change first")
        by_trace.flag(parser)
    flags.train_flags(train)
    packing_flags(train)
    flags.adapter_flags(train)
    flags.split_flags(train, "PyTorch's ways beside --zero; what is answered is one rank's")
    flags.serve_flags(serve)
    engine_flags(serve)
    for add_kind in (
        _add_fine_tuning,
        add_preference,
        _add_checkpointing,
        _add_zero,
        _add_quantize,
        _add_op,
        _add_attention,
        _add_kv,
        add_load,
        add_offload,
        add_megatron,
        add_mesh,
        _add_allocation,
        _add_blocks,
    ):
        add_kind(kinds)


def _estimate_train(arguments: argparse.Namespace) -> int:
    told = lay_out(arguments)
    setup = setup_of(TrainSetup, arguments)
    if arguments.fit and setup.split.pipeline > 1:
        do = f"leave --fit out, and ask for each: --rank 0 to {setup.ranks - 1:,}"
        raise WorkbookError("--fit in a pipeline, whose ranks are not alike", "a run whose ranks hold the same", do)
    kept = flags.reserve_bytes_of(arguments)
    answer = calculators.training_answer(setup, flags.device_of(arguments), kept, arguments.rank)
    answer = replace(answer, by_lengths=arguments.lengths is not None)
    return flags.with_notes(_print_memory(answer, arguments, setup), () if arguments.json else told)


def _estimate_serve(arguments: argparse.Namespace) -> int:
    setup = setup_of(ServeSetup, arguments)
    notes = () if arguments.json else flags.ollama(arguments.model, setup)
    return flags.with_notes(_estimate_by_engine(setup, arguments), notes)


def _estimate_by_engine(setup: ServeSetup, arguments: argparse.Namespace) -> int:
    if found := engine_of(arguments):
        return estimate_engine(found, setup, arguments)
    if arguments.engine and setup.prefill_tokens is None:  # Transformers, which was asked for, takes a prompt whole
        setup = replace(setup, prefill_tokens=setup.prompt_tokens)
    answer = calculators.serving_answer(setup, flags.device_of(arguments), flags.reserve_bytes_of(arguments))
    predicted = answer.predicted
    held = {part: predicted.held.get(part, 0) for part in ("parameters", "kv_cache")}
    told = {"held": held, "moments": answer.figures["moments"], "kv_bytes_per_token": predicted.kv_bytes_per_token}
    return _print_memory(answer, arguments, setup, **told)


def _print_memory(
    answer: calculators.TrainingAnswer | calculators.ServingAnswer,
    arguments: argparse.Namespace,
    setup: TrainSetup | ServeSetup,
    **extra: object,
) -> int:
    room, kept = answer.room, answer.reserve_bytes
    found = by_trace.found(answer, setup, arguments)
    if arguments.fit and room is None:
        raise WorkbookError("--fit needs a device to fit", "--gpu with one of its names", "add --gpu, as in --gpu h100")
    offers = list(changes(setup, room.for_tensors_bytes, room.card, kept)) if room and arguments.fit else []
    if getattr(arguments, "lengths", None) is not None:  # they say the micro-batch, and no flag beside them does
        offers = [offer for offer in offers if "micro_batch" not in offer.fields]
    if arguments.json:
        if arguments.fit:
            extra["fit"] = [offer.figures for offer in offers]
        parts = {part: answer.parts.get(part, 0) for part in PARTS}  # every name, whatever the peak is made of
        fits = None if room is None else fit_figures(room, answer.parts.total)
        figures = {"parts": parts, "peak_bytes": answer.parts.total, "device": fits}
        print(json.dumps({**figures, "traced": by_trace.figures(found, room), **extra}))
        return 0
    print(by_trace.told(answer, found))
    if room and arguments.fit:
        print("", format_fits(setup, room.for_tensors_bytes, offers, room.card, kept), sep="\n")
    return 0


def _add_fine_tuning(kinds: Commands) -> None:
    text = "full, LoRA, DoRA or QLoRA, beside each other: bytes by part, cards that hold it, the cheapest change"
    parser = add_command(kinds, "fine-tuning", text, _estimate_fine_tuning)
    flags.model_flag(parser)
    flags.train_flags(parser)
    packing_flags(parser)
    flags.adapter_flags(parser)
    flags.device_and_json_flags(parser)
    flags.reserve_flag(parser)
    by_trace.flag(parser)


def _estimate_fine_tuning(arguments: argparse.Namespace) -> int:
    told = lay_out(arguments)
    setup, kept = setup_of(TrainSetup, arguments), flags.reserve_bytes_of(arguments)
    answer = calculators.fine_tuning_answer(setup, arguments.gpu, kept)
    answer = replace(answer, by_lengths=arguments.lengths is not None)
    found = by_trace.found(answer, setup, arguments)
    if arguments.json:
        print(json.dumps({**answer.figures, "traced": by_trace.figures(found, answer.room)}))
        return 0
    print(by_trace.told(answer, found))
    return flags.with_notes(0, told)


def _add_checkpointing(kinds: Commands) -> None:
    text = "every policy: what it keeps, where it peaks, what it runs again"
    parser = add_command(kinds, "checkpointing", text, _estimate_checkpointing)
    flags.model_flag(parser)
    flags.train_flags(parser)
    flags.device_and_json_flags(parser, "bytes and FLOPs")
    flags.reserve_flag(parser)


def _estimate_checkpointing(arguments: argparse.Namespace) -> int:
    setup, kept = setup_of(TrainSetup, arguments), flags.reserve_bytes_of(arguments)
    return print_answer(calculators.checkpointing_answer(setup, arguments.gpu, kept), arguments)


def _add_zero(kinds: Commands) -> None:
    text = "every ZeRO stage: bytes on a rank, bytes sent, link or arithmetic first"
    parser = add_command(kinds, "zero", text, _estimate_zero)
    _model_twice(parser)
    flags.train_flags(parser)
    parser.add_argument("--link", type=_link, help="between ranks: a link of the GPU, or GB/s one way, as in 25")
    flags.device_and_json_flags(parser, "bytes and seconds")
    flags.reserve_flag(parser)


def _link(text: str) -> str | float:
    """A name, or a rate: plain decimal digits only."""
    plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 18
    return float(text) * 1e9 if plain else text


def _estimate_zero(arguments: argparse.Namespace) -> int:
    arguments.model = _only_model(arguments, "zero llama-2-70b")
    setup, kept = setup_of(TrainSetup, arguments), flags.reserve_bytes_of(arguments)
    return print_answer(calculators.zero_answer(setup, arguments.gpu, arguments.link, kept), arguments)


def _add_quantize(kinds: Commands) -> None:
    text = "weights in a format: bytes by part, GPUs that hold them, tokens/s"
    parser = add_command(kinds, "quantize", text, _estimate_quantize)
    flags.model_flag(parser)
    parser.add_argument("--weights", default="nf4-dq", help=", ".join(WEIGHT_FORMATS))
    flags.skipped_flag(parser)
    parser.add_argument("--context", type=whole, default=2048, help="tokens of one user's KV cache")
    flags.device_and_json_flags(parser, "bytes and seconds")
    flags.reserve_flag(parser)


def _estimate_quantize(arguments: argparse.Namespace) -> int:
    chosen = (arguments.model, arguments.weights, arguments.gpu, arguments.skipped, arguments.context)
    return print_answer(calculators.quantization_answer(*chosen, flags.reserve_bytes_of(arguments)), arguments)


def _add_op(kinds: Commands) -> None:
    op = add_command(kinds, "op", "one operator under a GPU's roof: the least time, and what sets it", _estimate_op)
    op.add_argument("--op", required=True, help=", ".join(OPERATORS))
    op.add_argument("--format", default="bf16", help="number format of the tensors: fp32, tf32, bf16, fp16, fp8-e4m3 …")
    for size, text in SIZES.items():
        op.add_argument(f"--{size.replace('_', '-')}", type=whole, help=f"{text} (default {DEFAULTS[size]})")
    flags.device_and_json_flags(op, "bytes, FLOPs and seconds", required=True)


def _estimate_op(arguments: argparse.Namespace) -> int:
    given = {size: getattr(arguments, size) for size in SIZES if getattr(arguments, size) is not None}
    return print_answer(calculators.roofline_answer(arguments.gpu, arguments.op, arguments.format, **given), arguments)


def _add_attention(kinds: Commands) -> None:
    text = "one layer's attention with its matrix and without: bytes, traffic, the lengths where either takes the time"
    parser = add_command(kinds, "attention", text, _estimate_attention)
    sizes = {
        "sequence": "tokens, with --phase decode those in the cache",
        "heads": "heads of queries",
        "kv_heads": "heads of keys and values, which divide them",
        "head_dim": "width of a head",
        "batch": "sequences at once",
        "window": "keys that a query sees, itself counted in; 0: all before it",
    }
    defaults = calculators.attention().start
    for size, words in sizes.items():
        parser.add_argument(f"--{size.replace('_', '-')}", type=whole, default=defaults[size], help=words)
    parser.add_argument("--format", default="bf16", help="number format of the tensors: fp32, tf32, bf16, fp16")
    parser.add_argument("--phase", default="forward", help="forward, training, decode")
    parser.add_argument("--mask", default="causal", help="causal, or none: every query sees every key")
    flags.device_and_json_flags(parser, "bytes and seconds", required=True)


def _estimate_attention(arguments: argparse.Namespace) -> int:
    sizes = ("sequence", "heads", "kv_heads", "head_dim", "batch", "mask", "window", "phase")
    given = {name: getattr(arguments, name) for name in sizes}
    return print_answer(calculators.attention_answer(arguments.gpu, number_format=arguments.format, **given), arguments)


def _add_kv(kinds: Commands) -> None:
    text = "the KV cache on each rank: bytes, users and tokens that fit, tokens/s"
    parser = add_command(kinds, "kv", text, _estimate_kv)
    _model_twice(parser)
    flags.serve_flags(parser)
    caches = "int8, int4, int2, also with -per-token, or window:1024+4: the last 1,024 tokens and the first 4"
    parser.add_argument("--cache", metavar="KIND", help=f"{caches}; default: everything, in --kv")
    parser.add_argument("--tensor-parallel", type=whole, default=1, metavar="N", help="GPUs that share the heads")
    flags.device_and_json_flags(parser, "bytes and seconds")
    flags.reserve_flag(parser)


def _estimate_kv(arguments: argparse.Namespace) -> int:
    arguments.model = _only_model(arguments, "kv llama-3-8b --users 64")
    chosen = (setup_of(ServeSetup, arguments), arguments.gpu, arguments.cache, arguments.tensor_parallel)
    return print_answer(calculators.kv_cache_answer(*chosen, flags.reserve_bytes_of(arguments)), arguments)


def _add_allocation(kinds: Commands) -> None:
    text = "a small trace through the caching allocator, up to one event"
    parser = add_command(kinds, "allocation", text, _estimate_allocation)
    parser.add_argument("--trace", default="batch first", help=", ".join(TRACES))
    parser.add_argument("--settings", default="default", help="as in PYTORCH_ALLOC_CONF (default: PyTorch's)")
    _step_and_json_flags(parser, "event of the trace, from 1")


def _estimate_allocation(arguments: argparse.Namespace) -> int:
    return print_answer(calculators.allocation_answer(arguments.trace, arguments.settings, arguments.step), arguments)


def _add_blocks(kinds: Commands) -> None:
    parser = add_command(kinds, "blocks", "requests in a pool of KV blocks, at one decoding step", _estimate_blocks)
    parser.add_argument("--trace", default="chat", help="chat, documents, code")
    parser.add_argument("--policy", default="paged", help="contiguous, paged, prefix")
    parser.add_argument("--block-size", type=whole, default=4, help="tokens in a block")
    parser.add_argument("--pool-tokens", type=whole, default=1024, help="tokens that the pool has room for")
    _step_and_json_flags(parser, "decoding step, from 1")


def _estimate_blocks(arguments: argparse.Namespace) -> int:
    scene = (arguments.trace, arguments.policy, arguments.block_size, arguments.pool_tokens)
    return print_answer(calculators.block_map_answer(*scene, arguments.step), arguments)


def _step_and_json_flags(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--step", type=whole, default=1, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes and slots")


def _model_twice(parser: argparse.ArgumentParser) -> None:
    """The model by position, or as --model like everywhere else; `_only_model` takes the one that was given."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as --model, which may take its place")
    parser.add_argument("--model", dest="named", metavar="MODEL", help=flags.MODEL_HELP)


def _only_model(arguments: argparse.Namespace, example: str) -> str:
    if (arguments.model is None) == (arguments.named is None):
        what = "no model" if arguments.named is None else "a model twice"
        raise WorkbookError(what, "one model", f"name it once, as in workbook estimate {example}")
    return arguments.model or arguments.named
