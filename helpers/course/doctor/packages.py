"""Which packages are here, in which version, within the workbook's range or not, and whether they import."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from helpers.course.doctor.nvidia_smi import Gpu

IMPORT_TIMEOUT_S = 60  # a first import from a network disk takes half a minute
WITH_TORCH = ("torch", "bitsandbytes")  # share one process, so that torch is loaded once


@dataclass(frozen=True)
class Package:
    """A package: `version` "" where it is not installed, `wants` the workbook's range, `error` of its import."""

    name: str
    version: str = ""
    wants: str = ""
    in_range: bool = True
    error: str = ""


@dataclass(frozen=True)
class Torch:
    """What an imported torch says: the CUDA or ROCm that it was built for ("" for neither), and what it can use."""

    cuda_build: str = ""
    hip_build: str = ""
    threads: int = 1
    mps: bool = False
    gpus: tuple[Gpu, ...] = ()
    architectures: tuple[str, ...] = ()
    why_not: str = ""


class Probes:
    """Imports in child processes, begun when this is made and collected by `answers`."""

    def __init__(self, root: Path, names: Iterable[str], timeout_s: float = IMPORT_TIMEOUT_S) -> None:
        self.wanted = ranges(root)
        self.versions = {name: version_of(name) for name in names}
        present = [name for name, version in self.versions.items() if version]
        self.groups = [[n for n in WITH_TORCH if n in present], [n for n in present if n not in WITH_TORCH]]
        self.children = [start(group) for group in self.groups]
        self.timeout_s = timeout_s

    def answers(self) -> tuple[tuple[Package, ...], Torch | None]:
        """Every package, and torch's facts where it imports."""
        said: dict[str, Mapping] = {}
        deadline = time.monotonic() + self.timeout_s
        for group, child in zip(self.groups, self.children, strict=True):
            said |= collect(child, group, max(0.1, deadline - time.monotonic()))
        packages = tuple(self._package(name, said.get(name, {}).get("error", "")) for name in self.versions)
        return packages, torch_of(said.get("torch", {}).get("torch"))

    def _package(self, name: str, error: str) -> Package:
        version, wants = self.versions[name], self.wanted.get(name, "")
        return Package(name, version, wants, within(version, wants), error)


def start(names: list[str]) -> subprocess.Popen | None:
    """A process that imports `names`, one after the other, with this Python and this package."""
    if not names:
        return None
    command = [sys.executable, "-m", "helpers.course.doctor.probe", *names]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    # Without torch's compiler, which bitsandbytes asks for but an import does not need: a second less.
    environ = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    return subprocess.Popen(command, cwd=Path(__file__).parents[3], env=environ, **quiet)


def collect(child: subprocess.Popen | None, names: list[str], timeout_s: float) -> dict[str, Mapping]:
    """What the process said of each name; for the first that it left out, how it ended, and the rest "not tried"."""
    if child is None:
        return {}
    try:
        text, _ = child.communicate(timeout=timeout_s)
        ended = f"the import ended Python (exit code {child.returncode})"
    except subprocess.TimeoutExpired:
        child.kill()
        text, _ = child.communicate()
        ended = f"the import did not end within {timeout_s:.0f} s"
    said = {}
    for line in text.decode("utf-8", "replace").splitlines():
        try:
            said |= {(answer := json.loads(line))["name"]: answer}
        except (ValueError, LookupError, TypeError):
            continue
    unsaid = [name for name in names if name not in said]
    for name in unsaid:
        said[name] = {"error": ended if name == unsaid[0] else f"not tried, because of {unsaid[0]}"}
    return said


def torch_of(facts: Mapping | None) -> Torch | None:
    if facts is None:
        return None
    gpus = tuple(Gpu(**gpu) for gpu in facts["gpus"])
    return Torch(**{**facts, "gpus": gpus, "architectures": tuple(facts["architectures"])})


def version_of(name: str) -> str:
    try:
        return metadata.version(name) or ""
    except Exception:  # a half-removed package has metadata that cannot be read
        return ""


def python_itself(root: Path) -> Package:
    """This Python, as a package whose range is `requires-python`; read by hand, since 3.10 has no tomllib."""
    try:
        text = (root / "pyproject.toml").read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    match = re.search(r'(?m)^requires-python = "(>=(\d+)\.(\d+),<(\d+)\.(\d+))"', text)
    if match is None:
        return Package("Python", platform.python_version())
    oldest, too_new = tuple(map(int, match.group(2, 3))), tuple(map(int, match.group(4, 5)))
    return Package("Python", platform.python_version(), match[1], oldest <= sys.version_info[:2] < too_new)


def ranges(root: Path) -> dict[str, str]:
    """`{"torch": ">=2.11,<3", ...}` from pyproject.toml; empty where it cannot be read."""
    try:
        import tomllib

        from packaging.requirements import Requirement

        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = [
            *project["dependencies"],
            *(line for group in project["optional-dependencies"].values() for line in group),
        ]
        parsed = [Requirement(line) for line in lines]
        return {one.name: ",".join(sorted(map(str, one.specifier), reverse=True)) for one in parsed}
    except Exception:  # Python 3.10 has no tomllib, a broken environment no packaging
        return {}


def within(version: str, wants: str) -> bool:
    """Whether `version` lies in the range; True where either is unknown. An image's 2.11.0a0+nv counts as 2.11.0."""
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version

        return not (version and wants) or SpecifierSet(wants).contains(Version(version).base_version)
    except Exception:  # no packaging, or a version that is none
        return True
