"""Names of models: the Hugging Face hub's that are known, what people type for them, and configs in the hub's cache.

    model("Qwen/Qwen2.5-14B-Instruct")        # what is tuned from a base has the base's shape
    model("Qwen/Qwen2.5-14B-Instruct-AWQ")    # and what is quantized from it is in its format
    model("qwen2.5:14b")                      # without its owner, as Ollama spells it

Nothing is downloaded here.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import WorkbookError

_DATA = Path(__file__).parent / "data" / "hub.json"
_NAME = re.compile(r"[\w.-]+/[\w.:-]+")
_ADDRESS = re.compile(r"^(https?://)?(www\.)?(huggingface\.co|hf\.co)/")
_WITHIN = re.compile(r"^([^/]+/[^/]+)/(tree|blob|resolve|raw|discussions|commits?)(/.*)?$")  # a page of a model's own
_TUNED = ("-instruct", "-chat", "-it", "-pt", "-base", "-hf", "-thinking")  # endings that say what it was trained on
_TUNED_ON = re.compile(r"-(instruct|chat|it|thinking)(-.*)$")
# Owners who publish others' models in other formats, under the same name
_PUBLISH_OTHERS = (
    "unsloth",
    "redhatai",
    "neuralmagic",
    "nvidia",
    "hugging-quants",
    "nousresearch",
    "thebloke",
    "casperhansen",
)
_4_BITS: dict[str, object] = {"bits": 4, "group_size": 128}
_GROUPS = {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": True}
_ROWS = {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True}


def _compressed(weights: Mapping[str, object]) -> dict[str, object]:
    groups = {"group_0": {"targets": ["Linear"], "weights": dict(weights)}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


_NF4: dict[str, object] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}
_NVFP4: dict[str, object] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
# Endings of quantized checkpoints, and what the config.json of such a checkpoint says
_QUANTIZED: dict[str, dict[str, object]] = {
    "gptq-int4": {"quant_method": "gptq", **_4_BITS},
    "gptq-int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "gptq": {"quant_method": "gptq", **_4_BITS},
    "awq": {"quant_method": "awq", **_4_BITS},
    "awq-int4": {"quant_method": "awq", **_4_BITS},
    "fp8": {"quant_method": "fp8"},
    "fp8-dynamic": {"quant_method": "fp8"},
    "fp8-kv": {"quant_method": "fp8"},
    "bnb-4bit": _NF4,
    "nvfp4": _NVFP4,
    "fp4": _NVFP4,
    **dict.fromkeys(("quantized.w4a16", "w4a16"), _compressed(_GROUPS)),
    **dict.fromkeys(("quantized.w8a8", "w8a8", "quantized.w8a16", "w8a16"), _compressed(_ROWS)),
}
# Words of formats that no ending above says exactly: a GGUF file mixes several, others choose them layer by layer
_OTHER_FORMAT = re.compile(
    r"(^|[-_.:])(i?q\d(_\w+)?|gguf|ggml|exl[23]|mlx|\d+-?bits?|\d+bpw|int[1-8]|fp[48]|nf4|awq|gptq|hqq|quip|aqlm|"
    r"bnb|w\d+a\d+|quantized|mxfp[48]|nvfp4|unsloth-bnb-4bit|bitnet|torchao|autoround|qat)(?=$|[-_.:])"
)


@dataclass(frozen=True)
class Found:
    """A known name, and the `quantization_config` that an ending of what was asked stands for, if it has one."""

    name: str
    ending: str = ""

    @property
    def quantized(self) -> Mapping[str, object]:
        """Qwen's own FP8 has a scale for each 128 x 128 values, as its config.json says."""
        blocks = {"weight_block_size": [128, 128]} if self.ending == "fp8" and self.name.startswith("Qwen/") else {}
        return _QUANTIZED.get(self.ending, {}) | blocks

    @property
    def told(self) -> str:
        """The name that is understood as the same model in the same format."""
        return f"{self.name}-{self.ending.upper()}" if self.ending else self.name


def is_hub_name(spec: str) -> bool:
    """Whether `spec` looks like owner/name, and is no path that there is.

    >>> is_hub_name("Qwen/Qwen2.5-14B"), is_hub_name("llama-2-7b"), is_hub_name("./models/mine")
    (True, False, False)
    """
    return bool(_NAME.fullmatch(spec)) and spec[0] not in "./~" and not spec.endswith((".json", ".gguf"))


def cleaned(spec: str) -> str:
    """Without the hub's address, the page of a model that somebody was on, and Ollama's usual tag.

    >>> cleaned("https://huggingface.co/Qwen/Qwen3-8B/tree/main?x=1"), cleaned("llama3.1:latest")
    ('Qwen/Qwen3-8B', 'llama3.1')
    """
    found = _ADDRESS.sub("", spec.strip())
    if found != spec.strip():
        found = _WITHIN.sub(r"\1", found.partition("?")[0].partition("#")[0])
    return found.removesuffix("/").removesuffix(":latest")


@cache
def _data() -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType(json.loads(_DATA.read_text(encoding="utf-8")))


def known() -> Mapping[str, Mapping[str, Any]]:
    """By name: the catalogue's model that it is `like` and the keys `changed`, or its `config`; and its count."""
    return _data()["models"]


def find(spec: str, catalogued: Iterable[str] = ()) -> Found | None:
    """What `spec` is, tuned or not, quantized or not; with its owner, or without; None where it is not known.

    `catalogued` are names that are known besides. WorkbookError for a format that no name says exactly.

    >>> find("qwen3:8b"), find("Qwen/Qwen2.5-7B-Instruct-AWQ")
    (Found(name='Qwen/Qwen3-8B', ending=''), Found(name='Qwen/Qwen2.5-7B-Instruct', ending='awq'))
    """
    owner, _, last = cleaned(spec).lower().rpartition("/")
    last = re.sub(r"[: ]+", "-", last)
    names = _by_key(tuple(catalogued))
    for ending in sorted(_QUANTIZED, key=len, reverse=True):
        if last.endswith(f"-{ending}") and (name := _named(owner, last[: -len(ending) - 1], names)):
            return Found(name, ending)
    name = _named(owner, last, names)
    rest = _OTHER_FORMAT.search(last)
    if rest and (of := name or _named("", last, names)) and not _OTHER_FORMAT.search(of.lower()):
        raise other_format(spec, of, rest.group(2))
    return Found(name) if name else None


def _named(owner: str, last: str, names: Mapping[str, str]) -> str | None:
    """The known name; without an owner or by one who publishes others' models, whoever's it is."""
    anybody = not owner or owner in _PUBLISH_OTHERS
    found = (names.get(_key(one) if anybody else f"{owner}/{one}") for one in _bases(last))
    return next((name for name in found if name), None)


def _bases(last: str) -> Iterator[str]:
    """The name, and without what says on what it was tuned, or in what format of a file it is."""
    plain = _OTHER_FORMAT.sub("", last)
    for name in dict.fromkeys((last, plain)):
        without = (name.removesuffix(end) for end in _TUNED)
        yield from dict.fromkeys((name, *without, _TUNED_ON.sub(r"\2", name), _TUNED_ON.sub("", name)))


def _key(name: str) -> str:
    return re.sub(r"[-_: ]", "", name.lower().removeprefix("meta-"))


@cache
def _by_key(catalogued: tuple[str, ...]) -> Mapping[str, str]:
    """Names by what is left of them without owner, ending and dashes; and whole, in small letters."""
    found = {_key(name): name for name in catalogued} | {name.lower(): name for name in known()}
    for name in known():
        for one in _bases(name.split("/")[1].lower()):
            found.setdefault(_key(one), name)
    return MappingProxyType(found | dict(_data()["nicknames"]))


def cached_config(spec: str) -> Path | None:
    """The newest config.json of `spec` in the hub's cache on this machine; None where there is none."""
    folder = _cache() / f"models--{spec.replace('/', '--')}" / "snapshots"
    found = [path for path in folder.glob("*/config.json") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def unknown(spec: str, catalogued: Iterable[str]) -> WorkbookError:
    """The error for a name that is neither known nor in the cache, with those that are nearest."""
    names = {name.lower(): name for name in (*known(), *catalogued)}
    last = {name.rsplit("/", maxsplit=1)[-1]: whole for name, whole in names.items()}
    wanted = cleaned(spec).lower()
    bare = re.sub(r"[: ]+", "-", wanted.rsplit("/", maxsplit=1)[-1])
    longer = sorted((name for name in last if name.startswith(bare)), key=len)
    near = [*longer, *difflib.get_close_matches(bare, last, n=3, cutoff=0.5)]
    few = [last[name] for name in dict.fromkeys(near)][:5]
    if "/" in wanted:
        owner = wanted.split("/")[0]
        few = few or [whole for name, whole in names.items() if name.startswith(f"{owner}/")][:5]
        load = f"hf download {cleaned(spec)} config.json, and it is found in the hub's cache"
        do = f"{load}; or give its config.json, which lies beside its weights"
        return WorkbookError(f"the hub's model {spec!r} is not known here", ", ".join(few or catalogued), do)
    do = "give its config.json, which lies beside its weights, or a name of the hub as owner/name"
    if alike := [name for name in few if _is_of_generation(bare, name)]:
        do = f"did you mean {alike[0]!r}?"
    return WorkbookError(f"unknown model {spec!r}", ", ".join(few or catalogued), do)


def _is_of_generation(typed: str, name: str) -> bool:
    """Whether the first number of what was typed is the name's: Gemma 4 is no misspelt Gemma 3.

    >>> _is_of_generation("lama3", "llama-3-8b"), _is_of_generation("gemma-4-31b", "gemma-3-1b")
    (True, False)
    """
    first = re.findall(r"\d+", typed)[:1]
    return bool(typed) and first in ([], re.findall(r"\d+", name)[:1])


def other_format(spec: str, name: str, word: str) -> WorkbookError:
    """The error for a word that leaves open in what format each layer is."""
    what, expected = f"{spec} is {name} in a format that {word!r} does not say exactly", "the file, or its model"
    do = f"give the .gguf file or its config.json; or name {name}, and one format for all weights"
    return WorkbookError(what, expected, do)


def _cache() -> Path:
    """HF_HUB_CACHE, or hub/ in HF_HOME, as huggingface_hub has it."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
