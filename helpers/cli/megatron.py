"""`workbook estimate megatron`: a step of Megatron-LM's over tensor, pipeline and data-parallel ranks."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields

from ..memory.breakdown import format_bytes
from ..memory.fit import Room
from ..memory.step.ranks import megatron
from . import flags
from .flags import Commands, add_command, whole

WORDS = {
    "tensor_parallel": "ranks that share each matrix",
    "pipeline": "stages of layers; where they do not divide, the first and the last have fewer",
    "data_parallel": "replicas, which share the optimizer's states",
    "expert_parallel": "of these, ranks that share a layer's experts",
    "micro_batches": "micro-batches of a step, one after the other (1F1B)",
    "micro_batch": "sequences in one of them",
    "sequence": "tokens in a sequence",
}


def add_megatron(kinds: Commands) -> None:
    text = "a step of Megatron-LM's, on the rank that needs most: tensor, pipeline and data parallel"
    parser = add_command(kinds, "megatron", text, _estimate_megatron)
    flags.model_flag(parser)
    defaults = {field.name: field.default for field in fields(megatron.MegatronSetup)}
    for name, words in WORDS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=whole, default=defaults[name], help=words)
    flags.device_and_json_flags(parser)
    flags.reserve_flag(parser)


def _estimate_megatron(arguments: argparse.Namespace) -> int:
    chosen = {name: getattr(arguments, name) for name in WORDS}
    setup, card = megatron.MegatronSetup(arguments.model, **chosen), flags.device_of(arguments)
    found = megatron.train(setup, card)
    ranks = setup.tensor_parallel * setup.pipeline * setup.data_parallel
    room = Room(card, flags.reserve_bytes_of(arguments), ranks) if card else None
    if arguments.json:
        figures = {"peak_bytes": found.peak_bytes, "stage": found.stage, "stage_peaks_bytes": found.stage_peaks_bytes}
        verdict = room.verdict(found.peak_bytes) if room else None
        print(json.dumps({"parts": dict(found.parts), **figures, "verdict": verdict}))
        return 0
    layout = f"TP {setup.tensor_parallel} x PP {setup.pipeline} x DP {setup.data_parallel}"
    layout += f", EP {setup.expert_parallel}" if setup.expert_parallel > 1 else ""
    title = f"{setup.model.name} over {layout}: {format_bytes(found.peak_bytes)} on a rank of stage {found.stage + 1}"
    print(f"{title}, {found.peak.when}\n\n{found.parts}\n")
    for at, peak in enumerate(found.stage_peaks_bytes) if setup.pipeline > 1 else ():
        print(f"stage {at + 1:<3}{format_bytes(peak):>14}")
    print(
        room.sentence(found.peak_bytes) if room else f"Each of the ranks needs up to {format_bytes(found.peak_bytes)}."
    )
    return 0
