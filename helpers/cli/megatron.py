"""`workbook estimate megatron`: a step of Megatron-LM's over tensor, pipeline and data-parallel ranks."""

from __future__ import annotations

import argparse
import json

from ..lesson.calculators.mesh import OVER_RANKS
from ..memory.breakdown import format_bytes
from ..memory.fit import Room
from ..memory.step.ranks import megatron
from ..questions.parameters import MODEL
from . import flags
from .flags import Commands, add_command

PARAMETERS = (MODEL, *OVER_RANKS)


def add_megatron(kinds: Commands) -> None:
    text = "a step of Megatron-LM's, on the rank that needs most: tensor, pipeline and data parallel"
    parser = add_command(kinds, "megatron", text, _estimate_megatron)
    flags.add_parameters(parser, PARAMETERS)
    flags.card_and_json(parser)


def _estimate_megatron(arguments: argparse.Namespace) -> int:
    setup, card = megatron.MegatronSetup(**flags.said_of(arguments, PARAMETERS)), flags.device_of(arguments)
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
