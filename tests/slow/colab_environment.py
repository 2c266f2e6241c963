"""An environment like Colab's in .colab-venv: its Python, its old Jupyter packages, and a stub of google.colab.

It takes 5 GB and some minutes, so it is kept, stamped with what it was made from, as .venv is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from setup_env import machine
from setup_env.pins import pins, read
from setup_env.torch_build import CUDA_BYTES, UV

ROOT = Path(machine.ROOT)
VENV = ROOT / ".colab-venv"
PYTHON, STAMP = VENV / "bin" / "python", VENV / "workbook-stamp"
REQUIREMENTS = "requirements-colab.txt"
NEWEST_FIRST = (13, 12)  # Colab moved from 3.12 to 3.13 in August 2026


def base_python() -> str:
    """Python 3.13 or 3.12 if the machine has one that runs, on PATH or among pyenv's; else this one."""
    found = (path for minor in NEWEST_FIRST for path in _candidates(minor) if machine.version_of(path) == (3, minor))
    return next(found, sys.executable)


def _candidates(minor: int) -> Iterator[str]:
    name = f"python3.{minor}"
    if path := shutil.which(name):
        yield path
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob(f"versions/3.{minor}.*/bin/{name}")))


def colab_python() -> Path:
    """The interpreter of a current .colab-venv, made anew where what it is made from has changed."""
    base = base_python()
    stamp = hashlib.sha256(f"{read(REQUIREMENTS)}\0{base}\0{ROOT}".encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == stamp:
        return PYTHON
    machine.require_space(CUDA_BYTES)
    machine.require([base, "-m", "venv", "--clear", str(VENV)], f"Creating {VENV.name} with {base}")
    _install()
    _add_google_colab()
    STAMP.write_text(stamp)
    return PYTHON


def _install() -> None:
    """The CPU build of torch where there is one for this Python, then the rest; by uv, four times as quick as pip."""
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    uv = [str(PYTHON), "-m", "uv", "pip", "install", "--quiet", "--python", str(PYTHON)]
    torch = "torch==" + pins(read(REQUIREMENTS))["torch"]
    has_uv = machine.run([*pip, UV])[0] == 0
    if machine.run([*pip, f"{torch}+cpu"])[0] and has_uv:
        machine.run([*uv, "--torch-backend=cpu", torch])  # where this fails too, the default build comes below
    rest = ["-r", str(ROOT / REQUIREMENTS)]
    if not has_uv or machine.run([*uv, *rest])[0]:
        machine.require([*pip, *rest], f"Installing {REQUIREMENTS}")


def _add_google_colab() -> None:
    """A package that can be imported and does nothing: code that asks for Colab by its name finds it."""
    (packages,) = (VENV / "lib").glob("python3.*/site-packages")
    (packages / "google" / "colab").mkdir(parents=True)
    for name in ("__init__.py", "colab/__init__.py"):
        (packages / "google" / name).write_text("")
