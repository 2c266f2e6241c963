"""`workbook estimate offload`: weights that are streamed, or training states off the GPU; seconds and bytes."""

from __future__ import annotations

import argparse

from ..catalog.serve_setup import ServeSetup
from ..catalog.tiers import TIERS
from ..catalog.train_setup import TrainSetup
from ..lesson.calculators.offload_serving import HOST, STEPS, offload_serving_answer
from ..lesson.calculators.offload_training import USUAL_EFFICIENCY, USUAL_HOST, USUAL_RANKS, offload_training_answer
from . import flags
from .flags import Commands, add_command, decimal, setup_of, whole
from .gguf_file import offload_file


def add_offload(kinds: Commands) -> None:
    text = "what leaves the GPU: seconds of its way beside those of the work, bytes in each memory"
    parser = kinds.add_parser("offload", help=text, description=text)
    questions = parser.add_subparsers(title="what is offloaded")
    serve = add_command(questions, "serve", "a step whose layers are streamed from elsewhere", _estimate_serving)
    train = add_command(questions, "train", "a step whose states or parameters are elsewhere", _estimate_training)
    for one in (serve, train):
        flags.model_flag(one)
        flags.device_and_json_flags(one, "bytes and seconds", required=True)
        flags.reserve_flag(one)
    _serving_flags(serve)
    _training_flags(train)


def _serving_flags(parser: argparse.ArgumentParser) -> None:
    flags.serve_flags(parser)
    parser.add_argument("--step", default=STEPS[0], help=f"{', '.join(STEPS)}: a token for each user, or all --context")
    text = f"where the layers are: {HOST}, over PCIe or {', '.join(TIERS)}"
    parser.add_argument("--from", dest="source", default=HOST, metavar="TIER", help=text)
    parser.add_argument("--buffers", type=whole, default=2, metavar="N", help="1, or 2 so that copies overlap")
    parser.add_argument("--efficiency", type=decimal, default=1.0, metavar="SHARE", help="of the FLOP rate")


def _training_flags(parser: argparse.ArgumentParser) -> None:
    flags.train_flags(parser)
    known = {kind: ", ".join(name for name, one in TIERS.items() if one.kind == kind) for kind in ("dram", "nvme")}
    parser.add_argument("--host", default=USUAL_HOST, metavar="TIER", help=known["dram"])
    parser.add_argument("--disk", metavar="TIER", help=f"for what is offloaded to nvme: {known['nvme']}")
    text = "ranks that share a host's memory and disks"
    parser.add_argument("--ranks-per-host", type=whole, default=USUAL_RANKS, metavar="N", help=text)
    text = "of the FLOP rate"
    parser.add_argument("--efficiency", type=decimal, default=USUAL_EFFICIENCY, metavar="SHARE", help=text)


def _estimate_serving(arguments: argparse.Namespace) -> int:
    way = (arguments.step, arguments.source, arguments.buffers, arguments.efficiency)
    kept = flags.reserve_bytes_of(arguments)
    setup = setup_of(ServeSetup, arguments)
    if setup.model.stored:
        return offload_file(setup, arguments)
    answer = offload_serving_answer(setup, arguments.gpu, *way, kept)
    return flags.print_answer(answer, arguments)


def _estimate_training(arguments: argparse.Namespace) -> int:
    way = (arguments.host, arguments.disk, arguments.ranks_per_host, arguments.efficiency)
    kept = flags.reserve_bytes_of(arguments)
    answer = offload_training_answer(setup_of(TrainSetup, arguments), arguments.gpu, *way, kept)
    return flags.print_answer(answer, arguments)
