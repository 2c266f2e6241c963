"""This machine as plain data: gathered by small functions that never raise, each of which a test can replace."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import nvidia_smi
from .nvidia_smi import ListedGpu, NvidiaDriver
from .packages import Package, Torch, collect, examined, python_itself, start, torch_of, version_of

SYSTEM = Path("/")


@dataclass(frozen=True)
class SystemMemory:
    """Bytes in all and free for new programs; None where the system does not tell. `limited`: by a container."""

    total_bytes: int | None
    free_bytes: int | None
    limited: bool = False


@dataclass(frozen=True)
class Machine:
    """What the doctor knows; None or "" means unknown.

    The memory is this process's share where a container limits it, `cores` are those that it may run on.
    `environment` is in words, `in_clone` says that there is a clone, `venv_waits` that it has a .venv which this
    Python is not. `gpus` are those that torch can use, `driver` is NVIDIA's.
    """

    system: str
    python: Package
    environment: str
    venv_waits: bool
    in_clone: bool
    cpu: str
    cores: int
    memory_bytes: int | None
    memory_free_bytes: int | None
    memory_limited: bool
    disk_free_bytes: int | None
    packages: tuple[Package, ...]
    torch: Torch | None
    gpus: tuple[ListedGpu, ...]
    driver: NvidiaDriver | None
    visible_devices: str | None

    def package(self, name: str) -> Package:
        """The package by name, as not installed when nobody looked for it."""
        return next((one for one in self.packages if one.name == name), Package(name))


def gather(root: Path | None, names: Collection[str]) -> Machine:
    """This machine, with the packages called `names` imported in processes of their own. About three seconds.

    `root` is the workbook's clone, None where the package was installed without one.
    """
    installed = [name for name in names if version_of(name)]
    imports = start(installed)  # while they run, the rest is asked
    driver, memory = nvidia_smi.ask(), memory_here()
    environment, venv_waits = environment_of(root, os.environ, sys.prefix)
    said = collect(imports, installed)
    torch = torch_of(said.get("torch", {}).get("torch"))
    return Machine(
        system=system_name(),
        python=python_itself(root),
        environment=environment,
        venv_waits=venv_waits,
        in_clone=root is not None,
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=memory.total_bytes,
        memory_free_bytes=memory.free_bytes,
        memory_limited=memory.limited,
        disk_free_bytes=disk_free(root or Path.cwd()),
        packages=examined(root, names, said),
        torch=torch,
        gpus=with_processes(torch.gpus if torch else (), driver),
        driver=driver,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def with_processes(gpus: tuple[ListedGpu, ...], driver: NvidiaDriver | None) -> tuple[ListedGpu, ...]:
    """torch's GPUs with the processes that the driver lists; the two may count the GPUs in another order."""
    holders = {one.uuid.removeprefix("GPU-"): one.processes for one in (driver.gpus if driver else ()) if one.uuid}
    return tuple(replace(gpu, processes=holders.get(gpu.uuid.removeprefix("GPU-"), ())) for gpu in gpus)


def system_name() -> str:
    """`Linux x86_64 (Debian GNU/Linux 12)`."""
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]} {platform.machine()}"
    try:
        detail = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError, AttributeError):
        detail = platform.release()
    return f"{platform.system()} {platform.machine()} ({detail})"


def cpu_name() -> str:
    """The processor as the system calls it, else the architecture."""
    named = re.search(r"(?m)^model name\s*:\s*(.*\S)", _read(SYSTEM / "proc/cpuinfo"))
    return named[1] if named else platform.processor() or platform.machine()


def disk_free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def environment_of(root: Path | None, environ: Mapping[str, str], prefix: str) -> tuple[str, bool]:
    """Which environment this Python belongs to, in words; and whether the clone's own .venv is there, unused."""
    venv = root / ".venv" if root else None
    if venv and _same(Path(prefix), venv):
        return "the workbook's .venv", False
    waits = venv is not None and (venv / "pyvenv.cfg").is_file()
    if "COLAB_RELEASE_TAG" in environ:
        return "Colab", waits
    if _same(Path(prefix), Path(environ.get("CONDA_PREFIX", os.devnull))):
        return f"conda environment {environ.get('CONDA_DEFAULT_ENV', '')}".strip(), waits
    is_venv = prefix != sys.base_prefix
    return (f"the environment in {prefix}" if is_venv else "the system's own Python, in no environment"), waits


def memory_here(system: Path = SYSTEM) -> SystemMemory:
    """The machine's memory, or that of the tightest control group around this process."""
    found = _of_the_machine(system)
    for folder in _control_groups(system):
        limit_bytes = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        if limit_bytes is None or (found.total_bytes is not None and limit_bytes >= found.total_bytes):
            continue  # version 1 writes "no limit" as a number of nineteen digits
        used_bytes = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
        # What was read from files and not used since counts as used, but is given up when memory runs short.
        unused = re.search(r"(?m)^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"))
        free_bytes = max(0, limit_bytes - used_bytes + (int(unused[1]) if unused else 0))
        least = free_bytes if found.free_bytes is None else min(free_bytes, found.free_bytes)
        found = SystemMemory(limit_bytes, least, limited=True)
    return found


def _control_groups(system: Path) -> Iterator[Path]:
    """The folders of the control groups around this process that limit memory, innermost first, of versions 1 and 2."""
    for line in _read(system / "proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and "memory" not in names.split(","):
            continue
        top = system / "sys/fs/cgroup" / ("memory" if names else "")
        inner = top / path.strip("/")
        # Inside a container the path may be the host's; what can be seen is then at the top.
        yield from (folder for folder in (inner, *inner.parents) if folder == inner or folder.is_relative_to(top))


def _of_the_machine(system: Path) -> SystemMemory:
    if system == SYSTEM:
        with contextlib.suppress(Exception):  # missing or broken: Linux tells it without
            import psutil

            found = psutil.virtual_memory()
            return SystemMemory(found.total, found.available)
    sizes = dict(re.findall(r"(?m)^(MemTotal|MemAvailable):\s+(\d+) kB$", _read(system / "proc/meminfo")))
    total, free = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return SystemMemory(int(total) * 1024 if total else None, int(free) * 1024 if free else None)


def _number(*paths: Path) -> int | None:
    texts = (_read(path).strip() for path in paths)
    return next((int(text) for text in texts if text.isdigit()), None)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
