"""How much memory and how many cores this process may use: the machine's, or a container's limit if that is less."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/")


@dataclass(frozen=True)
class Memory:
    """Bytes in all and free for new programs; None where the system does not tell.

    `limited`: by a container; `machine_bytes` is then what the machine has all the same.
    """

    total_bytes: int | None = None
    free_bytes: int | None = None
    limited: bool = False
    machine_bytes: int | None = None


def memory(system: Path = SYSTEM) -> Memory:
    """The machine's memory, or the tightest control group's around this process."""
    found = machine = _of_the_machine(system)
    for folder in groups(system, "memory"):
        limit_bytes = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit_bytes is None or (found.total_bytes is not None and limit_bytes >= found.total_bytes):
            continue  # version 1 writes "no limit" as a number of nineteen digits
        used_bytes = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        # What was read from files and not used since counts as used, but is given up when memory runs short.
        free_bytes = max(0, limit_bytes - used_bytes + _inactive_file(folder))
        least = free_bytes if found.free_bytes is None else min(free_bytes, found.free_bytes)
        found = Memory(limit_bytes, least, True, machine.total_bytes)
    return found


def cores(system: Path = SYSTEM) -> int:
    """Cores that this process may use at once, at least 1: its affinity, or the container's share of time."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in groups(system, "cpu"):
        words = _read(folder / "cpu.max") or _read(folder / "cpu.cfs_quota_us") + _read(folder / "cpu.cfs_period_us")
        quota, period = (*words.split(), "", "")[:2]  # "200000 100000": two cores; "max" or "-1": no limit
        if quota.isdigit() and period.isdigit() and int(period):
            found = min(found, max(1, int(quota) // int(period)))
    return found


def groups(system: Path, controller: str) -> Iterator[Path]:
    """The control groups' folders around this process, innermost first, of versions 1 and 2."""
    for line in _read(system / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        top = system / "sys/fs/cgroup" / (controller if names else "")
        inner = top / path.strip("/")
        while True:  # inside a container the path may be the host's; what can be seen is then at the top
            yield inner
            if inner == top or top not in inner.parents:
                break
            inner = inner.parent


def _of_the_machine(system: Path) -> Memory:
    if system == SYSTEM:
        try:
            import psutil

            found = psutil.virtual_memory()
            return Memory(found.total, found.available)
        except Exception:  # missing or broken: Linux tells it without
            pass
    sizes = dict(re.findall(r"(?m)^(MemTotal|MemAvailable):\s+(\d+) kB$", _read(system / "proc/meminfo")))
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return Memory(int(total) * 1024 if total else None, int(free) * 1024 if free else None)


def _inactive_file(folder: Path) -> int:
    match = re.search(r"(?m)^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"))
    return int(match.group(1)) if match else 0


def _number(*paths: Path) -> int | None:
    texts = (_read(path).strip() for path in paths)
    return next((int(text) for text in texts if text.isdigit()), None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
