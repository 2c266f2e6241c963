"""The package installed alone, without a clone: a wheel is built, unpacked, and used from an empty folder."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.house import tree

PLUGIN = "helpers.memory.meter.pytest_plugin"
ESTIMATE = ["estimate", "train", "--model", "llama-2-7b", "--gpu", "h100-80gb"]
TRACE = ["trace", "train", "--model", "gpt2", "--precision", "bf16", "--sequence", "64"]
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
OOM += "of which 1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved "
OOM += "by PyTorch but unallocated.\n"
GUARDED = f"""
import sys

def test_it(request, memory_budget):
    assert request.config.pluginmanager.has_plugin("{PLUGIN}")
    assert "torch" not in sys.modules
"""


def test_the_plugins_entry_has_its_modules_name():
    """pytest registers an entry point under its name, and refuses the same module under a second one."""
    entries = tomllib.loads(tree.text_of(tree.ROOT / "pyproject.toml"))["project"]["entry-points"]["pytest11"]
    assert entries == {PLUGIN: PLUGIN}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of this tree, unpacked: what `pip install` would put into site-packages."""
    source, wheels, site = (tmp_path_factory.mktemp(name) for name in ("source", "wheels", "site"))
    for path in tree.files():
        if path.parts[0] == "helpers" or str(path) in ("pyproject.toml", "README.md", "LICENSE"):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree.ROOT / path, source / path)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([*command, *(["--no-build-isolation"] if has_setuptools() else [])], check=True)
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


def has_setuptools() -> bool:
    """Whether the setuptools that is here can build; else pip fetches one, as it did for the environment."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


def run(site: Path, folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` in `folder`, with the wheel and without this clone."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WORKBOOK_"))}
    env |= {"PYTHONPATH": str(site), **more}
    return subprocess.run([sys.executable, "-m", *words], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_every_data_file_is_in_the_wheel(installed: Path):
    data = [path for path in tree.files() if path.parts[0] == "helpers" and path.suffix != ".py"]
    assert len(data) > 10
    assert [str(path) for path in data if not (installed / path).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (ESTIMATE, "peak"),
        (TRACE, "gradients"),
        (["explain-oom", "train.log"], "79.11 GiB"),
        (["accuracy", "--only", "recorded"], "no GPU has been recorded yet"),
        (["accuracy", "--only", "history"], "history, peak reserved"),
        (["accuracy", "--only", "megatron"], "megatron, peak allocated"),
        (["doctor"], "chapters and labs come with a clone"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_what_needs_no_clone_runs(command: list[str], told: str, installed: Path, tmp_path: Path):
    (tmp_path / "train.log").write_text(OOM)
    done = run(installed, tmp_path, "helpers.cli", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert told in done.stdout


@pytest.mark.slow
def test_what_needs_a_clone_says_so(installed: Path, tmp_path: Path):
    done = run(installed, tmp_path, "helpers.cli", "build", "02")
    assert done.returncode == 2
    assert "no workbook here" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by its entry point", "named in conftest.py", "named on the command line"])
def test_pytest_finds_the_memory_budget_once(way: str, installed: Path, tmp_path: Path):
    (tmp_path / "test_it.py").write_text(GUARDED)
    if way == "named in conftest.py":
        (tmp_path / "conftest.py").write_text(f'pytest_plugins = ["{PLUGIN}"]\n')
    named = ["-p", PLUGIN] if way == "named on the command line" else []
    done = run(installed, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", *named)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
