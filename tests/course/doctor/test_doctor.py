"""`workbook doctor` on machines that nobody here has: each fault is named, with the one thing to do about it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from helpers.cli import main
from helpers.course.build import clean
from helpers.course.doctor import doctor, examine, report
from helpers.course.doctor import machine as machine_room
from helpers.course.doctor.needs import ChapterNeeds, Needs
from helpers.course.doctor.nvidia_smi import ListedGpu
from helpers.course.doctor.packages import Package, Torch
from helpers.course.doctor.verdicts import has_code_for
from helpers.course.release import released
from tests.course.doctor.machines import CHAPTERS, CPU_BUILD, FAULTS, FINE, GIB, GOOD, H100, LAPTOP, MIG_SLICE, PACKAGES
from tests.course.example_lab import example_lab


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_the_first_to_fix_and_stops_what_it_must(name):
    machine, what, do, stopped = FAULTS[name]
    judged, fixes = examine(machine, CHAPTERS)
    assert what in fixes[0].what
    assert do in fixes[0].do
    assert [chapter.number for chapter, problems in judged if problems] == stopped
    printed = report.text(machine, judged, fixes)
    assert fixes[0].do in printed
    assert printed.count("✗ 0") == len(stopped)
    assert len(printed.splitlines()) <= 40


@pytest.mark.parametrize("name", FINE)
def test_nothing_to_fix(name):
    judged, fixes = examine(FINE[name], CHAPTERS)
    assert fixes == ()
    assert not any(problems for _, problems in judged)
    assert "Nothing to fix." in report.text(FINE[name], judged, fixes)


def test_a_chapter_that_requires_a_gpu():
    chapter = ChapterNeeds("16", "Kernels", False, Needs(GIB, 0, "required", ("torch",)))
    v100 = replace(GOOD, gpus=(replace(H100, capability="7.0"),))
    stopped = {
        name: bool(examine(m, (chapter,))[0][0][1]) for name, m in (("no", LAPTOP), ("old", v100), ("yes", GOOD))
    }
    assert stopped == {"no": True, "old": True, "yes": False}


def test_the_worst_comes_first_and_one_remedy_is_told_once():
    broken = tuple(Package(one.name) for one in PACKAGES)
    machine = replace(LAPTOP, packages=broken, torch=None, venv_waits=True, environment="conda", memory_free_bytes=GIB)
    _, fixes = examine(machine, CHAPTERS)
    assert [fix.what for fix in fixes] == [
        "not installed: torch, transformers; not installed: jupyterlab",
        "4 GiB of memory needed, 1 GiB free",
    ]


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ("8.9", ["sm_80", "sm_90"], True),
        ("9.0", ["sm_80", "sm_90a"], True),
        ("8.0", ["sm_86"], False),
        ("7.0", ["sm_75", "sm_120"], False),
        ("12.0", ["sm_90", "sm_120"], True),
        ("12.0", ["sm_90", "compute_90"], True),
        ("10.0", ["sm_90"], False),
        ("7.0", ["compute_90"], False),
        ("", ["sm_90"], True),
        ("7.0", [], True),
        ("7.0", ["gfx942"], True),
    ],
)
def test_which_builds_run_on_which_gpu(capability, architectures, runs):
    assert has_code_for(ListedGpu("x", capability=capability), Torch(architectures=tuple(architectures))) is runs


def test_a_gpu_is_described_with_what_the_catalogue_knows():
    printed = report.text(GOOD, *examine(GOOD, CHAPTERS))
    assert "NVIDIA H100 80GB HBM3, 70 GiB free of 79.2 GiB; compute capability 9.0" in printed
    assert "in the catalogue as h100-80gb: 3,350 GB/s" in printed
    assert "holding its memory: python (process 4711), 9.1 GiB" in printed
    assert "NVIDIA 550.54, for CUDA up to 12.4" in printed
    unknown = replace(GOOD, gpus=(ListedGpu("Quadro X", 8 * GIB, 8 * GIB),) * 8)
    printed = report.text(unknown, *examine(unknown, CHAPTERS))
    assert "not in the catalogue" in printed
    assert "and 4 more" in printed


def test_a_mig_slice_is_not_its_card():
    printed = report.text(MIG_SLICE, *examine(MIG_SLICE, CHAPTERS))
    assert "holding its memory" not in printed, "its neighbour's processes are not its own"
    assert "not in the catalogue" in printed, "a slice has not the bandwidth of the card"


def test_a_laptop_is_told_what_a_gpu_would_add_and_a_container_its_share():
    assert "up to 4 GiB of memory; runs, richer on a GPU" in report.text(LAPTOP, *examine(LAPTOP, CHAPTERS))
    apple = replace(LAPTOP, torch=replace(CPU_BUILD, mps=True))
    assert "Apple (torch can use it as mps)" in report.text(apple, *examine(apple, CHAPTERS))
    container = replace(LAPTOP, memory_limited=True)
    assert "60 GiB free of this container's 64 GiB" in report.text(container, *examine(container, CHAPTERS))


def test_a_terminal_without_our_marks_still_tells_good_from_bad():
    machine = replace(FAULTS["transformers too old"][0], cpu="Ångström")
    printed = report.text(machine, *examine(machine, CHAPTERS))
    assert report.printable(printed, "utf-8") == printed
    assert report.printable(printed, None) == printed
    plain = report.printable(printed, "cp1252")
    assert plain.isascii()
    assert "  + 00 Start here" in plain
    assert "  x 02 Training" in plain


def test_a_chapter_that_cannot_be_read_cannot_run():
    judged, (fix,) = examine(LAPTOP, (*CHAPTERS, ChapterNeeds("03", "x", False, Needs(), "it cannot be read")))
    assert [bool(problems) for _, problems in judged] == [False, False, True]
    assert fix.what == "03 it cannot be read"


def test_build_and_release_keep_the_needs(tmp_path):
    needs = {"memory_gib": 1, "disk_gib": 0, "gpu": "unused", "packages": []}
    solution = example_lab()
    solution.metadata["workbook"] = {"needs": needs}
    clean(solution, tmp_path)
    assert solution.metadata["workbook"] == {"needs": needs}
    assert released(solution, "solutions/05_numbers.ipynb").metadata["workbook"]["needs"] == needs


def test_the_exit_code_says_whether_every_chapter_can_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine_room, "gather", lambda root, names: replace(LAPTOP, in_clone=root is not None))
    (tmp_path / "notebooks").mkdir()
    assert doctor(tmp_path) == 0
    assert "Nothing to fix." in capsys.readouterr().out
    (tmp_path / "notebooks/05_x.ipynb").write_text("{")
    assert doctor(tmp_path) == 1
    assert "✗ 05 x" in capsys.readouterr().out
    assert doctor(tmp_path, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["chapters"][0]["runs"] is False
    assert doctor(None) == 0
    assert "chapters and labs come with a clone" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_examines_this_machine(capsys):
    code = main(["doctor", "--json"])
    printed = capsys.readouterr()
    said = json.loads(printed.out)
    assert printed.err == ""
    assert set(said) == {"machine", "chapters", "fix"}
    assert code == (0 if all(chapter["runs"] for chapter in said["chapters"]) else 1)
    assert code == 0 or said["fix"]
    assert {"00", "02"} <= {chapter["number"] for chapter in said["chapters"]}
    here = said["machine"]
    assert 0 < here["memory_free_bytes"] <= here["memory_bytes"]
    assert here["torch"]["threads"] >= 1
    assert all(not one["error"] for one in here["packages"] if one["name"] in ("torch", "transformers"))
    assert 1 <= here["cores"] <= (os.cpu_count() or 1)
