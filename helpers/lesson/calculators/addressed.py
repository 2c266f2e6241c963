"""Calculators by name, their settings read from the text of an address: what the site's pages ask for.

>>> drawn("kv_cache", {"model": "llama-2-7b", "users": "4"}).title
'llama-2-7b, 4 users × 8,192 tokens: 16.00 GiB of KV cache'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError, require_name, require_whole
from .allocation import allocation
from .attention import attention
from .block_map import block_map
from .calculator import CONFIG, Calculator, StepCalculator
from .checkpointing import checkpointing
from .fine_tuning import fine_tuning
from .kv_cache import kv_cache
from .memory import training_memory
from .mesh import mesh
from .numbers import numbers
from .offload import offload
from .planner import planner
from .quantization import quantization
from .roofline import roofline
from .service_planner import service_planner
from .serving_load import serving_load
from .tensor_numbers import tensor_numbers
from .zero import zero

MOST = 10**15  # what a whole number in an address may be; each calculator has narrower limits of its own
LONGEST = 200  # letters of one setting
CHOSEN = Path("your-model", "config.json")  # where a chosen config is kept; a model without a name has its folder's
MOST_BYTES = 2**20  # of a chosen config


@dataclass(frozen=True)
class Offered:
    """A calculator with the words that introduce it: its title, and the question that it answers."""

    make: Callable[..., Calculator]
    title: str
    asks: str


OFFERED = {
    "training_memory": Offered(training_memory, "Training memory", "What does a training step need, and does it fit?"),
    "fine_tuning": Offered(fine_tuning, "Fine-tuning with adapters", "Does LoRA, DoRA or QLoRA fit this card?"),
    "checkpointing": Offered(checkpointing, "Activation checkpointing", "What does each policy keep, and cost?"),
    "zero": Offered(zero, "ZeRO and FSDP", "What is left on each rank, and what does a step send?"),
    "planner": Offered(planner, "The planner", "Which cards and which split train this model at the least cost?"),
    "service_planner": Offered(
        service_planner, "The planner of a service", "Which cards serve these users within so many ms a token?"
    ),
    "mesh": Offered(mesh, "A mesh of GPUs", "How is a model split over many cards, and how long does a step take?"),
    "offload": Offered(offload, "Offloading", "Does the work hide the copies from host or disk?"),
    "quantization": Offered(quantization, "Quantized weights", "How large are the weights in a format, and how fast?"),
    "kv_cache": Offered(kv_cache, "The KV cache", "How many users and tokens fit, and what sets the speed?"),
    "serving_load": Offered(
        serving_load, "A service under load", "Which latency at which load, and where is the limit?"
    ),
    "block_map": Offered(block_map, "Paged KV blocks", "Which slots of the pool are used, step by step?"),
    "allocation": Offered(allocation, "The caching allocator", "Why does a request fail although memory is free?"),
    "attention": Offered(
        attention, "Attention without the matrix", "What does attention keep and move, with it and without?"
    ),
    "roofline": Offered(roofline, "Roofline", "Does bandwidth or arithmetic set this operator's time?"),
    "numbers": Offered(numbers, "A number in fewer bits", "What is stored of a number in each format?"),
    "tensor_numbers": Offered(tensor_numbers, "A tensor in fewer bits", "How much of a tensor is lost in each format?"),
}


@dataclass(frozen=True)
class Drawn:
    """What a page shows for some settings: HTML, the title in words, the controls that matter, the last step if any.

    `settings` are those of the controls that are not where they stand at first, as an address tells them.
    """

    title: str
    html: str
    text: str
    command: str | None
    used: tuple[str, ...]
    last: int | None
    settings: dict[str, str]
    failed: bool


@cache
def calculator(name: str) -> Calculator:
    """The calculator called `name`, where it stands at first; WorkbookError with the nearest name otherwise."""
    return OFFERED[require_name("calculator", name, OFFERED)].make()


def drawn(name: str, address: Mapping[str, str]) -> Drawn:
    """The answer to the settings in `address`; what is wrong with one of them is shown as its answer, not raised.

    WorkbookError for an unknown calculator and for an unknown control.
    """
    of = calculator(name)
    for control in address:
        require_name("control", control, of.start)
    moved: dict[str, Any] = {}
    try:
        moved = {control: chosen(of, control, text) for control, text in address.items()}
        answer = of.answer(**moved)
    except WorkbookError as error:
        return _drawn(of, moved, ("These settings have no answer", of.render_error(error), str(error), None), True)
    return _drawn(of, moved, (answer.title, answer.as_html(), str(answer), answer.command), False)


def _drawn(of: Calculator, moved: Mapping[str, Any], said: tuple[str, str, str, str | None], failed: bool) -> Drawn:
    values = {**of.start, **moved}
    settings = {control: str(value) for control, value in moved.items() if value != of.start[control]}
    return Drawn(*said, _used(of, values), _last(of, values), settings, failed)


def chosen(of: Calculator, control: str, text: str) -> Any:
    """The value that `text` says: one of the control's choices; a whole number where all are; else the text."""
    if len(text) > LONGEST:
        raise WorkbookError(f"{len(text):,} letters for {control}", f"{LONGEST} at most", "name one choice of it")
    choices = of.options[control][1]
    for choice in choices:
        if str(choice) == text:
            return choice
    if not all(isinstance(choice, int) for choice in choices):
        return text
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise WorkbookError(f"{control}={text!r}", "a whole number", f"choose one, as {choices[0]}")
    return require_whole(control, int(text), -MOST, MOST)


def drawn_as_json(name: str, address: str, config: str | None = None) -> str:
    """The same from JSON to JSON: what a page's worker calls. An error has its text under "error".

    `config` is the text of a config.json that a reader chose. It takes the place of the model, as `--model
    ./config.json` does, and the answer calls it so.
    """
    settings = json.loads(address)
    try:
        if config is not None:
            settings[CONFIG] = kept(config)
        answer = asdict(drawn(name, settings))
    except WorkbookError as error:
        answer = {"error": str(error)}
    return json.dumps(answer).replace(str(CHOSEN.absolute()), "./config.json")


def kept(config: str) -> str:
    """Keep the text of a config at CHOSEN, which in a page lies in the memory of its worker; returns the path."""
    if len(config.encode()) > MOST_BYTES:
        what, expected = f"a file of more than {MOST_BYTES // 2**10:,} KiB", "a config.json, which has a few KiB"
        raise WorkbookError(what, expected, "choose the config.json beside the weights")
    CHOSEN.parent.mkdir(exist_ok=True)
    CHOSEN.write_text(config, encoding="utf-8")
    return str(CHOSEN.absolute())


def _used(of: Calculator, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The controls that matter, in their order; a file's path is no setting that an address could carry."""
    try:
        used = of.used(values)
    except WorkbookError:  # it is shown in place of the answer
        used = of.start
    return tuple(control for control in of.start if control in used and control != CONFIG)


def _last(of: Calculator, values: Mapping[str, Any]) -> int | None:
    if not isinstance(of, StepCalculator):
        return None
    try:
        return of.last({control: value for control, value in values.items() if control != "step"})
    except WorkbookError:  # it is shown in place of the answer
        return 1
