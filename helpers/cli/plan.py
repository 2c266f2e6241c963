"""`workbook plan`: from a goal and the cards at hand to the plans that work, cheapest first."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..catalog import prices
from ..catalog.cache_formats import KV_FORMATS
from ..catalog.devices import device
from ..catalog.engines import POOLED
from ..catalog.errors import WorkbookError, require_whole
from ..catalog.gguf import is_gguf
from ..catalog.serve_setup import WEIGHT_FORMATS
from ..memory.plan import (
    Cards,
    Efficiency,
    ServeAnswer,
    ServeGoal,
    Shares,
    TrainAnswer,
    TrainGoal,
    plan_serving,
    plan_training,
    serving_told,
    training_told,
)
from ..memory.plan.figures import serving_figures, training_figures
from ..memory.plan.goal import (
    FINE_TUNING_BATCH,
    METHODS,
    PRETRAINING_BATCH,
    SERVED_KV,
    SERVED_WEIGHTS,
    TRAIN_PRECISIONS,
)
from ..memory.plan.machine import MOST_CARDS, USUAL_NETWORK_BYTES_PER_S, USUAL_NODE
from ..memory.plan.written import write
from . import flags
from .flags import Commands, add_command, decimal, whole
from .gguf_file import plan_file

TIME = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|min|h|d)")
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
COUNT = re.compile(r"(\d{1,18})|(\d{1,6}(?:\.\d{1,6})?)e(\d{1,2})")


def add(commands: Commands) -> None:
    plan = commands.add_parser("plan", help="plans that reach a goal with the cards at hand, cheapest first")
    kinds = plan.add_subparsers(title="what to plan")
    train = add_command(kinds, "train", "train every weight on so many tokens", _plan_training)
    tune = add_command(kinds, "fine-tune", "the same, or adapters alone, in smaller batches", _plan_training)
    serve = add_command(kinds, "serve", "serve so many users, each with so many tokens", _plan_serving)
    for parser in (train, tune):
        _train_flags(parser)
    train.set_defaults(methods=("full",), batch=PRETRAINING_BATCH)
    tune.set_defaults(methods=METHODS, batch=FINE_TUNING_BATCH)
    _serve_flags(serve)
    for parser in (train, tune, serve):
        _fleet_flags(parser)


def _train_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=flags.MODEL_HELP)
    parser.add_argument("--tokens", type=count, required=True, metavar="N", help="to train on, as in 1e9")
    parser.add_argument("--sequence", type=whole, default=4096, metavar="N", help="tokens in a sequence")
    parser.add_argument("--batch", type=count, metavar="N", help="tokens in a batch, about")
    parser.add_argument("--deadline", type=seconds, metavar="TIME", help="as in 24h, 90min or 30d")
    parser.add_argument("--methods", type=names, metavar="NAMES", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--precisions", type=names, default=TRAIN_PRECISIONS, metavar="NAMES", help="that may be used")
    optimizers = ("adamw-fused", "adamw-8bit")
    parser.add_argument("--optimizers", type=names, default=optimizers, metavar="NAMES", help="that may be used")


def _serve_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=flags.MODEL_HELP)
    parser.add_argument("--users", type=whole, default=1, metavar="N", help="at once")
    parser.add_argument("--context", type=whole, default=8192, metavar="N", help="tokens of each")
    parser.add_argument("--prompt", type=whole, metavar="N", help="of these, in the prompt (default three quarters)")
    parser.add_argument("--latency", type=seconds, metavar="TIME", help="longest from token to token, as in 50ms")
    parser.add_argument("--ttft", type=seconds, metavar="TIME", help="longest to the first token, as in 2s")
    pools = f"whose pool is planned with: {', '.join(POOLED)}; default: Transformers' forward and a reserve by card"
    parser.add_argument("--engine", default="", metavar="NAME", help=pools)
    parser.add_argument(
        "--weights", type=names, default=SERVED_WEIGHTS, metavar="NAMES", help=", ".join(WEIGHT_FORMATS)
    )
    parser.add_argument("--kv", type=names, default=SERVED_KV, metavar="NAMES", help=", ".join(KV_FORMATS))


def _fleet_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cards", required=True, metavar="CARD=N", help="as in h100=8 or h100=8,h200=4")
    text = "dollars for an hour of a card, in place of helpers/catalog/data/prices.json, as in h100=2.50"
    parser.add_argument("--price", metavar="CARD=DOLLARS", default="", help=text)
    parser.add_argument("--node", type=whole, default=USUAL_NODE, metavar="N", help="cards in a machine")
    usual = "GB/s of the network for each card, one way"
    parser.add_argument("--network", type=decimal, default=USUAL_NETWORK_BYTES_PER_S / 1e9, metavar="RATE", help=usual)
    text = "shares of the FLOP rate that a run reaches: poor, usual, best (train 0.32,0.45,0.58)"
    parser.add_argument("--efficiency", type=names, metavar="SHARES", help=text)
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the first plan as files that engines read")
    parser.add_argument("--confirm", action="store_true", help="trace the first plan as well: seconds to minutes")
    parser.add_argument("--json", action="store_true", help="print JSON, in bytes, seconds and dollars")
    flags.reserve_flag(parser)


def _plan_training(arguments: argparse.Namespace) -> int:
    goal = TrainGoal(
        arguments.model,
        tokens=arguments.tokens,
        sequence=arguments.sequence,
        batch_tokens=arguments.batch,
        deadline_s=arguments.deadline,
        methods=arguments.methods,
        precisions=arguments.precisions,
        optimizers=arguments.optimizers,
    )
    found = plan_training(goal, fleet_of(arguments), _rates(arguments, "training_flops"))
    told = "" if arguments.json else training_told(found)
    return _answered(found, arguments, told, training_figures(found) if arguments.json else {})


def _plan_serving(arguments: argparse.Namespace) -> int:
    if is_gguf(arguments.model):
        return plan_file(arguments, fleet_of(arguments))
    goal = ServeGoal(
        arguments.model,
        users=arguments.users,
        context=arguments.context,
        prompt=arguments.prompt,
        latency_s=arguments.latency,
        ttft_s=arguments.ttft,
        weights=arguments.weights,
        kv=arguments.kv,
        engine=arguments.engine,
    )
    found = plan_serving(goal, fleet_of(arguments), _rates(arguments, "serving_flops"))
    told = "" if arguments.json else serving_told(found)
    return _answered(found, arguments, told, serving_figures(found) if arguments.json else {})


def _answered(
    found: TrainAnswer | ServeAnswer, arguments: argparse.Namespace, told: str, figures: Mapping[str, object]
) -> int:
    """Print text or JSON, with the trace's word and the files of the first plan, as asked for; 1 without a plan."""
    confirmed = _confirmed(found) if found.plans and arguments.confirm else None
    paths = [str(path) for path in _written(found, arguments)]
    if arguments.json:
        print(json.dumps({**figures, "confirmed": confirmed, "written": paths}))
    else:
        traced = [confirmed["sentence"]] if confirmed else []
        print("\n".join([told, *traced, *(f"wrote {path}" for path in paths)]))
    return 0 if found.plans else 1


def _confirmed(found: TrainAnswer | ServeAnswer) -> dict[str, Any]:
    from ..memory.plan.confirm import confirm  # which imports torch

    confirmation = confirm(found)
    return {**asdict(confirmation), "sentence": confirmation.sentence}


def _written(found: TrainAnswer | ServeAnswer, arguments: argparse.Namespace) -> list[Path]:
    return write(found, arguments.write) if found.plans and arguments.write else []


def fleet_of(arguments: argparse.Namespace) -> list[Cards]:
    """The cards of --cards, each with its price."""
    known = prices.with_own({name: _price(name, text) for name, text in pairs("--price", arguments.price)})
    fleet = []
    for name, text in pairs("--cards", arguments.cards):
        number = _number(name, text)
        price = known.get(device(name).name)
        per_hour = price.per_hour if price else None
        reserve = flags.reserve_bytes_of(arguments)
        fleet.append(Cards(name, number, per_hour, arguments.node, arguments.network * 1e9, reserve))
    if not fleet:
        raise WorkbookError("--cards is empty", "a type and a number", "pass --cards h100=8")
    return fleet


def pairs(flag: str, text: str) -> list[tuple[str, str]]:
    """`h100=8,h200=4` as pairs.

    >>> pairs("--cards", "h100=8, h200=4")
    [('h100', '8'), ('h200', '4')]
    """
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = one.partition("=")
        if not (name and equals and value):
            count = re.fullmatch(r"(\d{1,4})[x×*]([a-z].*|\d{3,4}.*)", one, re.IGNORECASE)
            example = f"{count[2]}={count[1]}" if count else f"{one}=1" if one and not equals else "h100=8,h200=4"
            raise WorkbookError(f"{flag} has {one!r}", "a card and a number, as in h100=8", f"pass {flag} {example}")
        found.append((name.strip(), value.strip()))
    return found


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise WorkbookError(
            f"{name}={text}", f"a whole number of cards, up to {MOST_CARDS:,}", f"pass --cards {name}=8"
        )
    return require_whole(f"the number of {name}", int(text), most=MOST_CARDS, do=f"pass --cards {name}=8")


def _price(name: str, text: str) -> float:
    try:
        return decimal(text)
    except argparse.ArgumentTypeError:
        raise WorkbookError(f"--price {name}={text}", "dollars for an hour of one card", f"as in {name}=2.50") from None


def _rates(arguments: argparse.Namespace, name: str) -> Efficiency:
    if not arguments.efficiency:
        return Efficiency()
    try:
        given = [decimal(text) for text in arguments.efficiency]
    except argparse.ArgumentTypeError as problem:
        raise WorkbookError(
            f"--efficiency: {problem}", "three shares, the poorest first", "as in 0.32,0.45,0.58"
        ) from None
    if len(given) != 3:
        raise WorkbookError(f"--efficiency has {len(given)} shares", "three, the poorest first", "as in 0.32,0.45,0.58")
    chosen = Shares(*given)
    return Efficiency(training_flops=chosen) if name == "training_flops" else Efficiency(serving_flops=chosen)


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


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
