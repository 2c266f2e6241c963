"""DeepSpeed's `async_io`, which reads and writes its disk: compiled on the machine that uses it, or refused clearly.

    require_async_io(deepspeed)      # on every rank; at once where it has been compiled before

It needs libaio with its headers, a C++ compiler and ninja. DeepSpeed itself would end in pages of compiler output, or
wait without end for the lock of a build that was interrupted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from ...catalog.errors import WorkbookError

OPS = ("pin_memory", "async_io")  # what DeepSpeed compiles before it can read and write a disk, in this order
HEADERS = (Path("/usr/include/libaio.h"), Path("/usr/local/include/libaio.h"))
INSTALL = {
    "libaio": "apt-get install libaio-dev, or dnf install libaio-devel",
    "a C++ compiler": "apt-get install g++, or dnf install gcc-c++",
    "ninja": "pip install ninja, and start Python with its folder on PATH",
}


def require_async_io(package: ModuleType) -> None:
    """Have `async_io` compiled, on the first rank and for all; WorkbookError on all if that cannot be.

    It takes minutes, once for a machine: five on two free cores.
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
