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
from ..catalog.devices import device
from ..catalog.errors import WorkbookError, require_whole
from ..catalog.gguf import is_gguf
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
    serving_report,
    training_report,
)
from ..memory.plan.as_json import serving_figures, training_figures
from ..memory.plan.export import write
from ..memory.plan.goal import FINE_TUNING_BATCH, METHODS, PRETRAINING_BATCH
from ..memory.plan.machine import MOST_CARDS
from ..questions.parameter import decimal
from ..questions.planned import PLANNED_RUN, PLANNED_SERVICE
from . import flags
from .flags import Commands, add_command
from .gguf_file import plan_file


def add(commands: Commands) -> None:
    plan = commands.add_parser("plan", help="plans that reach a goal with the cards at hand, cheapest first")
    kinds = plan.add_subparsers(title="what to plan")
    train = add_command(kinds, "train", "train every weight on so many tokens", _plan_training)
    tune = add_command(kinds, "fine-tune", "the same, or adapters alone, in smaller batches", _plan_training)
    serve = add_command(kinds, "serve", "serve so many users, each with so many tokens", _plan_serving)
    for parser, parameters in ((train, PLANNED_RUN), (tune, PLANNED_RUN), (serve, PLANNED_SERVICE)):
        flags.add_parameters(parser, parameters)
        parser.add_argument("--json", action="store_true", help="print JSON, in bytes, seconds and dollars")
    train.set_defaults(methods=("full",), batch=PRETRAINING_BATCH)
    tune.set_defaults(methods=METHODS, batch=FINE_TUNING_BATCH)


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
    told = "" if arguments.json else training_report(found)
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
    told = "" if arguments.json else serving_report(found)
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
