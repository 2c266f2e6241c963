"""The prepared reference, kept in the results folder: the worked lab is run again only where something has changed.

What could change its output is all in the fingerprint: the lab, seed and limits, the sandbox, this machine, every
installed package and every file of `helpers`, which a `git pull` can change without a version. A file that is damaged,
of another version, or not ours is no error: the reference is made anew. One with private checks is never stored: what
they ask must not lie in a folder that is shown to others.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import nbformat
from nbformat import NotebookNode

from .judging.reference import Reference, versions
from .reports.gradebook import store

PACKAGE = Path(__file__).resolve().parents[1]


def load_or_prepare(path: Path, fingerprint: str, prepare: Callable[[], Reference]) -> Reference:
    """The reference stored at `path` with this fingerprint; else the one that `prepare` makes, stored for next time."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["fingerprint"] == fingerprint and stored["sha256"] == _sha256(stored["reference"]):
            return _from_json(stored["reference"])
    reference = prepare()
    if reference.private is not None:
        path.unlink(missing_ok=True)
        return reference
    values = json.loads(json.dumps({one.name: getattr(reference, one.name) for one in fields(Reference)}))
    stored = {"fingerprint": fingerprint, "sha256": _sha256(values), "reference": values}
    store(path, json.dumps(stored) + "\n")
    return reference


def fingerprint(lab: Path, *settings: object) -> str:
    """Equal where `prepare` would give the same reference on this machine.

    `settings` are the seed, the limits, the sandbox, and the file of the private checks.
    """
    told = [lab.stem, lab.read_text("utf-8"), *map(str, settings)]
    packages = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
    machine = [platform.node(), platform.platform(), platform.processor()]
    return _sha256([told, machine, versions(), packages, _files(PACKAGE)])


def _files(folder: Path) -> list[str]:
    """Every file of a package with its content's digest; what Python compiled is left out."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _from_json(values: dict) -> Reference:
    """The reference, its notebooks and tuples made again of JSON's dicts and lists."""
    types = get_type_hints(Reference)
    return Reference(**{one.name: _typed(values[one.name], types[one.name]) for one in fields(Reference)})


def _typed(value: Any, kind: object) -> Any:
    if isinstance(value, dict) and kind in (NotebookNode, NotebookNode | None):
        return nbformat.from_dict(value)
    return tuple(value) if isinstance(value, list) else value
