"""Names of the Hugging Face hub: those that are known, and configs that lie in its cache on this machine.

    model("Qwen/Qwen2.5-14B-Instruct")        # what is tuned from a base has the base's shape

Nothing is downloaded here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .errors import WorkbookError

_DATA = Path(__file__).parent / "data" / "hub.json"
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TUNED = ("-instruct", "-chat", "-it", "-pt", "-base", "-hf")  # endings that say what a model was trained on
_TUNED_ON = re.compile(r"-(instruct|chat|it)(-.*)$", re.IGNORECASE)
# Endings of checkpoints that are quantized, and the format of `--weights` that each is
_QUANTIZED = {
    "gptq-int4": "gptq-int4",
    "gptq-int8": "gptq-int8",
    "gptq": "gptq-int4",
    "awq": "awq-int4",
    "fp8": "fp8-e4m3",
    "fp8-dynamic": "fp8-e4m3",
    "bnb-4bit": "nf4",
}


def is_hub_name(spec: str) -> bool:
    """Whether `spec` looks like owner/name, and is no path that there is.

    >>> is_hub_name("Qwen/Qwen2.5-14B"), is_hub_name("llama-2-7b"), is_hub_name("./models/mine")
    (True, False, False)
    """
    return bool(_NAME.fullmatch(spec)) and spec[0] not in "./~" and not spec.endswith(".json")


@cache
def known() -> Mapping[str, Mapping[str, Any]]:
    """By name: the catalogue's model that it is `like`, and where it is other the keys `changed` and its count."""
    return MappingProxyType(json.loads(_DATA.read_text(encoding="utf-8"))["models"])


def find(spec: str) -> str | None:
    """The name in `known` that `spec` is, tuned or not; None for another.

    WorkbookError for a quantized checkpoint: its shape is the base's, and `--weights` says its format.
    """
    plain = {name.lower(): name for name in known()}
    wanted = spec.lower()
    for ending, weights in _QUANTIZED.items():
        if wanted.endswith(f"-{ending}"):
            base = spec[: -len(ending) - 1]
            what, expected = f"{spec} is a quantized checkpoint", "a model, and the format of its weights beside it"
            raise WorkbookError(what, expected, f"--model {base} --weights {weights}, in Python weights={weights!r}")
    for name in dict.fromkeys((wanted, *(wanted.removesuffix(end) for end in _TUNED), _TUNED_ON.sub("", wanted))):
        if name in plain:
            return plain[name]
    return None


def cached_config(spec: str) -> Path | None:
    """The newest config.json of `spec` in the hub's cache on this machine; None where there is none."""
    folder = _cache() / f"models--{spec.replace('/', '--')}" / "snapshots"
    found = [path for path in folder.glob("*/config.json") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def unknown(spec: str) -> WorkbookError:
    """The error for a name that is neither known nor in the cache."""
    owner = spec.split("/", maxsplit=1)[0].lower()
    near = [name for name in known() if name.lower().startswith(f"{owner}/")] or list(known())
    do = f"hf download {spec} config.json, and it is found in the hub's cache; or pass the path of its config.json"
    return WorkbookError(f"the hub's model {spec!r} is not known here", ", ".join(near), do)


def _cache() -> Path:
    """HF_HUB_CACHE, or hub/ in HF_HOME, as huggingface_hub has it."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()
