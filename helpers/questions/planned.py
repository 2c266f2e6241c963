"""What `workbook plan` is told: a run or a service, and the cards at hand; and how counts and times are typed."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

from ..catalog.cache_formats import KV_FORMATS
from ..catalog.engines import POOLED
from ..catalog.serve_setup import WEIGHT_FORMATS
from ..memory.plan.goal import METHODS, SERVED_KV, SERVED_WEIGHTS, TRAIN_PRECISIONS
from ..memory.plan.machine import USUAL_NETWORK_BYTES_PER_S, USUAL_NODE
from .parameter import Parameter, decimal, names, whole
from .parameters import MODEL, RESERVE

TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|min|h|d)")
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
COUNT = re.compile(r"(\d{1,18})|(\d{1,6}(?:\.\d{1,6})?)e(\d{1,2})")


def seconds(text: str) -> float:
    """A time with its unit, in seconds.

    >>> seconds("50ms"), seconds("24h")
    (0.05, 86400.0)
    """
    found = TIME.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: a number with ms, s, min, h or d, as in 50ms or 24h")
    return float(found[1]) * UNITS[found[2]]


def count(text: str) -> int:
    """A whole number, in digits or as 1e9.

    >>> count("1e9"), count("2.5e11")
    (1000000000, 250000000000)
    """
    found = COUNT.fullmatch(text)
    if found and found[1]:
        return int(found[1])
    if found:
        digits, _, after = found[2].partition(".")
        power = int(found[3]) - len(after)
        if power >= 0:
            return int(digits + after) * 10**power
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, as in 1000000000 or 1e9")


_CARDS = (
    Parameter("cards", "as in h100=8 or h100=8,h200=4", required=True, metavar="CARD=N"),
    Parameter(
        "price",
        "dollars for an hour of a card, in place of helpers/catalog/data/prices.json, as in h100=2.50",
        "",
        metavar="CARD=DOLLARS",
    ),
)
_REST = (
    Parameter("node", "cards in a machine", USUAL_NODE, whole, metavar="N"),
    Parameter(
        "network",
        "GB/s of the network for each card, one way",
        USUAL_NETWORK_BYTES_PER_S / 1e9,
        decimal,
        metavar="RATE",
    ),
    Parameter(
        "efficiency",
        "shares of the FLOP rate that a run reaches: poor, usual, best (train 0.32,0.45,0.58)",
        type=names,
        metavar="SHARES",
    ),
    Parameter("write", "write the first plan as files that engines read", type=Path, metavar="DIR"),
    Parameter("confirm", "trace the first plan as well: seconds to minutes", False, bool),
    RESERVE,
)
_NAMED = replace(MODEL, by_position=True, metavar="MODEL")
PLANNED_RUN = (
    _NAMED,
    Parameter("tokens", "to train on, as in 1e9", type=count, required=True, metavar="N"),
    *_CARDS,
    Parameter("deadline", "as in 24h, 90min or 30d", type=seconds, metavar="TIME"),
    Parameter("optimizers", "that may be used", ("adamw-fused", "adamw-8bit"), names, metavar="NAMES", always=True),
    Parameter("sequence", "tokens in a sequence", 4096, whole, metavar="N"),
    Parameter("batch", "tokens in a batch, about", type=count, metavar="N"),
    Parameter("methods", f"of {', '.join(METHODS)}", type=names, metavar="NAMES"),
    Parameter("precisions", "that may be used", TRAIN_PRECISIONS, names, metavar="NAMES"),
    *_REST,
)
PLANNED_SERVICE = (
    _NAMED,
    Parameter("users", "at once", 1, whole, metavar="N", always=True),
    Parameter("context", "tokens of each", 8192, whole, metavar="N", always=True),
    Parameter("latency", "longest from token to token, as in 50ms", type=seconds, metavar="TIME"),
    *_CARDS,
    Parameter("weights", ", ".join(WEIGHT_FORMATS), SERVED_WEIGHTS, names, metavar="NAMES", always=True),
    Parameter("kv", ", ".join(KV_FORMATS), SERVED_KV, names, metavar="NAMES", always=True),
    Parameter("prompt", "of these, in the prompt (default three quarters)", type=whole, metavar="N"),
    Parameter("ttft", "longest to the first token, as in 2s", type=seconds, metavar="TIME"),
    Parameter(
        "engine",
        f"whose pool is planned with: {', '.join(POOLED)}; default: Transformers' forward and a reserve by card",
        "",
        metavar="NAME",
    ),
    *_REST,
)
