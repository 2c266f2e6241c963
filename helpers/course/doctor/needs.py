"""What a chapter needs of a machine, as its notebook says in `metadata.workbook.needs`.

    {"memory_gib": 1, "disk_gib": 0, "gpu": "optional", "packages": ["torch"]}

`memory_gib` is free memory that the notebook's kernel takes at its peak: measured on a CPU, rounded up to half a GiB.
`disk_gib` is what it writes. `gpu` is unused, optional (it runs without one, and uses one that is there) or
required. `packages` are the names that it imports, directly or through helpers. Standard library only: the doctor
reads this where nothing else is installed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...catalog.errors import WorkbookError

GPU_USES = ("unused", "optional", "required")  # the weakest need first
GIB = 2**30
EXAMPLE = '{"memory_gib": 1, "disk_gib": 0, "gpu": "optional", "packages": ["torch"]}'


@dataclass(frozen=True)
class Needs:
    """What one notebook, or several together, need; bytes are whole numbers."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    gpu: str = "unused"
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChapterNeeds:
    """A numbered chapter with its lab. `problem` says why its needs cannot be read, "" when they can."""

    number: str
    title: str
    has_lab: bool
    needs: Needs
    problem: str = ""


def from_metadata(metadata: Mapping[str, object]) -> Needs:
    """The needs in a notebook's metadata; WorkbookError says which key is wrong.

    >>> from_metadata({"workbook": {"needs": json.loads(EXAMPLE)}}).memory_bytes
    1073741824
    """
    own = metadata.get("workbook")
    raw = own.get("needs") if isinstance(own, Mapping) else None
    if not isinstance(raw, Mapping):
        raise _wrong("its metadata.workbook.needs is missing")
    if set(raw) != {"memory_gib", "disk_gib", "gpu", "packages"}:
        raise _wrong(f"needs has the keys {', '.join(sorted(map(str, raw))) or 'none'}")
    packages = raw["packages"]
    for key, least in (("memory_gib", 0.5), ("disk_gib", 0)):
        if type(raw[key]) not in (int, float) or not least <= raw[key] <= 1024:
            raise _wrong(f"needs has {key}={raw[key]!r}, not a number from {least} to 1024")
    if raw["gpu"] not in GPU_USES:
        raise _wrong(f"needs has gpu={raw['gpu']!r}, not one of {', '.join(GPU_USES)}")
    if not isinstance(packages, list) or not all(isinstance(name, str) and name.isidentifier() for name in packages):
        raise _wrong(f"needs has packages={packages!r}, not a list of import names")
    return Needs(round(raw["memory_gib"] * GIB), round(raw["disk_gib"] * GIB), raw["gpu"], tuple(packages))


def states_needs(metadata: Mapping[str, object]) -> bool:
    """Whether there are any, right or wrong; a lab that states none needs what its chapter does."""
    own = metadata.get("workbook")
    return isinstance(own, Mapping) and "needs" in own


def together(needs: Iterable[Needs]) -> Needs:
    """What a machine needs that runs each of them, one at a time: the largest of each, and every package."""
    every = list(needs)
    return Needs(
        max((one.memory_bytes for one in every), default=0),
        max((one.disk_bytes for one in every), default=0),
        max((one.gpu for one in every), key=GPU_USES.index, default=GPU_USES[0]),
        tuple(dict.fromkeys(name for one in every for name in one.packages)),
    )


def chapters(root: Path) -> tuple[ChapterNeeds, ...]:
    """Every chapter in notebooks/ under `root`, with its lab's needs from solutions/; never raises."""
    return tuple(_chapter(path, root / "solutions") for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")))


def _chapter(path: Path, solutions: Path) -> ChapterNeeds:
    number = path.stem.partition("_")[0]
    labs = sorted(solutions.glob(f"{number}_*.ipynb"))
    title = path.stem.partition("_")[2].replace("_", " ")
    try:
        notebook = _load(path)
        title = _title(notebook) or title
        own = [from_metadata(notebook["metadata"])]
        own += [from_metadata(lab["metadata"]) for lab in map(_load, labs) if states_needs(lab["metadata"])]
        return ChapterNeeds(number, title, bool(labs), together(own))
    except WorkbookError as error:
        return ChapterNeeds(number, title, bool(labs), Needs(), error.what)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ChapterNeeds(number, title, bool(labs), Needs(), "the notebook, or its lab, cannot be read")


def _load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _title(notebook: dict) -> str:
    """`Start here` from a first cell that begins `# 00 · Start here`."""
    head = "".join(notebook["cells"][0]["source"]).splitlines()[0]
    return re.sub(r"^#\s*\d*\s*·?\s*", "", head).strip()


def _wrong(what: str) -> WorkbookError:
    return WorkbookError(what, EXAMPLE, "state them in the notebook's metadata (JupyterLab: Advanced Tools)")
