"""`--engine` of `workbook estimate serve`: the answer for an engine that sets a pool aside."""

from __future__ import annotations

import argparse
import json

from ..catalog.devices import Device
from ..catalog.engines import ENGINES, EngineVersion, engine
from ..catalog.errors import WorkbookError
from ..catalog.serve_setup import ServeSetup
from ..lesson import calculators
from ..lesson.calculators import CalculatorAnswer
from ..memory.serve.engines.llamacpp import LlamaCpp
from ..memory.serve.engines.sglang import SglangLaunch
from ..memory.serve.engines.vllm import launch
from . import flags

PLAIN = "transformers"
ONLY_ENGINES = ("engine_version", "tensor", "pipeline", "share", "max_seqs")  # flags that PLAIN has no use for


def engine_of(arguments: argparse.Namespace) -> EngineVersion | None:
    """The engine that was named; None for Transformers, which takes none of an engine's flags."""
    found = engine(arguments.engine or PLAIN, arguments.engine_version)
    if found.name != PLAIN:
        return found
    given = [f"--{name}".replace("_", "-") for name in ONLY_ENGINES if getattr(arguments, name) is not None]
    if given:
        what = ", ".join(given)
        raise WorkbookError(f"{what} without an engine", f"--engine {' or '.join(ENGINES[1:])}", "add --engine vllm")
    return None


def estimate_engine(found: EngineVersion, setup: ServeSetup, arguments: argparse.Namespace) -> int:
    if arguments.fit:
        what, do = f"--fit with --engine {found.name}", "leave it out: the answer says how many users its pool holds"
        raise WorkbookError(what, f"--fit with --engine {PLAIN}", do)
    answer = _ANSWERS[found.name](found, setup, arguments)
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def _vllm(found: EngineVersion, setup: ServeSetup, arguments: argparse.Namespace) -> CalculatorAnswer:
    ranks = (arguments.tensor or 1, arguments.pipeline or 1)
    made = launch(setup, found, _card(found, arguments), *ranks, arguments.share, arguments.max_seqs)
    return calculators.engine_answer(made)


def _sglang(found: EngineVersion, setup: ServeSetup, arguments: argparse.Namespace) -> CalculatorAnswer:
    _refuse(found, arguments, "pipeline", "max_seqs")
    made = SglangLaunch(setup, _card(found, arguments), arguments.tensor or 1, arguments.share)
    return calculators.sglang_answer(made)


def _llamacpp(found: EngineVersion, setup: ServeSetup, arguments: argparse.Namespace) -> CalculatorAnswer:
    _refuse(found, arguments, *ONLY_ENGINES)
    card, kept = flags.device_of(arguments), flags.reserve_bytes_of(arguments)
    return calculators.llamacpp_answer(LlamaCpp(setup), card, kept)


_ANSWERS = {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llamacpp}


def _card(found: EngineVersion, arguments: argparse.Namespace) -> Device:
    card = flags.device_of(arguments)
    if card is None:
        what, expected = f"a pool of {found.name} without a card", "--gpu with one of its names"
        raise WorkbookError(what, expected, "add --gpu, as in --gpu h100")
    return card


def _refuse(found: EngineVersion, arguments: argparse.Namespace, *names: str) -> None:
    given = [f"--{name}".replace("_", "-") for name in names if getattr(arguments, name) is not None]
    if given:
        what = f"{', '.join(given)} with --engine {found.name}"
        raise WorkbookError(what, "flags that its memory depends on here", f"leave {given[0]} out")
