"""`workbook estimate mesh`: a model over tensor, pipeline, context, expert and data-parallel ranks, and links."""

from __future__ import annotations

import argparse
from dataclasses import fields

from ..lesson import calculators
from ..lesson.calculators.mesh import SCHEDULES
from ..memory.step.ranks.megatron import RECOMPUTED, MegatronSetup
from . import flags
from .flags import Commands, add_command, print_answer, whole
from .megatron import WORDS

DEFAULT_GPU = "h100"


def add_mesh(kinds: Commands) -> None:
    text = "a mesh of cards: bytes on a rank, traffic, the pipeline's bubble and seconds a step"
    parser = add_command(kinds, "mesh", text, _estimate_mesh)
    flags.model_flag(parser)
    defaults = {field.name: field.default for field in fields(MegatronSetup)}
    for name, words in {**WORDS, "context_parallel": "ranks that share each sequence"}.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=whole, default=defaults[name], help=words)
    parser.add_argument("--recompute", default="none", help=f"checkpointing: {', '.join(RECOMPUTED)}")
    parser.add_argument("--schedule", default="1F1B", help=f"one of {', '.join(SCHEDULES)}")
    parser.add_argument("--node", type=whole, default=8, help="cards in a machine")
    parser.add_argument("--network", type=float, default=400.0, help="Gb/s between machines, a card")
    flags.device_and_json_flags(parser, "bytes and seconds")
    flags.reserve_flag(parser)


def _estimate_mesh(arguments: argparse.Namespace) -> int:
    names = [field.name for field in fields(MegatronSetup) if field.name != "model"]
    setup = MegatronSetup(arguments.model, **{name: getattr(arguments, name) for name in names})
    machine = arguments.gpu or DEFAULT_GPU, arguments.node, arguments.network, arguments.schedule
    return print_answer(calculators.mesh_answer(setup, *machine, flags.reserve_bytes_of(arguments)), arguments)
