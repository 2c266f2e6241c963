"""How releases of Transformers bring weights to a GPU when they quantize them on the way: one by one, or ahead of it.

Weights that are read ahead of the quantizer lie on the GPU whole, in 16 bits, and how many do is a race between
threads. So equal runs reserve different amounts: of fitcheck-llm's QLoRA steps on a T4 equal ones differed by 0.9 to
11.7 % (Qwen2.5-7B: 11,880 and 13,272 MiB).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from .errors import WorkbookError

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\D.*)?")


@dataclass(frozen=True)
class Loader:
    """What releases do from `since` on. With `reads_ahead`, threads read while the main one quantizes."""

    since: tuple[int, int]
    reads_ahead: bool
    title: str
    source: str


LOADERS = (
    Loader(
        (5, 0),
        True,
        "Transformers 5.0 to 5.3",
        "ThreadPoolExecutor in transformers/core_model_loading.py, read at 5.0.0, 5.2.0 and 5.3.0",
    ),
    Loader(
        (5, 4),
        False,
        "Transformers from 5.4 on",
        "has_on_the_fly_quantization in transformers/core_model_loading.py, read at 5.4.0, 5.5.0 and 5.23.0",
    ),
)


def loader(version: str | None = None) -> Loader:
    """The loader of a release, "5.2" or "5.17.0"; of the one that is installed where `version` is None.

    Without Transformers it is the newest. WorkbookError for what is no version, and for one before 5.0, whose loader
    nobody has read here.

    >>> loader("5.3.1").reads_ahead, loader("5.17").reads_ahead
    (True, False)
    """
    found = _VERSION.fullmatch(_installed() if version is None else str(version))
    if found is None:
        raise WorkbookError(f"Transformers {version!r}", "a version", 'pass "5.2" or "5.17.0"')
    number = int(found[1]), int(found[2])
    fitting = [one for one in LOADERS if one.since <= number]
    if not fitting:
        do = "trace it for 5.0 or later: what is allocated does not depend on it"
        raise WorkbookError(f"how Transformers {version} loads a model is not known here", "5.0 or later", do)
    return fitting[-1]


def _installed() -> str:
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return f"{LOADERS[-1].since[0]}.{LOADERS[-1].since[1]}"
