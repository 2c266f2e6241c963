"""What the system says about its caches, to hold a measurement against. It may say nothing: a sandbox often does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
_MACOS = {"L1": "hw.perflevel0.l1dcachesize", "L2": "hw.perflevel0.l2cachesize"}
_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30}


def reported(device: torch.device) -> dict[str, int]:
    """Bytes by cache level that one core or, on a GPU, one multiprocessor can use; {} where nothing is reported."""
    if device.type == "cuda":
        return _of_gpu(device)
    if sys.platform == "darwin":
        return _of_mac()
    return _of_linux(_LINUX)


def _of_gpu(device: torch.device) -> dict[str, int]:
    properties = torch.cuda.get_device_properties(device)
    named = {"L1": "shared_memory_per_multiprocessor", "L2": "L2_cache_size"}
    sizes = {level: getattr(properties, attribute, 0) for level, attribute in named.items()}
    return {level: size for level, size in sizes.items() if size}


def _of_linux(folder: Path) -> dict[str, int]:
    """From the kernel's description of the first core's data and unified caches."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
            if kind in ("Data", "Unified"):
                sizes[f"L{int(level)}"] = _bytes(size)
        except (OSError, ValueError):
            continue
    return sizes


def _bytes(text: str) -> int:
    """ "32K" is 32,768."""
    return int(text[:-1]) * _SUFFIX[text[-1]] if text[-1:] in _SUFFIX else int(text)


def _of_mac() -> dict[str, int]:
    sizes = {}
    for level, name in _MACOS.items():
        try:
            done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True)
            sizes[level] = int(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    return sizes
