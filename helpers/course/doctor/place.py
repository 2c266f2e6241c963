"""Where this process lives: in a container or not, over SSH or not, /dev/shm, and the disk that models go to."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/")
KEEPS_ALIVE = ("TMUX", "STY", "ZELLIJ")  # tmux, screen and zellij set them in what they keep alive


@dataclass(frozen=True)
class Place:
    """What a rented machine has otherwise than a laptop; None is what nobody could tell.

    `machine_memory_bytes` and `machine_cores` are what `free` and `nproc --all` show, whatever a container may use.
    `models_folder` is where models are downloaded to; its free bytes are None where it shares the workbook's disk;
    `models_could_be` is a folder on that one.
    `drops`: a lost SSH connection ends what was started here. `wants_model`: WORKBOOK_MODEL names one of the hub.
    """

    container: bool = False
    machine_memory_bytes: int | None = None
    machine_cores: int | None = None
    shm_bytes: int | None = None
    models_folder: str = ""
    models_free_bytes: int | None = None
    models_could_be: str = ""
    wants_model: bool = False
    drops: bool = False


def around(root: Path, environ: Mapping[str, str], machine_memory_bytes: int | None) -> Place:
    """The place of this process, the workbook being in `root`. Never raises."""
    folder = models_folder(environ)
    return Place(
        container=in_container(environ),
        machine_memory_bytes=machine_memory_bytes,
        machine_cores=os.cpu_count(),
        shm_bytes=shm(),
        models_folder=str(folder),
        models_free_bytes=free_elsewhere(folder, root),
        models_could_be=str(root.absolute().parent / "huggingface"),
        wants_model=wants_model(environ.get("WORKBOOK_MODEL", "")),
        drops=drops(environ),
    )


def in_container(environ: Mapping[str, str], system: Path = SYSTEM) -> bool:
    """Whether this is a container of Docker, Podman, Kubernetes, LXC or systemd."""
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    if any((system / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return True
    try:
        groups = (system / "proc/1/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return re.search(r"docker|kubepods|containerd|libpod|/lxc", groups) is not None


def shm(system: Path = SYSTEM) -> int | None:
    """Bytes that /dev/shm may hold in all; None where there is none."""
    try:
        return shutil.disk_usage(system / "dev/shm").total
    except OSError:
        return None


def models_folder(environ: Mapping[str, str]) -> Path:
    """Where Hugging Face's library keeps what it downloads.

    >>> str(models_folder({"HF_HOME": "/data/hf"}))
    '/data/hf/hub'
    """
    if cache := environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    cache_home = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environ.get("HF_HOME") or f"{cache_home}/huggingface").expanduser() / "hub"


def free_elsewhere(folder: Path, root: Path) -> int | None:
    """Free bytes where `folder` is or will be, None when that is the disk of `root` or nobody can tell."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), None)
    try:
        if there is None or there.stat().st_dev == root.stat().st_dev:
            return None
        return shutil.disk_usage(there).free
    except OSError:
        return None


def wants_model(name: str) -> bool:
    """Whether a model of the hub is asked for, owner/name, and not the small one or a folder."""
    return re.fullmatch(r"[^/.~][^/]*/[^/]+", name) is not None and not Path(name).is_dir()


def drops(environ: Mapping[str, str]) -> bool:
    """Whether what is started here ends with its SSH connection: nothing that keeps it alive is around it."""
    return bool(environ.get("SSH_CONNECTION")) and not any(environ.get(name) for name in KEEPS_ALIVE)
