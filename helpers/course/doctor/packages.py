"""Which packages are here, in which version, within the workbook's range or not, and whether they import.

They are imported in a child process, one after the other: an import that ends Python or hangs is then told, too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .nvidia_smi import ListedGpu

DISTRIBUTION = "gpu-memory-workbook"
IMPORT_TIMEOUT_S = 60  # a first import from a network disk takes half a minute
PROBE = f"import sys; from {__name__} import probe; probe(sys.argv[1:])"

Said = Mapping[str, Any]  # one line of a probe's JSON: name, error, and for torch its facts


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
    gpus: tuple[ListedGpu, ...] = ()
    architectures: tuple[str, ...] = ()
    why_not: str = ""


def start(names: Iterable[str]) -> subprocess.Popen[bytes]:
    """A process that imports `names`, one after the other, with this Python and this package."""
    return subprocess.Popen(
        [sys.executable, "-c", PROBE, *names],
        cwd=Path(__file__).parents[3],
        # Without torch's compiler, which bitsandbytes asks for but an import does not need: a second less.
        env=os.environ | {"TORCHDYNAMO_DISABLE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def collect(child: subprocess.Popen[bytes], names: list[str], timeout_s: float = IMPORT_TIMEOUT_S) -> dict[str, Said]:
    """What the process said of each name; of the first that it left out, how it ended, and the rest "not tried"."""
    try:
        text, _ = child.communicate(timeout=timeout_s)
        ended = f"the import ended Python (exit code {child.returncode})"
    except subprocess.TimeoutExpired:
        child.kill()
        text, _ = child.communicate()
        ended = f"the import did not end within {timeout_s:.0f} s"
    said: dict[str, Said] = {}
    for line in text.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError, LookupError, TypeError):  # what is no answer is passed over
            said |= {(answer := json.loads(line))["name"]: answer}
    unsaid = [name for name in names if name not in said]
    for name in unsaid:
        said[name] = {"error": ended if name == unsaid[0] else f"not tried, because of {unsaid[0]}"}
    return said


def examined(root: Path | None, names: Iterable[str], said: Mapping[str, Said]) -> tuple[Package, ...]:
    """Each package with its version, the workbook's range, and what its import `said`."""
    wanted = ranges(root)
    found = ((name, version_of(name), wanted.get(name, "")) for name in names)
    return tuple(
        Package(name, version, wants, within(version, wants), said.get(name, {}).get("error", ""))
        for name, version, wants in found
    )


def torch_of(facts: Said | None) -> Torch | None:
    if facts is None:
        return None
    gpus = tuple(ListedGpu(**gpu) for gpu in facts["gpus"])
    return Torch(**{**facts, "gpus": gpus, "architectures": tuple(facts["architectures"])})


def version_of(name: str) -> str:
    try:
        return metadata.version(name) or ""
    except Exception:  # a half-removed package has metadata that cannot be read
        return ""


def python_itself(root: Path | None) -> Package:
    """This Python, as a package whose range is `requires-python`; read by hand, since 3.10 has no tomllib."""
    try:
        text = (root / "pyproject.toml").read_text(encoding="utf-8") if root else ""
    except (OSError, ValueError):
        text = ""
    match = re.search(r'(?m)^requires-python = "(>=(\d+)\.(\d+),<(\d+)\.(\d+))"', text)
    if match is None:
        return Package("Python", platform.python_version())
    oldest, too_new = tuple(map(int, match.group(2, 3))), tuple(map(int, match.group(4, 5)))
    return Package("Python", platform.python_version(), match[1], oldest <= sys.version_info[:2] < too_new)


def ranges(root: Path | None) -> dict[str, str]:
    """`{"torch": ">=2.11,<3", ...}` from the clone's pyproject.toml, or what was installed; empty if neither tells."""
    try:
        from packaging.requirements import Requirement

        lines = _stated(root) if root else metadata.requires(DISTRIBUTION) or []
        parsed = [Requirement(line) for line in lines]
        theirs = [one for one in parsed if one.name != DISTRIBUTION]  # an extra may name others of ours
        return {one.name: ",".join(sorted(map(str, one.specifier), reverse=True)) for one in theirs}
    except Exception:  # Python 3.10 has no tomllib, a broken environment no packaging
        return {}


def _stated(root: Path) -> list[str]:
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(line for group in project["optional-dependencies"].values() for line in group)]


def within(version: str, wants: str) -> bool:
    """Whether `version` lies in the range; True where either is unknown. An image's 2.11.0a0+nv counts as 2.11.0."""
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import Version

        return not (version and wants) or SpecifierSet(wants).contains(Version(version).base_version)
    except Exception:  # no packaging, or a version that is none
        return True


def probe(names: list[str]) -> None:
    """In the child: a line of JSON for each name as soon as it is known. What the packages print goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        for name in names:
            answers.write(json.dumps(_attempt(name)) + "\n")
            answers.flush()


def _attempt(name: str) -> dict[str, object]:
    """`{"name", "error"}`, error "" when it imports; for torch also what torch says of this machine."""
    try:
        module = importlib.import_module(name)
        return {"name": name, "error": ""} | ({"torch": _torch_facts(module)} if name == "torch" else {})
    except BaseException as error:  # a package may also call sys.exit while it is imported
        return {"name": name, "error": _in_a_line(error)}


def _torch_facts(torch: Any) -> dict[str, object]:
    available = torch.cuda.is_available()
    return {
        "cuda_build": torch.version.cuda or "",
        "hip_build": getattr(torch.version, "hip", None) or "",
        "threads": torch.get_num_threads(),
        "mps": torch.backends.mps.is_available(),
        "gpus": [_gpu_facts(torch, index) for index in range(torch.cuda.device_count())] if available else [],
        "architectures": torch.cuda.get_arch_list() if available else [],
        "why_not": "" if available else _why_no_gpu(torch),
    }


def _gpu_facts(torch: Any, index: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(index)
    try:
        free_bytes = torch.cuda.mem_get_info(index)[0]
    except Exception:  # asking takes a little memory of the GPU, which may have none left
        free_bytes = None
    return {
        "name": found.name,
        "total_bytes": found.total_memory,
        "free_bytes": free_bytes,
        "capability": f"{found.major}.{found.minor}",
        "uuid": str(getattr(found, "uuid", "")),
    }


def _why_no_gpu(torch: Any) -> str:
    """Why torch finds no GPU, in its own words: what it raises when it is told to start CUDA."""
    try:
        torch.cuda.init()
        return ""
    except Exception as error:
        return _in_a_line(error)


def _in_a_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:160]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
