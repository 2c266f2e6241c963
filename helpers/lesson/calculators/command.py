"""The command that gives a calculator's answer in a terminal, ready to copy."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import fields

from ...catalog import hub
from ...catalog.adapters import Adapter
from ...catalog.devices import DEVICES, Device
from ...catalog.errors import WorkbookError
from ...catalog.models import MODELS
from ...catalog.models import model as resolve_model
from ...catalog.serve_setup import ServeSetup
from ...catalog.setup_fields import flag_of
from ...catalog.shape import ModelShape
from ...catalog.split import Split
from ...catalog.train_setup import TrainSetup
from ...memory.fit.ladders import recipe_flags, split_flags

Option = tuple[object, ...]  # a flag and its value, or a flag alone


class NoCommandError(Exception):
    """What was asked cannot be said in words: a config that is in no file, a device that is not in the catalogue."""


def command(kind: str, options: Iterable[Iterable[object]], family: tuple[str, ...] = ("estimate",)) -> str | None:
    """`workbook estimate KIND` with its options, quoted for a shell; None where one of them cannot be written.

    `family` is () for a command that is not one of `estimate`.

    >>> command("train", setup_options(TrainSetup("gpt2", sequence=512, micro_batches=8)))
    'workbook estimate train --model gpt2 --optimizer adamw-foreach --sequence 512 --accumulate 8'
    """
    try:
        return shlex.join(["workbook", *family, kind, *(str(word) for option in options for word in option)])
    except NoCommandError:
        return None


def setup_options(setup: TrainSetup | ServeSetup, *leave_out: str) -> Iterator[Option]:
    """The model, the optimizer, and each field that is not what its flag has by default, but for what another says."""
    yield "--model", model_word(setup.model)
    usual = {"weights", "skipped"} if isinstance(setup, ServeSetup) and setup.as_shipped else set()
    for field in fields(setup):
        if field.name in usual:
            continue
        value, default = getattr(setup, field.name), None if field.name == "optimizer" else field.default
        if isinstance(value, Adapter):
            yield from adapter_options(value)
        elif isinstance(value, Split):
            yield from split_flags(value)
        elif field.name != "model" and field.name not in leave_out and value != default:
            words = () if value is True else (",".join(value) if isinstance(value, tuple) else value,)
            yield flag_of(field.name), *words


def adapter_options(adapter: Adapter) -> Iterator[Option]:
    """The adapters as flags of `workbook estimate train`; no flag says of what type an unusual base is."""
    usual = Adapter()
    if adapter.dtype != usual.dtype:
        raise NoCommandError(str(adapter))
    yield "--adapter", adapter.kind
    yield "--lora-rank", adapter.rank
    if adapter.targets != usual.targets:
        yield "--lora-targets", ",".join(adapter.targets)
    if adapter.base:
        yield "--lora-base", adapter.base
    yield from recipe_flags(adapter)


def model_word(shape: ModelShape) -> str:
    """A catalogue name, or the path of the config.json that the shape was read from, from the root on."""
    try:
        if hub.find(shape.name, MODELS) and resolve_model(shape.name) == shape:
            return shape.name
        if os.path.isfile(shape.source) and resolve_model(shape.source) == shape:
            return os.path.abspath(shape.source)
    except WorkbookError:  # the file is another one by now
        pass
    raise NoCommandError(shape.name)


def device_options(gpu: Device | None, reserve_bytes: int | None = None) -> Iterator[Option]:
    """The GPU, and the MiB that are kept of it where somebody said how many."""
    if gpu is None:
        return
    if DEVICES.get(gpu.name) != gpu:
        raise NoCommandError(gpu.name)
    yield "--gpu", gpu.name
    if reserve_bytes is not None:
        yield "--reserve", -(-reserve_bytes // 2**20)
