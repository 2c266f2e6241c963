"""The package installed alone, without a clone: a wheel is built, unpacked, and used from an empty folder."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house import tree

NAME = "gpu_memory_workbook"
PLUGIN = f"{NAME}.memory.meter.pytest_plugin"
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
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
THEIRS = """
import helpers

def test_it():
    assert helpers.WHOSE == "theirs"
"""
WITHOUT_TORCH = """
def test_it(memory_budget):
    with memory_budget(mib=64):
        pass
"""
# Where a project may have what it calls helpers, and the test that imports it there.
PLACES = {
    "a package": ("helpers/__init__.py", "test_it.py"),
    "a module": ("helpers.py", "test_it.py"),
    "a package beside the tests": ("tests/helpers/__init__.py", "tests/test_it.py"),
    "a module beside the tests": ("tests/helpers.py", "tests/test_it.py"),
    "a package in src": ("src/helpers/__init__.py", "tests/test_it.py"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree, as far as it is packed."""
    source = tmp_path_factory.mktemp("source")
    for path in tree.files():
        if path.parts[0] == "helpers" or str(path) in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tree.ROOT / path, source / path)
    return source


@pytest.fixture(scope="module")
def installed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its wheel, unpacked: what `pip install` would put into site-packages."""
    wheels, site = (tmp_path_factory.mktemp(name) for name in ("wheels", "site"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([*command, *(["--no-build-isolation"] if has_setuptools() else [])], check=True)
    (wheel,) = wheels.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    return site


@pytest.fixture(scope="module")
def with_pytest(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel beside pytest, and nothing else."""
    site = tmp_path_factory.mktemp("with-pytest")
    shutil.copytree(installed, site, dirs_exist_ok=True)
    for distribution in map(importlib.metadata.distribution, PYTEST):
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), site / file)
    return site


def has_setuptools() -> bool:
    """Whether the setuptools that is here can build; else pip fetches one, as it did for the environment."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


def run(site: Path, folder: Path, *words: str, alone: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` in `folder`, with the wheel and without this clone; `alone`: without any other package."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WORKBOOK_"))}
    env |= {"PYTHONPATH": str(site), **more}
    options = ["-S"] if alone else []
    return subprocess.run([sys.executable, *options, "-m", *words], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.slow
def test_the_wheel_has_one_name_and_every_data_file(installed: Path):
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {NAME}
    data = [path for path in tree.files() if path.parts[0] == "helpers" and path.suffix != ".py"]
    assert len(data) > 10
    assert [str(path) for path in data if not (installed / NAME / path.relative_to("helpers")).is_file()] == []


@pytest.mark.slow
def test_a_build_leaves_no_entry_points_where_pytest_starts(source: Path, installed: Path):
    assert [path.name for path in source.glob("*.egg-info")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (ESTIMATE, "peak"),
        (["plan", "serve", "llama-3-8b", "--users", "20", "--cards", "h100-80gb=2"], "tokens"),
        (["explain-oom", "train.log"], "79.11 GiB"),
        (["number", "0.1"], "0.0999755859"),
        (["cards"], "h100"),
        (["doctor"], "chapters and labs come with a clone"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_the_standard_library_is_enough(command: list[str], told: str, installed: Path, tmp_path: Path):
    (tmp_path / "train.log").write_text(OOM)
    done = run(installed, tmp_path, f"{NAME}.cli", *command, alone=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert told in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "extra"),
    [(TRACE, "[trace]"), (["serve", "--port", "0"], "["), (["watch", "--port", "0"], "pip install nvidia-ml-py")],
)
def test_a_command_that_needs_more_names_the_extra(command: list[str], extra: str, installed: Path, tmp_path: Path):
    done = run(installed, tmp_path, f"{NAME}.cli", *command, alone=True)
    assert done.returncode == 2
    assert extra in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (TRACE, "gradients"),
        (["accuracy", "--only", "recorded"], "no GPU has been recorded yet"),
        (["accuracy", "--only", "history"], "history, peak reserved"),
        (["accuracy", "--only", "megatron"], "megatron, peak allocated"),
    ],
    ids=lambda words: words[-1] if isinstance(words, list) else "",
)
def test_what_needs_torch_and_no_clone_runs(command: list[str], told: str, installed: Path, tmp_path: Path):
    done = run(installed, tmp_path, f"{NAME}.cli", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert told in done.stdout


@pytest.mark.slow
def test_an_error_calls_the_package_by_its_name_there(installed: Path, tmp_path: Path):
    code = f"from {NAME}.catalog import TrainSetup; TrainSetup('llama-2-7b', split=8)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(installed)}, capture_output=True, text=True
    )
    assert f"a Split of {NAME}.catalog" in done.stderr


@pytest.mark.slow
def test_what_needs_a_clone_says_so(installed: Path, tmp_path: Path):
    for folder in (tmp_path, tree.ROOT):  # in a clone, too: its notebooks import another package
        done = run(installed, folder, f"{NAME}.cli", "build", "02")
        assert done.returncode == 2
        assert "run .venv/bin/workbook there" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("way", ["by its entry point", "named in conftest.py", "named on the command line"])
def test_pytest_finds_the_memory_budget_once(way: str, with_pytest: Path, tmp_path: Path):
    (tmp_path / "test_it.py").write_text(GUARDED)
    if way == "named in conftest.py":
        (tmp_path / "conftest.py").write_text(f'pytest_plugins = ["{PLUGIN}"]\n')
    named = ["-p", PLUGIN] if way == "named on the command line" else []
    done = run(with_pytest, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", *named, alone=True)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_without_torch_the_memory_budget_says_so(with_pytest: Path, tmp_path: Path):
    (tmp_path / "test_it.py").write_text(WITHOUT_TORCH)
    done = run(with_pytest, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", alone=True)
    assert "torch" in done.stdout
    assert "[trace]" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_project_keeps_its_own_helpers(place: str, with_pytest: Path, tmp_path: Path):
    theirs, test = (tmp_path / path for path in PLACES[place])
    for path, text in ((theirs, "WHOSE = 'theirs'\n"), (test, THEIRS)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    paths = os.pathsep.join([str(with_pytest), *([str(tmp_path / "src")] if "src" in place else [])])
    done = run(with_pytest, tmp_path, "pytest", "-q", "-p", "no:cacheprovider", alone=True, PYTHONPATH=paths)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_in_the_wheel_all_imports_are_relative():
    """But for two: cells of labs, which are run in a clone, and a function whose globals are another module's."""
    found = [
        f"{path}:{node.lineno}"
        for path in tree.files()
        if path.suffix == ".py" and path.parts[0] == "helpers"
        for node in ast.walk(ast.parse(tree.text_of(tree.ROOT / path)))
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "helpers")
        or (isinstance(node, ast.Import) and any(one.name.split(".")[0] == "helpers" for one in node.names))
    ]
    assert [one.partition(":")[0] for one in found] == ["helpers/lesson/asking.py"]
