"""`workbook estimate offload`: weights that are streamed, or training states off the GPU; seconds and bytes."""

from __future__ import annotations

import argparse

from ..catalog.gguf import is_gguf
from ..catalog.serve_setup import ServeSetup
from ..lesson.calculators.offload_serving import OFFLOAD_SERVE
from ..lesson.calculators.offload_training import OFFLOAD_TRAIN
from ..questions.setups import setup_of
from .flags import Commands, add_question, print_answer, said_of
from .gguf_file import offload_file


def add_offload(kinds: Commands) -> None:
    text = "what leaves the GPU: seconds of its way beside those of the work, bytes in each memory"
    parser = kinds.add_parser("offload", help=text, description=text)
    questions = parser.add_subparsers(title="what is offloaded")
    add_question(questions, OFFLOAD_SERVE, _estimate_serving)
    add_question(questions, OFFLOAD_TRAIN)


def _estimate_serving(arguments: argparse.Namespace) -> int:
    if is_gguf(arguments.model):
        return offload_file(setup_of(ServeSetup, vars(arguments)), arguments)
    return print_answer(OFFLOAD_SERVE.ask(said_of(arguments, OFFLOAD_SERVE.parameters)), arguments)
