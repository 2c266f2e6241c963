"""The field's engines that train with states off the device: what each holds where, and what the disk's tier needs.

    FSDP2(model, make, host=True)                 # PyTorch's CPUOffloadPolicy
    DeepSpeed(model, make, stage=2, host=True)    # ZeRO-Offload
    DeepSpeed(model, make, disk="/local_nvme")    # ZeRO-Infinity
    bytes_by_place(engine)[Place.HOST]

They are the classes of `techniques.zero`; ours beside them is `HostAdamW`. In bytes for each FP32 parameter of a rank's
shard, with AdamW, between two steps:

    engine          device    host                                         disk
    HostAdamW       4         12: master copy and two moments              0
    FSDP2           0         12: the shard itself and two moments         0
    ZeRO-Offload    4         20: master copy, two moments, two gradients  0
    ZeRO-Infinity   4         4, a gradient, and four buffers of a group   12: master copy and two moments

(of a gradient whose shard has 1 MiB or more, ZeRO-Infinity keeps a copy on the disk as well).

In a backward HostAdamW and FSDP2 hold a gradient as well, 16 together. FSDP2 keeps no second copy of a weight: it
gathers from the host's shard each time. DeepSpeed's stages 1 and 2 keep one gradient, 16 together, and all weights on
the device.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from ...catalog.errors import WorkbookError
from ...memory.meter.places import Place, PlacesMeter

OPS = ("pin_memory", "async_io")  # what DeepSpeed compiles before it can read and write a disk, in this order
HEADERS = (Path("/usr/include/libaio.h"), Path("/usr/local/include/libaio.h"))
INSTALL = {
    "libaio": "apt-get install libaio-dev, or dnf install libaio-devel",
    "a C++ compiler": "apt-get install g++, or dnf install gcc-c++",
    "ninja": "pip install ninja, and start Python with its folder on PATH",
}


class Holds(Protocol):
    """An engine of `techniques.zero`: its tensors by category."""

    def holds(self) -> Mapping[str, Iterable[Tensor]]: ...


def bytes_by_place(engine: Holds) -> dict[Place, int]:
    """What this rank's engine holds now, as a PlacesMeter counts it: what it calls "host" there, files on the disk."""
    meter = PlacesMeter()
    for category, tensors in engine.holds().items():
        meter.adopt(tensors, category, Place.HOST if category == "host" else Place.DEVICE)
    for path in getattr(engine, "files", list)():
        meter.stored(path)
    meter.stop()
    return {place: meter.bytes_in(place) for place in Place}


def require_async_io(package: ModuleType) -> None:
    """Have DeepSpeed's `async_io` compiled, on the first rank and for all; WorkbookError on all if that cannot be.

    It takes one to five minutes, once for a machine.
    """
    problem: list[Any] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            with stderr_of_the_process():
                _build(package)
        except WorkbookError as error:
            problem = [(error.what, error.expected, error.do)]
    if dist.is_initialized():
        dist.broadcast_object_list(problem)
    if problem[0]:
        raise WorkbookError(*problem[0])


def _build(package: ModuleType) -> None:
    builder = package.get_accelerator().create_op_builder("AsyncIOBuilder")
    found = tools()
    if found["a C++ compiler"] and not found["libaio"] and builder.is_compatible(verbose=False):
        found["libaio"] = "elsewhere"
    for name, where in found.items():
        if where is None:
            what = f"DeepSpeed cannot compile async_io, which reads and writes the disk: {name} is missing"
            raise WorkbookError(what, "libaio with its headers, a C++ compiler, and ninja", INSTALL[name])
    os.environ["PATH"] = _path()
    for lock in locks():
        what = f"a build of {lock.parent.name} was interrupted, or is under way: {lock} is there"
        do = f"wait if another process compiles; else delete {lock}: DeepSpeed would wait for it without end"
        raise WorkbookError(what, "no lock in DeepSpeed's folder of compiled operators", do)
    try:
        builder.load(verbose=False)
    except (RuntimeError, ImportError, OSError) as error:
        what = f"DeepSpeed's async_io has not been compiled: {str(error).splitlines()[0]}"
        do = f"delete {build_folder('async_io')} and try again; `ds_report` tells what DeepSpeed finds"
        raise WorkbookError(what, "a build that succeeds", do) from None


def stderr_of_the_process() -> contextlib.AbstractContextManager[Any]:
    """While it is open DeepSpeed finds a file descriptor of stderr, as it wants: a notebook's own stderr has none."""
    return contextlib.redirect_stderr(sys.__stderr__)


def tools() -> dict[str, str | None]:
    """Where on this machine is what a build needs, by the names of INSTALL; None where it is not."""
    include = next((str(path) for path in HEADERS if path.exists()), None)
    compiler, ninja = shutil.which(os.environ.get("CXX", "c++")), shutil.which("ninja", path=_path())
    return {"libaio": include, "a C++ compiler": compiler, "ninja": ninja}


def _path() -> str:
    """PATH, with Python's own folder at its end: a kernel runs without `activate`, and pip puts ninja there."""
    return f"{os.environ.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"


def locks() -> list[Path]:
    """Files that say that a build is under way: PyTorch deletes them at its end, and an interrupted one has none."""
    return [lock for name in OPS if (lock := build_folder(name) / "lock").exists()]


def build_folder(name: str) -> Path:
    """Where PyTorch compiles an operator of this name; TORCH_EXTENSIONS_DIR chooses the folder around it."""
    from torch.utils.cpp_extension import _get_build_directory

    return Path(_get_build_directory(name, verbose=False))
