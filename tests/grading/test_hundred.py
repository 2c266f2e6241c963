"""A hundred submissions: bounded memory, and a grader that may be interrupted, killed, and started again."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from helpers.course import notebook as nb
from tests.course.example_lab import RIGHT, save, with_sources

pytestmark = pytest.mark.all
COUNT, NAME = 100, "05_numbers.ipynb"


@pytest.fixture(scope="module")
def hundred(built_root, tmp_path_factory) -> Path:
    """A hundred learners; every third has one answer wrong."""
    folder, lab = tmp_path_factory.mktemp("hundred"), nb.read(built_root / "labs" / NAME)
    for number in range(COUNT):
        wrong = {"twice": "def twice(x):\n    return x + 2"} if number % 3 == 0 else {}
        save(with_sources(lab, RIGHT | wrong), folder / f"learner-{number:03d}.ipynb")
    return folder


def start(root: Path, handed_in: Path, out: Path) -> subprocess.Popen:
    """`workbook grade` in a process of its own, which can be interrupted as from a terminal."""
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from pathlib import Path; from helpers.grading.batch import Options, grade\n"
    program += "root, handed_in, out = map(Path, sys.argv[1:])\n"
    program += "sys.exit(grade('05', handed_in, out, root, Options(seed='3')))"
    words = [str(root), str(handed_in), str(out)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def done(out: Path) -> int:
    return len(list((out / "results").glob("*.json"))) if out.exists() else 0


def until(reached, within_s: float = 300) -> None:
    ends = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.05)


def survivors(family: list[psutil.Process], within_s: float = 30) -> list[str]:
    """Those of the processes that still run when the time is over."""
    _, alive = psutil.wait_procs(family, timeout=within_s)
    return [str(process) for process in alive]


@pytest.fixture(scope="module")
def ended(built_root, hundred, tmp_path_factory):
    """A batch interrupted by Ctrl-C, gone on with, killed with -9, gone on with: (folder, what was seen)."""
    out, seen = tmp_path_factory.mktemp("run") / "out", {}
    first = start(built_root, hundred, out)
    until(lambda: done(out) >= 15)
    family = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGINT)
    seen["told"], seen["interrupted"] = first.communicate(timeout=60)[0], first.returncode
    seen["left after Ctrl-C"] = survivors(family)
    seen["rows after Ctrl-C"] = len((out / "gradebook.csv").read_text("utf-8-sig").splitlines()) - 1
    seen["results after Ctrl-C"] = done(out)

    second = start(built_root, hundred, out)
    until(lambda: done(out) >= 40)
    family = psutil.Process(second.pid).children(recursive=True)
    assert len(family) > 4, "two workers are at work"
    second.kill()
    second.wait()
    second.stdout.close()
    seen["left after kill -9"] = survivors(family)
    seen["results after kill -9"] = done(out)
    for path in (out / "results").glob("*.json"):
        json.loads(path.read_text())  # whole, each of them

    before = {path: path.stat().st_mtime_ns for path in (out / "results").glob("*.json")}
    third = start(built_root, hundred, out)
    peak = 0
    while third.poll() is None:
        peak = max(peak, memory_of(third.pid))
        time.sleep(0.5)
    seen["last"], seen["peak"] = third.communicate()[0], peak
    seen["code"] = third.returncode
    seen["kept"] = all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
    return out, seen


def memory_of(pid: int) -> int:
    """Bytes of the grader and all its processes, each page counted once."""
    total = 0
    try:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            total += process.memory_full_info().pss
    except psutil.Error:
        pass
    return total


def test_ctrl_c_leaves_valid_partial_results(ended):
    _, seen = ended
    assert seen["interrupted"] == 130, seen["told"]
    assert "the same command goes on from there" in seen["told"]
    assert 15 <= seen["rows after Ctrl-C"] == seen["results after Ctrl-C"] < COUNT
    assert seen["left after Ctrl-C"] == []


def test_killed_and_started_again_it_does_the_rest(ended):
    out, seen = ended
    assert 40 <= seen["results after kill -9"] < COUNT
    assert seen["kept"], "what was graded before the kill was graded again"
    assert seen["code"] == 0, seen["last"]
    with (out / "gradebook.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [3 if n % 3 == 0 else 5 for n in range(COUNT)]
    assert seen["left after kill -9"] == []


def test_memory_does_not_grow_with_the_class(ended):
    _, seen = ended
    assert 0 < seen["peak"] < 2 << 30, f"{seen['peak'] / 2**30:.1f} GiB for two workers without torch"


def test_a_batch_in_one_go_gives_the_same_gradebook(ended, built_root, hundred, tmp_path):
    out, _ = ended
    some = tmp_path / "some"
    some.mkdir()
    for path in sorted(hundred.iterdir())[:6]:
        shutil.copy(path, some)
    process = start(built_root, some, tmp_path / "out")
    told = process.communicate(timeout=300)[0]
    assert process.returncode == 0, told
    fresh = (tmp_path / "out/gradebook.csv").read_text("utf-8-sig").splitlines()
    assert fresh == (out / "gradebook.csv").read_text("utf-8-sig").splitlines()[: len(fresh)]
