"""A model's shape: by name, of the catalogue or the hub, from a config.json, a config dict, or a live config."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import gguf, hub
from .config import ConfigKeys, without_code
from .errors import WorkbookError
from .families import FAMILIES, SAME_CODE
from .shape import ModelShape
from .shipped import with_left_out
from .towers import decoder_of, towers_of

_DATA = Path(__file__).parent / "data" / "models.json"


@cache
def _entries() -> Mapping[str, dict]:
    return MappingProxyType(json.loads(_DATA.read_text(encoding="utf-8"))["models"])


MODELS: tuple[str, ...] = tuple(_entries())


def model(spec: object) -> ModelShape:
    """The shape of the model that `spec` names or holds.

    `spec` is a ModelShape (returned as it is), a catalogue name (whole, any case), a name of the hub such as
    "Qwen/Qwen2.5-14B-Instruct-AWQ", or what people type for one (`hub`), a path to a config.json, to a folder with one
    or to a GGUF file, a config dict, or any object with `to_dict()`, such as a Transformers config.
    Keys that a config leaves out take Transformers' defaults. A family without a closed form is counted on
    the Transformers model, built without memory, where Transformers is installed. Raises WorkbookError.

    >>> model("llama-2-7b").parameters
    6738415616
    """
    if isinstance(spec, ModelShape):
        return spec
    if isinstance(spec, str) and spec.lower() in MODELS:
        return _catalogued(spec.lower())
    if gguf.is_gguf(spec):
        return gguf.from_gguf(Path(spec).expanduser())
    if isinstance(spec, str) and hub.is_hub_name(hub.cleaned(spec)) and not os.path.exists(spec):
        return _from_hub(spec)
    if isinstance(spec, str | Path):
        return _from_file(spec)
    if isinstance(spec, Mapping):
        return from_config(spec)
    to_dict = getattr(spec, "to_dict", None)
    if callable(to_dict):
        return from_config(to_dict())
    expected = "a catalogue name, a path to a config.json, a config dict or a Transformers config"
    do = "pass model='llama-2-7b', or model.config of a live model"
    raise WorkbookError(f"a model cannot be read from {type(spec).__name__} {spec!r:.60}", expected, do)


def from_config(config: Mapping[str, object], name: str | None = None, source: str = "config") -> ModelShape:
    """The shape that a Transformers config describes; `name` is what messages and tables call it.

    What the config would have Transformers run is no part of it: see `without_code`. Of a multimodal config it is the
    language model, with its towers `beside`.
    """
    config = without_code(config)
    family = config.get("model_type")
    if isinstance(family, str) and family in SAME_CODE:
        config = {**config, "model_type": (family := SAME_CODE[family])}
    label = name or str(config.get("_name_or_path") or "") or f"{family} config"
    if (decoder := decoder_of(config)) is not None:
        text = from_config(decoder, label, source)
        return replace(text, beside=(*text.beside, *towers_of(config, text.hidden)))
    if not isinstance(family, str) or not family:
        what, do = f"{label}: model_type is {family!r}", "pass the config.json that Transformers saved, whole"
        raise WorkbookError(what, f"model_type: a Transformers family, such as {', '.join(FAMILIES)}", do)
    if family in FAMILIES:
        return with_left_out(FAMILIES[family](ConfigKeys(label, dict(config)), source))
    from .by_transformers import count_on_meta  # pulls in torch, so only where there is no closed form

    return count_on_meta(dict(config), label, source)


@cache
def _catalogued(name: str) -> ModelShape:
    entry = _entries()[name]
    return from_config(entry["config"], name, f"{entry['source']}, {entry['date']}")


def _from_hub(spec: str) -> ModelShape:
    """The config that was downloaded, if it was; else the known one."""
    if cached := hub.cached_config(hub.cleaned(spec)):
        return from_config(_read_config(cached), spec, str(cached))
    return _from_name(spec)


def _from_name(spec: str) -> ModelShape:
    """A name of the hub, with its owner or without; WorkbookError with the nearest."""
    if found := hub.find(spec, MODELS):
        return _known(found)
    raise hub.unknown(spec, MODELS)


@cache
def _known(found: hub.Found) -> ModelShape:
    entry: Mapping[str, Any] = hub.known().get(found.name, {"like": found.name})
    source = f"the model's config.json on the Hugging Face hub, {found.name}"
    if found.name in MODELS:
        entry, source = {"like": found.name}, f"{_entries()[found.name]['source']}, {_entries()[found.name]['date']}"
    config = {**_entries()[entry["like"]]["config"], **entry.get("changed", {})} if "like" in entry else entry["config"]
    quantized = {"quantization_config": found.quantized} if found.quantized else {}
    shape = from_config({**config, **quantized}, found.told, source)
    if found.ending and not _is_quantized_whole(shape, found.ending):
        raise hub.other_format(found.told, found.name, found.ending)
    return shape


def _is_quantized_whole(shape: ModelShape, ending: str) -> bool:
    """Whether such a checkpoint has all linear layers in its format, as those of dense models and Qwen's experts have.

    Of latent attention, of Llama 4 and of delta rules publishers leave parts in 16 bits, each others; FP8 of delta
    rules leaves next to nothing.
    """
    attentions = [layer.attention for layer in shape.layers]
    delta = any(one.state for one in attentions) and not ending.startswith("fp8")
    return not (delta or any(one.mla for one in attentions) or shape.family == "llama4_text")


def _from_file(spec: str | Path) -> ModelShape:
    path = Path(spec).expanduser()
    # os.path answers False to a name too long for a path, or with a NUL; Path would raise.
    if os.path.isdir(path):
        path = path / "config.json"
    if not os.path.isfile(path):
        if isinstance(spec, str) and not _looks_like_a_path(spec):
            return _from_name(spec)
        do = "check the path"
        raise WorkbookError(f"there is no file {str(path)!r}", "a config.json or a folder holding one", do)
    config = _read_config(path)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return from_config(config, str(config.get("_name_or_path") or "") or name, str(path))


def _looks_like_a_path(spec: str) -> bool:
    return spec.endswith(".json") or spec.startswith((".", "/", "~")) or "\\" in spec


def _read_config(path: Path) -> dict[str, object]:
    """A config.json; what older checkpoints of ModelOpt ship in is in a file beside it."""
    config, beside = _read_json(path), path.with_name("hf_quant_config.json")
    if "quantization_config" in config or not beside.is_file():
        return config
    said = _read_json(beside).get("quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **said}} if isinstance(said, dict) else config


def _read_json(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as problem:
        what, expected = f"{str(path)!r} cannot be read as JSON: {problem}", "a Transformers config.json"
        raise WorkbookError(what, expected, "download the file again, or open it and repair that place") from None
    if not isinstance(config, dict):
        what, do = f"{str(path)!r} holds a JSON {type(config).__name__}", "pass a model's config.json"
        raise WorkbookError(what, "one object with keys such as model_type and hidden_size", do)
    return config
