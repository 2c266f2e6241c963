"""A setup of what was said, by the names of parameters; and what has to be said to get a setup."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

from ..catalog import hub
from ..catalog.adapters import BASES, Adapter
from ..catalog.devices import Device, device
from ..catalog.errors import WorkbookError, require_whole
from ..catalog.models import MODELS
from ..catalog.models import model as resolve_model
from ..catalog.serve_setup import ServeSetup
from ..catalog.setup_fields import flag_of
from ..catalog.shape import ModelShape
from ..catalog.shipped import shipped
from ..catalog.split import Split
from ..catalog.train_setup import TrainSetup
from ..memory.fit.ladders import recipe_flags, split_flags
from ..memory.step.refusals import attention_of
from .parameter import Option
from .parameters import ADAPTED, BY_CARD, OPTIMIZER, SPLIT

MOST_MIB = 2**20  # a terabyte
Setup = TypeVar("Setup", TrainSetup, ServeSetup)
Values = Mapping[str, Any]  # by parameter
ADAPTER_FIELDS = {
    "kind": "adapter",
    "rank": "lora_rank",
    "targets": "lora_targets",
    "base": "lora_base",
    "trainer": "trainer",
    "prepared": "prepared",
    "adapter_dtype": "adapter_dtype",
    "dropout": "lora_dropout",
}


class NoCommandError(Exception):
    """What was asked cannot be said in words: a config that is in no file, a device that is not in the catalogue."""


def names_of(kind: type) -> set[str]:
    """The parameters that describe a setup."""
    own = {field.name for field in fields(kind)} - {"adapter", "split"}
    split = {"zero", "ranks", *(one.name for one in (*SPLIT, *ADAPTED))} - {"rank"}
    return own | split if kind is TrainSetup else own


def setup_of(kind: type[Setup], said: Values) -> Setup:
    """The setup that the parameters of TRAINED, SPLIT and ADAPTED, or of SERVED, describe. WorkbookError."""
    own = {field.name for field in fields(kind)} - {"adapter", "split"}
    given = {name: said[name] for name in own if name in said}
    if kind is TrainSetup:
        given |= {"split": split_of(said), "adapter": _adapter_of(said)}
        return run_of(**given)  # type: ignore[return-value] # of the kind that is asked
    return kind(**given)


def split_of(said: Values) -> Split:
    """The split that --zero, --ranks and those of SPLIT describe; --ranks counts those of all dimensions."""
    data, fsdp = require_whole("ranks", said.get("ranks", 1)), said.get("fsdp")
    tensor, pipeline = require_whole("tensor_parallel", said.get("tensor_parallel", 1)), said.get("pipeline", 1)
    inner = tensor * pipeline
    if fsdp is not None and data > 1:
        if data != fsdp * inner:
            what = f"--ranks {data:,} beside {fsdp * inner:,} of --fsdp, --tensor-parallel and --pipeline"
            raise WorkbookError(what, "--ranks counts those of all dimensions", "leave --ranks out")
        data = 1
    if inner > 1 and data > 1 and fsdp is None:
        if data % inner:
            expected = f"a multiple of {inner:,}"
            raise WorkbookError(f"{data:,} ranks", expected, "--ranks counts those of all dimensions")
        data, fsdp = 1, data // inner
    how = {"schedule": said.get("schedule", "1F1B"), "reshard": not said.get("no_reshard")}
    zero = said.get("zero", 0)
    return Split(data, 0 if inner > 1 and zero == 3 else zero, 1 if fsdp is None else fsdp, tensor, pipeline, **how)


def run_of(model: object, adapter: Adapter | None = None, **given: Any) -> TrainSetup:
    """A training run as the commands have it: what is None, or not said, is what people run."""
    shape = resolve_model(model)
    usual = {"optimizer": OPTIMIZER, "attention": attention_of(shape)}
    usual |= {"precision": adapter.usual_precision} if adapter else {}
    said = {name: value for name, value in given.items() if value is not None}
    return TrainSetup(shape, adapter=adapter, **{**usual, **said})  # type: ignore[arg-type] # a descriptor's field


def _adapter_of(said: Values) -> Adapter | None:
    found = {field: said.get(name) for field, name in ADAPTER_FIELDS.items()}
    given: dict[str, Any] = {field: value for field, value in found.items() if value is not None}
    if not given.keys() & {"kind", "rank"}:
        if given:
            what = " and ".join(flag_of(ADAPTER_FIELDS[field]) for field in given)
            raise WorkbookError(f"{what} without adapters", "a kind or a rank of adapters", "add --lora-rank 16")
        return None
    trainer = given.pop("trainer", None)
    given["base"] = given.get("base") or _base_of(resolve_model(said["model"]))
    recipe = {"kind", "rank", "targets", "base"}
    adapter = Adapter(**{field: value for field, value in given.items() if field in recipe})
    adapter = adapter.trained_by(trainer) if trainer is not None else adapter
    return replace(adapter, **{field: value for field, value in given.items() if field not in recipe})


def _base_of(shape: ModelShape) -> str | None:
    """The format of a checkpoint that bitsandbytes quantized, on which adapters are trained as it is: QLoRA."""
    with suppress(WorkbookError):  # a format that is not known here
        return found if (found := shipped(shape)[0]) in BASES else None
    return None


def reserve_bytes(mib: int | str | None, gpu: str | Device | None = None) -> int | None:
    """Bytes of what is kept of a card; None where the card, the engine and the ranks say (`memory.fit.reserves`)."""
    if mib is None:
        return None
    do = f"choose {BY_CARD!r}, or 0 to keep nothing"
    kept = require_whole("reserve", mib, 0, MOST_MIB, unit="MiB", do=do) * 2**20
    card = device(gpu) if gpu else None
    if card and kept > card.capacity_bytes:
        what = f"a reserve of {mib:,} MiB on the {card.title}, which has {card.capacity_bytes // 2**20:,}"
        raise WorkbookError(what, "less than the card has", "leave --reserve out: what a card keeps is known")
    return kept


def within_positions(shape: ModelShape, tokens: int) -> int:
    """`tokens`, or as many as a model with a table of positions has."""
    return min(tokens, shape.max_positions) if shape.learned_positions else tokens


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
    with suppress(WorkbookError):  # of a file's name that reads like a checkpoint's on the hub
        if hub.find(shape.name, MODELS) and resolve_model(shape.name) == shape:
            return shape.name
    with suppress(WorkbookError):  # the file is another one by now
        if os.path.isfile(shape.source) and resolve_model(shape.source) == shape:
            return os.path.abspath(shape.source)
    raise NoCommandError(shape.name)


def gpu_word(card: Device) -> str:
    """The catalogue's name of a card, or of its memory."""
    with suppress(WorkbookError):
        if device(card.name) == card:
            return card.name
    raise NoCommandError(card.name)
