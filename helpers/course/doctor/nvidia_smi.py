"""What NVIDIA's driver says, whatever torch thinks of it: one call of `nvidia-smi -q -x`, read with mistrust.

`nvidia-smi` comes with every driver; its Python twin (nvidia-ml-py) is an optional package, and the doctor must
also see a GPU where it is missing.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from xml.etree import ElementTree

TIMEOUT_S = 10
COMMAND = ("nvidia-smi", "-q", "-x")
PROHIBITED = "Prohibited"  # the compute mode in which nothing may compute
MIB = 2**20


@dataclass(frozen=True)
class ListedGpu:
    """A GPU; what nobody told is None or "".

    `processes` are those that hold its memory, in words. `mig`: it is divided into `slices`, which may be none yet.
    """

    name: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    capability: str = ""
    uuid: str = ""
    processes: tuple[str, ...] = ()
    mig: bool = False
    slices: int = 0
    compute_mode: str = ""


@dataclass(frozen=True)
class NvidiaDriver:
    """NVIDIA's driver and the GPUs it lists; `cuda` is the newest CUDA it supports. `problem`: "" when it answers."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[ListedGpu, ...] = ()
    problem: str = ""


def ask(command: tuple[str, ...] = COMMAND, timeout_s: float = TIMEOUT_S) -> NvidiaDriver | None:
    """The driver, None where there is no nvidia-smi. Never raises: what went wrong is `problem`."""
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s)
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        return NvidiaDriver(problem=f"nvidia-smi did not answer within {timeout_s:g} s")
    except OSError as error:
        return NvidiaDriver(problem=f"nvidia-smi does not start: {error.strerror or error}")
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        said = (text + done.stderr.decode("utf-8", "replace")).strip().splitlines() or ["no reason given"]
        return NvidiaDriver(problem=f"nvidia-smi failed: {said[0].strip()[:120]}")
    return parse(text)


def parse(text: str) -> NvidiaDriver:
    """The driver from nvidia-smi's XML.

    Drivers from 610 on call the driver's version KMD and CUDA's UMD; both spellings are read.
    """
    try:
        log = ElementTree.fromstring(text.strip())
    except ElementTree.ParseError:
        return NvidiaDriver(problem="nvidia-smi printed something else than it is asked for")
    version = _first(log, r"\d[\d.]*", "driver_version", "kmd_version")
    cuda = _first(log, r"\d+\.\d+", "cuda_version", "cuda_umd_version")
    gpus = tuple(_gpu(found) for found in log.findall("gpu"))
    return NvidiaDriver(version, cuda, gpus, "" if gpus else "nvidia-smi lists no GPU")


def _gpu(found: ElementTree.Element) -> ListedGpu:
    return ListedGpu(
        name=_text(found, "product_name") or "NVIDIA GPU",
        total_bytes=_size(found, "fb_memory_usage/total"),
        free_bytes=_size(found, "fb_memory_usage/free"),
        uuid=_text(found, "uuid"),
        processes=tuple(_process(one) for one in found.findall("processes/process_info")),
        mig=_text(found, "mig_mode/current_mig") == "Enabled",
        slices=len(found.findall("mig_devices/mig_device")),
        compute_mode=_text(found, "compute_mode"),
    )


def _process(found: ElementTree.Element) -> str:
    """`python (process 4711), 3.2 GiB`; the size is left out where the driver does not tell it."""
    path = _text(found, "process_name").replace("\\", "/").split()
    used_bytes = _size(found, "used_memory")
    size = f", {used_bytes / 2**30:.1f} GiB" if used_bytes else ""
    name = path[0].rpartition("/")[2] if path else "a program"
    return f"{name} (process {_text(found, 'pid') or '?'}){size}"


def _size(found: ElementTree.Element, path: str) -> int | None:
    """Bytes in `15360 MiB`, None in `N/A`."""
    match = re.match(r"(\d+) MiB", _text(found, path))
    return int(match[1]) * MIB if match else None


def _text(found: ElementTree.Element, path: str) -> str:
    return (found.findtext(path) or "").strip()


def _first(log: ElementTree.Element, pattern: str, *tags: str) -> str:
    found = (re.match(pattern, _text(log, tag)) for tag in tags)
    return next((match.group() for match in found if match), "")
