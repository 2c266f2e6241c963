"""A worker's folder: nobody else looks in, nothing is left when the grader is killed, a full disk is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from nbformat import v4

from helpers.catalog.errors import WorkbookError
from helpers.grading.sandbox import levels, run_folder, worker
from helpers.grading.sandbox.isolation import Limits
from helpers.grading.sandbox.worker import SandboxError, Worker
from tests.course.example_lab import code
from tests.grading.sandbox.probes import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

LOOK = """
import json, os, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
found = []
for path in sys.argv[1:]:
    for read in (os.listdir, lambda path: open(path).close()):
        try:
            read(path)
            found.append(path)
        except OSError:
            pass
print(json.dumps(found))
"""


@pytest.fixture
def elsewhere():
    """A folder that is not in /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def place(tmp_path_factory, monkeypatch):
    """A /tmp of these tests' own, with as short a path."""
    folder = Path("/tmp") / f"wbt-{os.getpid()}"
    folder.mkdir(mode=0o755)
    monkeypatch.setattr(run_folder, "PLACE", folder)
    yield folder
    shutil.rmtree(folder)


def cells(*sources):
    return v4.new_notebook(cells=[code(source, f"c{number}") for number, source in enumerate(sources)])


def old(folder, name, seconds=100):
    path = folder / name
    path.mkdir()
    (path / "lab.ipynb").touch()
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_it_is_the_owners_alone_and_gone_afterwards(place):
    with run_folder.run_folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_what_a_killed_run_left_is_removed_and_nothing_else(place):
    left, young, another = old(place, "wb-run-left"), old(place, "wb-run-new", 0), old(place, "workbook-x")
    outside = old(place, "outside")
    (place / "wb-run-link").symlink_to(outside)
    (place / "wb-run-file").write_text("mine")
    with run_folder.run_folder() as running:
        os.utime(running, (0, 0))
        run_folder.sweep()  # in this process, too, a lock that is held is held
        assert running.exists()
    assert not left.exists()
    assert all(path.exists() for path in (young, another, outside / "lab.ipynb", place / "wb-run-file"))


@needs_root
def test_another_users_folder_stays(place):
    theirs = old(place, "wb-run-theirs")
    os.chown(theirs, 65534, 65534)
    run_folder.sweep()
    assert theirs.exists()


@pytest.mark.slow
@needs_root
def test_another_user_reads_nothing_of_a_run_and_the_kernel_only_its_sockets():
    with Worker(levels.best(), ["json"]) as running:
        seen: list[str] = []
        own = running._nbval

        def looked_at(folder, *arguments):
            """When the notebook lies there, before it runs."""
            seen.extend(json.loads(look(folder.parent)))
            return own(folder, *arguments)

        running._nbval = looked_at
        source = f"""
import os
print(os.path.exists({str(running.folder)!r}), os.listdir("/run"), *sorted(os.listdir("/run/kernel")))
"""
        found = running.run(cells(source), wall_s=60)
        own = [f"connection-ipc-{number}" for number in range(1, 6)] + ["connection.json"]  # Jupyter's, with its key
        assert found["c0"].stdout.split() == ["False", "['kernel']", *own]
        seen += json.loads(look(running.folder))
    assert seen == []


def look(folder):
    """The paths in and below `folder` that nobody can read, as JSON."""
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 3
    command = [sys.executable, "-c", LOOK, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_kernel_that_spins_is_ended_by_its_processor_time():
    spins = "import threading\nthreading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()"
    with Worker(levels.best(), ["json"], limits=Limits(cpu_s=2)) as running:
        found = running.run(cells(spins, "import time; time.sleep(30)"), wall_s=60)
    ended = next(result for result in found.values() if result.fatal)
    assert (ended.fatal, ended.message) == ("died", "took far more processor time than the worked lab does")


HANGS = """
import sys
from nbformat import v4
from helpers.grading.sandbox import levels, run_folder
from helpers.grading.sandbox.worker import Worker
from pathlib import Path
from tests.course.example_lab import code
run_folder.PLACE = Path(sys.argv[1])
spawns = "import subprocess, sys\\nsubprocess.Popen(['sleep', '600'])\\nprint('up')\\nwhile True: pass"
with Worker(levels.best(), ["json"]) as worker:
    print("runs", flush=True)
    worker.run(v4.new_notebook(cells=[code(spawns, "c0")]), wall_s=600)
"""


def words(process: psutil.Process) -> str:
    """What it was started with; '' for one that has ended since it was listed."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@pytest.mark.slow
def test_nothing_outlives_a_grader_that_is_killed(place):
    levels.best()  # skips where there is none
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    grader = subprocess.Popen([sys.executable, "-c", HANGS, str(place)], stdout=subprocess.PIPE, env=environment)
    assert grader.stdout.readline() == b"runs\n"
    started: list[psutil.Process] = []
    names: set[str] = set()
    for _ in range(300):
        started = psutil.Process(grader.pid).children(recursive=True)
        names = set(map(words, started))
        if any(name.startswith("sleep") for name in names):
            break
        time.sleep(0.1)
    assert all(
        any(word in name for name in names) for word in ("fork_server", "task_server", "kernel_proxy.py", "sleep 600")
    )
    grader.send_signal(signal.SIGKILL)
    grader.communicate()
    outliving = psutil.wait_procs(started, timeout=15)[1]
    for process in outliving:
        process.kill()
    assert outliving == []
    (left,) = place.glob("wb-run-*")
    os.utime(left, (0, 0))
    with run_folder.run_folder():
        assert not left.exists()


@pytest.mark.slow
@needs_root
def test_a_place_that_is_read_only_is_told_by_the_command(place, elsewhere):
    """Whatever the user, and before anybody is graded."""
    levels.best()  # skips where there is none
    (elsewhere / "in").mkdir()
    (elsewhere / "in" / "ada.ipynb").write_text(json.dumps(cells("x = 1")))
    mounted = 'mount -t tmpfs -o ro none /tmp && exec "$@"'
    folders = [str(elsewhere / "in"), "--out", str(elsewhere / "out")]
    command = [sys.executable, "-m", "helpers.cli", "grade", "02", *folders]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, "sh", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("workbook: no folder can be made in /tmp: Read-only file system\n  expected:")
    assert "Traceback" not in done.stderr


def test_a_place_where_no_folder_can_be_made(monkeypatch, place):
    monkeypatch.setattr(run_folder, "PLACE", place / "nowhere")
    with pytest.raises(WorkbookError) as caught, Worker(levels.BUBBLEWRAP, []):
        pass
    assert "no folder can be made" in caught.value.what
    assert "free some space" in caught.value.do


IN_A_SMALL_TMP = """
import sys
from helpers.grading.sandbox import levels, run_folder
from helpers.grading.sandbox.worker import SandboxError, Worker
from pathlib import Path
from tests.grading.sandbox.test_run_folder import cells
run_folder.PLACE = Path(sys.argv[1])
with Worker(levels.BUBBLEWRAP, ["json"]) as worker:
    print(worker.run(cells("print(1)"), wall_s=60)["c0"].outcome)
    fill = open(worker.folder / "fill", "wb", buffering=0)
    for bytes_each in (1 << 20, 1 << 10, 1):  # to the last byte
        try:
            while True:
                fill.write(bytes(bytes_each))
        except OSError:
            pass
    notebook = Path(sys.argv[2])
    for work in (lambda: worker.run(cells("print(1)"), wall_s=60), lambda: worker.read(notebook)):
        try:
            print(work())
        except SandboxError as error:
            print(error.what, error.do, sep="; ")
"""


@pytest.mark.slow
@needs_root
def test_a_full_disk_is_told_and_grades_nobody(place, tmp_path):
    levels.best()  # skips where there is none
    notebook = tmp_path / "lab.ipynb"
    notebook.write_text(json.dumps(cells("x = 1")))
    mounted = f'mount -t tmpfs -o size=24m none {place} && exec "$@"'
    command = [sys.executable, "-c", IN_A_SMALL_TMP, str(place), str(notebook)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, "sh", *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    told = f"there is no room left in {place}: see df -h {place}; {run_folder.FREE_SOME}"
    assert done.stdout.splitlines() == ["passed", told, told]


@pytest.mark.slow
def test_a_result_that_could_not_be_written_is_no_wrong_answer(monkeypatch):
    with Worker(levels.best(), ["json"]) as running:
        monkeypatch.setattr(worker, "lacks_room", lambda folder: "there is no room left")
        with pytest.raises(SandboxError, match="no room left"):
            running.run(cells("print(1)"), wall_s=60)
