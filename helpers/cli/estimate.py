"""`workbook estimate`: memory and time in closed form, and what makes a setup fit."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace

from ..catalog.errors import WorkbookError
from ..catalog.serve_setup import ServeSetup
from ..catalog.train_setup import TrainSetup
from ..lesson import calculators
from ..lesson.calculators.from_address import OFFERED
from ..lesson.calculators.preference import DPO, GRPO
from ..lesson.calculators.serving_memory import SERVE
from ..lesson.traced import fit_figures
from ..memory.breakdown import PARTS
from ..memory.fit import changes, format_fits
from ..questions.question import Question
from ..questions.setups import setup_of
from . import by_trace, flags
from .engine import engine_of, estimate_engine
from .flags import Commands, add_question, print_answer, said_of
from .megatron import add_megatron
from .offload import add_offload
from .packing import lay_out, packing_flags

IN_ORDER = ("checkpointing", "quantization", "roofline", "attention", "serving_load", "mesh", "allocation", "block_map")


def add(commands: Commands) -> None:
    estimate = commands.add_parser("estimate", help="predict memory and time without a GPU")
    kinds = estimate.add_subparsers(title="what to estimate")
    train = add_question(kinds, OFFERED["training_memory"], _estimate_train)
    serve = add_question(kinds, SERVE, _estimate_serve)
    tune = add_question(kinds, OFFERED["fine_tuning"], _estimate_fine_tuning)
    for parser in (train, serve):
        parser.add_argument("--fit", action="store_true", help="list what makes it fit --gpu, cheapest change first")
    for parser in (train, serve, tune):
        by_trace.flag(parser)
    for parser in (train, tune):
        packing_flags(parser)
    for question in (GRPO, DPO, *(OFFERED[name] for name in IN_ORDER)):
        add_question(kinds, question)
    for name, example in (("zero", "zero llama-2-70b --ranks 8"), ("kv_cache", "kv llama-3-8b --users 64")):
        _model_by_position(add_question(kinds, OFFERED[name], _of_one_model(OFFERED[name], example)))
    add_question(commands, OFFERED["can_i_run"])
    add_offload(kinds)
    add_megatron(kinds)


def _estimate_train(arguments: argparse.Namespace) -> int:
    told = lay_out(arguments)
    setup = setup_of(TrainSetup, vars(arguments))
    if arguments.fit and setup.split.pipeline > 1:
        do = f"leave --fit out, and ask for each: --rank 0 to {setup.ranks - 1:,}"
        raise WorkbookError("--fit in a pipeline, whose ranks are not alike", "a run whose ranks hold the same", do)
    kept = flags.reserve_bytes_of(arguments)
    answer = calculators.training_answer(setup, flags.device_of(arguments), kept, arguments.rank)
    answer = replace(answer, by_lengths=arguments.lengths is not None)
    return flags.with_notes(_print_memory(answer, arguments, setup), () if arguments.json else told)


def _estimate_serve(arguments: argparse.Namespace) -> int:
    setup = setup_of(ServeSetup, vars(arguments))
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


def _estimate_fine_tuning(arguments: argparse.Namespace) -> int:
    told = lay_out(arguments)
    setup, kept = setup_of(TrainSetup, vars(arguments)), flags.reserve_bytes_of(arguments)
    answer = calculators.fine_tuning_answer(setup, arguments.gpu, kept)
    answer = replace(answer, by_lengths=arguments.lengths is not None)
    found = by_trace.found(answer, setup, arguments)
    if arguments.json:
        print(json.dumps({**answer.figures, "traced": by_trace.figures(found, answer.room)}))
        return 0
    print(by_trace.told(answer, found))
    return flags.with_notes(0, told)


def _model_by_position(parser: argparse.ArgumentParser) -> None:
    """The model by position, or as --model like everywhere else; `_of_one_model` takes the one that was given."""
    [named] = [action for action in parser._actions if action.dest == "model"]
    named.dest, named.required, named.metavar = "named", False, "MODEL"
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as --model, which may take its place")


def _of_one_model(question: Question, example: str) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        if (arguments.model is None) == (arguments.named is None):
            what = "no model" if arguments.named is None else "a model twice"
            raise WorkbookError(what, "one model", f"name it once, as in workbook estimate {example}")
        arguments.model = arguments.model or arguments.named
        return print_answer(question.ask(said_of(arguments, question.parameters)), arguments)

    return run
