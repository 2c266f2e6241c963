"""Runs that you measured yourself, read from a file: docs/your-measurements.md shows each kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from ...catalog.devices import device
from ...catalog.errors import WorkbookError, require_name
from ...catalog.loaders import loader
from . import engine_runs, own_runs
from .cases import Case, model_config

FORM = "a JSON list of runs, each with a name, device, figures, source, and train, serve or setup (a LoRA step)"
SEE = "docs/your-measurements.md shows some that can be copied"
NEEDED = {"model": (str, Mapping), "attention": str, "micro_batch": int, "sequence": int, "rank": int, "targets": list}
OPTIONAL = {"dtype": str, "base": str, "transformers": str}
CHOICES = {"attention": ("eager", "sdpa"), "dtype": ("fp16", "bf16", "fp32"), "base": ("nf4", "nf4-dq")}
PEAKS = ("allocated", "reserved", "of forward", "of backward", "of optimizer step")
OWN_KINDS = own_runs.SETUPS.keys()
ENGINE_KEYS = dict.fromkeys(("engine", "model", *engine_runs.SERVED, *engine_runs.LAUNCHED))
FIGURES = ("after load", *(f"peak {of}" for of in PEAKS))


def read(path: str | Path) -> tuple[Case, ...]:
    """The cases in a file, checked: `lora.predict` can rebuild each. Raises WorkbookError, which says what is wrong."""
    try:
        found = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as problem:
        raise WorkbookError(f"{str(path)!r} cannot be read as JSON: {problem}", FORM, SEE) from None
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise WorkbookError(f"{str(path)!r} holds no list of objects", FORM, SEE)
    return tuple(_case(one, at) for at, one in enumerate(found, start=1))


def _case(one: dict, at: int) -> Case:
    called = f"step {at} ({one['name']})" if isinstance(one.get("name"), str) else f"step {at}"
    if kinds := OWN_KINDS & one.keys():
        return _own_run(one, called, kinds)
    if "engine" in one:
        return _launch(one, called)
    _known(called, one, {"name": str, "device": str, "setup": dict, "figures": dict, "source": str}, {"unit": str})
    _known(f"the setup of {called}", one["setup"], NEEDED, OPTIONAL)
    for key, allowed in CHOICES.items():
        if key in one["setup"]:
            require_name(f"{key} in {called}", one["setup"][key], allowed)
    _known(f"the figures of {called}", one["figures"], {}, dict.fromkeys(FIGURES, (int, float)))
    device(one["device"])
    model_config(one["setup"]["model"])
    if "transformers" in one["setup"]:
        loader(one["setup"]["transformers"])
    return Case(**{"unit": "MiB", **one, "kind": "lora"})


def _own_run(one: dict, called: str, kinds: set[str]) -> Case:
    """A run by the fields of a TrainSetup or a ServeSetup, which say themselves what is wrong with them."""
    if len(kinds) > 1 or "setup" in one:
        raise WorkbookError(f"{called} is several runs", "one of train, serve and setup", SEE)
    (kind,) = kinds
    needed = {"name": str, "device": str, kind: dict, "source": str}
    numbers = (int, float)
    optional = {"unit": str, "figures": dict, "out_of_memory": bool, "capacity_gib": numbers}
    _known(called, one, needed, optional)
    known = dict.fromkeys(field.name for field in fields(own_runs.SETUPS[kind]))
    for name in one[kind]:
        require_name(f"key of {kind} in {called}:", name, known)
    if "model" not in one[kind]:
        raise WorkbookError(f"{kind} of {called} has no 'model'", ", ".join(known), SEE)
    figures = one.get("figures", {})
    _known(f"the figures of {called}", figures, {}, dict.fromkeys(own_runs.figures_of(kind), numbers))
    device(one["device"])
    own_runs.setup_of(kind, one[kind])
    if "out_of_memory" in one:
        figures = figures | {own_runs.OUT_OF_MEMORY: 1}
    room = {name: one[name] for name in own_runs.ROOM if name in one}
    return Case(one["name"], kind, one["device"], one[kind] | room, figures, one.get("unit", "MiB"), one["source"])


def _launch(one: dict, called: str) -> Case:
    """A start of an engine, as `workbook measured` reads it out of a log."""
    needed = {"name": str, "device": str, "engine": dict, "figures": dict, "source": str}
    _known(called, one, needed, {"unit": str})
    for name in one["engine"]:
        require_name(f"key of engine in {called}:", name, ENGINE_KEYS)
    _known(f"the figures of {called}", one["figures"], {}, dict.fromkeys(engine_runs.FIGURES, (int, float)))
    if one["device"] != engine_runs.NO_CARD:
        device(one["device"])
    size = one.get("unit", "GiB")
    return Case(one["name"], "engine", one["device"], one["engine"], one["figures"], size, one["source"])


def _known(called: str, found: dict, needed: Mapping, optional: Mapping) -> None:
    """All that is needed is there and of its type, and nothing that nobody knows."""
    types = {**needed, **optional}
    missing = [key for key in needed if key not in found]
    if missing:
        raise WorkbookError(f"{called} has no {missing[0]!r}", ", ".join(needed), SEE)
    for key, value in found.items():
        require_name(f"key of {called}:", key, types)
        if (isinstance(value, bool) and types[key] is not bool) or not isinstance(value, types[key]):
            raise WorkbookError(f"{key!r} of {called} is {value!r}", _type_names(types[key]), SEE)
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise WorkbookError(f"{key!r} of {called} is {value!r}", "a whole number from 1 up", SEE)


def _type_names(types: type | tuple[type, ...]) -> str:
    names = {bool: "true or false", str: "a string", int: "a whole number", float: "a number", list: "a list"}
    return " or ".join(names.get(kind, "an object") for kind in (types if isinstance(types, tuple) else (types,)))
