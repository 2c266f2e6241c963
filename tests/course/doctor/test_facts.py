"""How the doctor gathers its facts: from tools that hang, folders that are not there and packages that die."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.course.doctor import nvidia_smi
from helpers.course.doctor.machine import environment_of, memory_here, with_processes
from helpers.course.doctor.needs import GPU_USES, Needs, chapters, together
from helpers.course.doctor.nvidia_smi import ListedGpu
from helpers.course.doctor.packages import Package, collect, python_itself, ranges, start, torch_of, within

ROOT = Path(__file__).resolve().parents[3]
GIB, MIB = 2**30, 2**20
GPU_XML = """<gpu id="1"><product_name>Tesla T4</product_name><uuid>GPU-7</uuid>
<fb_memory_usage><total>15360 MiB</total><free>14900 MiB</free></fb_memory_usage>
<processes><process_info><pid>4711</pid><process_name>/usr/bin/python3 -m x</process_name>
<used_memory>2048 MiB</used_memory></process_info>
<process_info><pid>9</pid><process_name> </process_name><used_memory>N/A</used_memory></process_info>
</processes></gpu>"""
VERSIONS = "<driver_version>535.86.05</driver_version><cuda_version>12.2</cuda_version>"
OLD = f"<nvidia_smi_log>{VERSIONS}{GPU_XML}</nvidia_smi_log>"
NEW = OLD.replace("driver_version", "kmd_version").replace(
    "<cuda_version>12.2</cuda_version>",
    "<cuda_version>[Deprecated]</cuda_version><cuda_umd_version>13.3</cuda_umd_version>",
)


def speaking(code: str) -> tuple[str, ...]:
    """A command that stands in for nvidia-smi."""
    return (sys.executable, "-c", code)


def test_both_spellings_of_the_driver_are_read():
    old, new = nvidia_smi.parse(OLD), nvidia_smi.parse(NEW)
    assert (old.version, old.cuda, old.problem) == ("535.86.05", "12.2", "")
    assert (new.version, new.cuda) == ("535.86.05", "13.3")
    processes = ("python3 (process 4711), 2.0 GiB", "a program (process 9)")
    assert old.gpus == (ListedGpu("Tesla T4", 15360 * MIB, 14900 * MIB, "", "GPU-7", processes),)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (speaking("import time; time.sleep(30)"), "did not answer within 0.5 s"),
        (speaking("print('NVIDIA-SMI 550 | garbage')"), "printed something else"),
        (speaking("print('<nvidia_smi_log><gpu>')"), "printed something else"),
        (speaking("import sys; sys.stdout.buffer.write(bytes(range(128, 255)))"), "printed something else"),
        (speaking("print('<nvidia_smi_log></nvidia_smi_log>')"), "lists no GPU"),
        (speaking("print('Driver/library version mismatch'); exit(18)"), "failed: Driver/library version mismatch"),
        ((os.devnull,), "does not start"),
    ],
    ids=["hangs", "no xml", "cut short", "no text", "no gpu", "fails", "not executable"],
)
def test_an_nvidia_smi_that_misbehaves_is_a_problem_told(command, problem):
    driver = nvidia_smi.ask(command, timeout_s=0.5 if "sleep" in command[-1] else 10)
    assert problem in driver.problem
    assert driver.gpus == ()


def test_without_nvidia_smi_there_is_no_driver():
    assert nvidia_smi.ask(("nvidia-smi-that-nobody-has",)) is None


@pytest.mark.parametrize(
    ("xml", "told"),
    [
        ("<mig_mode><current_mig>Disabled</current_mig></mig_mode><mig_devices>None</mig_devices>", (False, 0, "")),
        (
            "<mig_mode><current_mig>Enabled</current_mig></mig_mode>"
            "<mig_devices><mig_device><index>0</index></mig_device><mig_device/></mig_devices>",
            (True, 2, ""),
        ),
        ("<compute_mode>Prohibited</compute_mode>", (False, 0, "Prohibited")),
    ],
)
def test_how_a_card_is_set_up_is_read(xml, told):
    (gpu,) = nvidia_smi.parse(f"<nvidia_smi_log><gpu>{xml}</gpu></nvidia_smi_log>").gpus
    assert (gpu.mig, gpu.slices, gpu.compute_mode) == told


def test_processes_find_their_gpu_by_its_uuid_not_by_its_number():
    driver = nvidia_smi.NvidiaDriver(
        gpus=(ListedGpu("a", uuid="GPU-1", processes=("p",)), ListedGpu("b", uuid="GPU-2"))
    )
    seen = with_processes((ListedGpu("b", uuid="2"), ListedGpu("a", uuid="1"), ListedGpu("c")), driver)
    assert [gpu.processes for gpu in seen] == [(), ("p",), ()]
    assert with_processes((ListedGpu("a"),), None) == (ListedGpu("a"),)


def system(folder: Path, files: dict[str, object]) -> Path:
    """A root folder with these files, and 8 GiB of memory of which 6 are free."""
    meminfo = f"MemTotal: {8 * MIB} kB\nMemFree: 1 kB\nMemAvailable: {6 * MIB} kB\n"
    for name, text in ({"proc/meminfo": meminfo} | files).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(str(text))
    return folder


V2 = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": 2 * GIB, "sys/fs/cgroup/a/b/memory.max": "max"}
V1 = {"proc/self/cgroup": "4:memory:/of/the/host\n1:cpu,cpuacct:/\n"}
TOP = "sys/fs/cgroup/memory/memory"
MEMORY = [
    ({}, (8, 6, False)),
    (V2 | {"sys/fs/cgroup/a/memory.current": GIB}, (2, 1, True)),
    (V2 | {"sys/fs/cgroup/a/memory.current": GIB, "sys/fs/cgroup/a/memory.stat": f"inactive_file {GIB}"}, (2, 2, True)),
    (V2 | {"sys/fs/cgroup/a/memory.current": 3 * GIB}, (2, 0, True)),
    (V2 | {"sys/fs/cgroup/a/b/memory.max": GIB}, (1, 1, True)),
    (V2 | {"sys/fs/cgroup/a/b/memory.max": 4 * GIB}, (2, 2, True)),
    (V1 | {f"{TOP}.limit_in_bytes": 2**63 - 4096}, (8, 6, False)),
    (V1 | {f"{TOP}.limit_in_bytes": 4 * GIB, f"{TOP}.usage_in_bytes": GIB}, (4, 3, True)),
    ({"proc/self/cgroup": "garbage\n::::\n"}, (8, 6, False)),
    ({"proc/meminfo": "what?"}, (None, None, False)),
]


@pytest.mark.parametrize(("files", "expected"), MEMORY, ids=range(len(MEMORY)))
def test_a_containers_limit_counts(files, expected, tmp_path):
    found = memory_here(system(tmp_path, files))
    in_gib = (size if size is None else size / GIB for size in (found.total_bytes, found.free_bytes))
    assert (*in_gib, found.limited) == expected


IMPORTS = {
    "loud": "import os; print('{not json}'); os.write(1, b'from C')",
    "leaves": "raise SystemExit(0)",
    "fails": "raise ImportError('libX.so\\nsecond line')",
    "dies": "import os; os._exit(11)",
    "sleeps": "import time; time.sleep(60)",
}


@pytest.fixture
def fake_packages(tmp_path, monkeypatch):
    for name, code in IMPORTS.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def errors(names: list[str], timeout_s: float = 20) -> dict[str, str]:
    return {name: said["error"] for name, said in collect(start(names), names, timeout_s).items()}


@pytest.mark.usefixtures("fake_packages")
def test_imports_that_misbehave_cost_only_their_own_line():
    assert errors(["loud", "leaves", "fails", "dies", "json"]) == {
        "loud": "",
        "leaves": "SystemExit: 0",
        "fails": "ImportError: libX.so",
        "dies": "the import ended Python (exit code 11)",
        "json": "not tried, because of dies",
    }
    assert errors(["json", "sleeps"], 6) == {"json": "", "sleeps": "the import did not end within 6 s"}
    assert errors([]) == {}


def test_what_is_no_answer_is_passed_over():
    code = 'print("what?"); print("[1]"); print("3"); print(\'{"name": "x", "error": ""}\')'
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert collect(child, ["x"], 20) == {"x": {"name": "x", "error": ""}}


def test_what_torch_says_becomes_facts():
    gpu = {"name": "T4", "total_bytes": 1, "free_bytes": None, "capability": "7.5", "uuid": "7"}
    facts = {"cuda_build": "12.8", "hip_build": "", "threads": 2, "mps": False, "why_not": ""}
    torch = torch_of(facts | {"gpus": [gpu], "architectures": ["sm_75"]})
    assert (torch.gpus, torch.architectures) == ((ListedGpu("T4", 1, None, "7.5", "7"),), ("sm_75",))
    assert torch_of(None) is None


@pytest.mark.parametrize(
    ("version", "wants", "inside"),
    [
        ("2.13.0+cpu", ">=2.11,<3", True),
        ("2.11.0a0+git.nv25", ">=2.11,<3", True),
        ("2.10.1", ">=2.11,<3", False),
        ("7.7.1", ">=7.7,<9", True),
        ("3.14.0", ">=3.11,<3.14", False),
        ("", ">=2", True),
        ("1.0", "", True),
        ("of my own", ">=2", True),
    ],
)
def test_versions_and_ranges(version, wants, inside):
    assert within(version, wants) is inside


def test_python_too_is_held_against_the_range(tmp_path, monkeypatch):
    assert python_itself(ROOT) == Package("Python", platform.python_version(), ">=3.11,<3.15")
    for version, inside in (((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)):
        monkeypatch.setattr(sys, "version_info", (*version, 2))
        assert python_itself(ROOT).in_range is inside
    assert python_itself(tmp_path).in_range, "unknown is not wrong"


def test_the_ranges_are_those_of_pyproject(tmp_path):
    found = ranges(ROOT)
    assert found["ipywidgets"] == ">=7.7,<9", "what Colab has must stay inside"
    assert set(found) >= {"torch", "transformers", "jupyterlab", "nbval", "bitsandbytes"}
    assert ranges(None)["torch"] == found["torch"], "without a clone, what was installed tells"
    assert ranges(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text("not toml")
    assert ranges(tmp_path) == {}


def test_which_environment_this_is(tmp_path):
    venv, conda = tmp_path / ".venv", tmp_path / "conda"
    for folder in (venv, conda):
        folder.mkdir()
    (venv / "pyvenv.cfg").touch()
    assert environment_of(tmp_path, {}, str(venv)) == ("the workbook's .venv", False)
    environ = {"CONDA_PREFIX": str(conda), "CONDA_DEFAULT_ENV": "mine"}
    assert environment_of(tmp_path, environ, str(conda)) == ("conda environment mine", True)
    assert environment_of(conda, {"COLAB_RELEASE_TAG": "1"}, sys.base_prefix) == ("Colab", False)
    assert environment_of(None, {}, str(venv)) == (f"the environment in {venv}", False)
    assert environment_of(conda, {}, sys.base_prefix)[0] == "the system's own Python, in no environment"


def chapter_file(path: Path, needs: object, title: str = "# 07 · Quick ones") -> None:
    path.parent.mkdir(exist_ok=True)
    metadata = {} if needs is None else {"workbook": {"needs": needs}}
    path.write_text(json.dumps({"metadata": metadata, "cells": [{"source": [title, "\n", "text"]}]}))


def test_chapters_and_their_labs_are_read_and_what_is_broken_is_told(tmp_path):
    good = {"memory_gib": 1.5, "disk_gib": 0, "gpu": "unused", "packages": ["torch"]}
    chapter_file(tmp_path / "notebooks/07_quick_ones.ipynb", good)
    chapter_file(tmp_path / "solutions/07_quick_ones.ipynb", good | {"memory_gib": 2, "packages": ["peft"]})
    chapter_file(tmp_path / "notebooks/08_silent.ipynb", None, "no title")
    chapter_file(tmp_path / "notebooks/09_lab_silent.ipynb", good)
    chapter_file(tmp_path / "solutions/09_lab_silent.ipynb", None)
    for number, text in enumerate(("{", "", "[]", '{"cells": 3}', '{"metadata": {}, "cells": []}', "\ufeff{}"), 10):
        (tmp_path / f"notebooks/{number}_broken.ipynb").write_text(text, encoding="utf-8")
    seven, eight, nine, *broken = chapters(tmp_path)
    assert (seven.title, seven.has_lab, seven.problem) == ("Quick ones", True, "")
    assert seven.needs == Needs(2 * GIB, 0, "unused", ("torch", "peft"))
    assert (eight.title, eight.problem) == ("no title", "its metadata.workbook.needs is missing")
    assert nine.needs.packages == ("torch",)
    assert len(broken) == 6
    assert all("cannot be read" in one.problem for one in broken)


def test_needs_together_are_the_largest_of_each():
    assert together([]) == Needs()
    uses = [Needs(gpu=gpu) for gpu in GPU_USES]
    assert together(reversed(uses)).gpu == "required"
    assert together(uses[:2]).gpu == "optional"
