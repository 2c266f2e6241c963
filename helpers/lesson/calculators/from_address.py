"""Calculators by name, their settings read from the text of an address: what the site's pages ask for.

>>> drawn("kv_cache", {"model": "llama-2-7b", "users": "4"}).title
'llama-2-7b, 4 users × 8,192 tokens: 16.00 GiB of KV cache'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...questions.parameter import CONFIG
from ...questions.question import Question
from .allocation import ALLOCATION
from .attention import ATTENTION
from .block_map import BLOCKS
from .calculator import Calculator
from .can_i_run import CAN_I_RUN
from .checkpointing import CHECKPOINTING
from .fine_tuning import FINE_TUNING
from .kv_cache import KV_CACHE
from .memory import TRAIN
from .mesh import MESH
from .numbers import NUMBER
from .offload import OFFLOAD
from .planner import PLAN_TRAIN
from .preference import GRPO
from .quantization import QUANTIZE
from .roofline import ROOFLINE
from .service_planner import PLAN_SERVE
from .serving_load import LOAD
from .tensor_numbers import TENSOR
from .zero import ZERO_STAGES

MOST = 10**15  # what a whole number in an address may be; each calculator has narrower limits of its own
LONGEST = 200  # letters of one setting
CHOSEN = Path("your-model", "config.json")  # where a chosen config is kept; a model without a name has its folder's
FILE = CHOSEN.with_name("model.gguf")
_PLAIN_NAME = re.compile(r"[\w.+()-]{1,200}\.gguf", re.ASCII)  # which is written in HTML, JSON and a shell as it is
MOST_BYTES = 2**20  # of a chosen config
MOST_HEADER_BYTES = 2**25  # of a GGUF file: metadata with its vocabulary, and the list of tensors


OFFERED: dict[str, Question] = {
    "can_i_run": CAN_I_RUN,
    "training_memory": TRAIN,
    "fine_tuning": FINE_TUNING,
    "reinforcement": GRPO,
    "checkpointing": CHECKPOINTING,
    "zero": ZERO_STAGES,
    "planner": PLAN_TRAIN,
    "service_planner": PLAN_SERVE,
    "mesh": MESH,
    "offload": OFFLOAD,
    "quantization": QUANTIZE,
    "kv_cache": KV_CACHE,
    "serving_load": LOAD,
    "block_map": BLOCKS,
    "allocation": ALLOCATION,
    "attention": ATTENTION,
    "roofline": ROOFLINE,
    "numbers": NUMBER,
    "tensor_numbers": TENSOR,
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
    return Calculator(OFFERED[require_name("calculator", name, OFFERED)], {})


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
        return _drawn(of, moved, (f"No answer: {error.what}", of.render_error(error), str(error), None), True)
    return _drawn(of, moved, (answer.title, answer.as_html(), str(answer), answer.command), False)


def _drawn(of: Calculator, moved: Mapping[str, Any], said: tuple[str, str, str, str | None], failed: bool) -> Drawn:
    values = {**of.start, **moved}
    settings = {control: str(value) for control, value in moved.items() if value != of.start[control]}
    return Drawn(*said, _used(of, values), of.last(values), settings, failed)


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


def drawn_as_json(name: str, address: str, config: Any = None, called: str = "") -> str:
    """The same from JSON to JSON: what a page's worker calls. An error has its text under "error".

    `config` is the text of a config.json that a reader chose, or the first bytes of a GGUF file, as JavaScript has
    them, `called` so. It takes the place of the model, as `--model ./config.json` does, and the answer calls it so.
    """
    settings = json.loads(address)
    file = FILE.with_name(called) if _PLAIN_NAME.fullmatch(called) else FILE
    try:
        if config is not None:
            settings[CONFIG] = kept(config, file)
        answer = asdict(drawn(name, settings))
    except WorkbookError as error:
        answer = {"error": str(error)}
    text = json.dumps(answer)
    for path in (CHOSEN, file):
        text = text.replace(str(path.absolute()), f"./{path.name}")
    return text


def kept(config: Any, file: Path = FILE) -> str:
    """Keep a config at CHOSEN, or a file's head at `file`: in a page, in the memory of its worker; returns the path."""
    CHOSEN.parent.mkdir(exist_ok=True)
    if not isinstance(config, str):
        file.write_bytes(config.to_bytes())
        return str(file.absolute())
    if len(config.encode()) > MOST_BYTES:
        what, expected = f"a file of more than {MOST_BYTES // 2**10:,} KiB", "a config.json, which has a few KiB"
        raise WorkbookError(what, expected, "choose the config.json beside the weights")
    if not config.lstrip("\ufeff \t\r\n").startswith("{"):
        what, expected = "the chosen file is no model", "a config.json, which begins with {, or a file named *.gguf"
        raise WorkbookError(what, expected, "choose one of these: they lie beside a model's weights on the hub")
    CHOSEN.write_text(config, encoding="utf-8")
    return str(CHOSEN.absolute())


def _used(of: Calculator, values: Mapping[str, Any]) -> tuple[str, ...]:
    """The controls that matter, in their order; a file's path is no setting that an address could carry."""
    try:
        used = of.used(values)
    except WorkbookError:  # it is shown in place of the answer
        used = set(of.start)
    return tuple(control for control in of.start if control in used and control != CONFIG)
