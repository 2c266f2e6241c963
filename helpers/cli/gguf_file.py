"""A GGUF file at `estimate offload serve` and `plan serve`: which layers go onto a card, and what stays on the host."""

from __future__ import annotations

import argparse
import json

from ..catalog.errors import WorkbookError
from ..catalog.serve_setup import ServeSetup
from ..lesson import calculators
from ..memory.plan import Cards
from ..memory.plan.goal import SERVED_KV, SERVED_WEIGHTS
from ..memory.serve.engines.llamacpp import LlamaCpp
from . import flags


def offload_file(setup: ServeSetup, arguments: argparse.Namespace) -> int:
    """What llama.cpp leaves on the host: layers stay there and are computed there; none is streamed."""
    _refuse(arguments, {"step": "decode", "source": "host", "buffers": 2, "efficiency": 1.0})
    card, kept = flags.device_of(arguments), flags.reserve_bytes_of(arguments)
    return flags.print_answer(calculators.llamacpp_answer(LlamaCpp(setup), card, kept), arguments)


def plan_file(arguments: argparse.Namespace, fleet: list[Cards]) -> int:
    """For each kind of card in turn, all of them together; 1 where on none all layers fit."""
    unasked = dict.fromkeys(("latency", "ttft", "efficiency", "write"))
    _refuse(arguments, {**unasked, "confirm": False, "weights": SERVED_WEIGHTS})
    if arguments.engine not in ("", "llama.cpp"):
        raise WorkbookError(f"a GGUF file on {arguments.engine}", "llama.cpp", "leave --engine out")
    kv = "bf16" if arguments.kv == SERVED_KV else arguments.kv[0]
    served = LlamaCpp(ServeSetup(arguments.model, kv=kv, users=arguments.users, context=arguments.context))
    found = [calculators.llamacpp_answer(served, one.device, one.reserve_bytes, one.count) for one in fleet]
    told = json.dumps({one.device.name: answer.figures for one, answer in zip(fleet, found, strict=True)})
    print(told if arguments.json else "\n\n".join(map(str, found)))
    return 0 if any(answer.fits for answer in found) else 1


def _refuse(arguments: argparse.Namespace, usual: dict[str, object]) -> None:
    """WorkbookError for a flag that llama.cpp's layers on a card do not depend on."""
    given = [name for name, value in usual.items() if getattr(arguments, name) != value]
    if given:
        flag = "--from" if given[0] == "source" else f"--{given[0]}"
        what = f"{flag} with a GGUF file, of which llama.cpp computes each layer where it is"
        raise WorkbookError(what, "bytes: users, context, KV format, card", f"leave {flag} out")
