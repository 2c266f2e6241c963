"""What learners' code can see and do in the sandbox, and what it leaves to the next notebook: nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from helpers.catalog.errors import WorkbookError
from helpers.grading.sandbox import isolation, levels
from tests.grading.sandbox import probes
from tests.grading.sandbox.probes import LEAVES, ROOT, SECRET, SEES, SMALL, SURVIVOR
from tests.needs import missing

best = levels.best  # as it is; while tests run, it skips the one that asks where there is no sandbox
LEFT = "True 42 None 0.5\nTrue True\n"  # what the first notebook says that it has done
NOTHING = [[], 1, True, True]  # and what the second sees of it
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux"),
    pytest.mark.slow,
]


def test_who_installs_something_is_told_at_once_that_there_is_no_network():
    """And does not wait until it is taken for a loop: five tries take pip 15 seconds."""
    nowhere = "--index" + "-url=http://127.0.0.1:9/"
    words = [sys.executable, "-m", "pip", "install", nowhere, "no-such-package"]
    done = subprocess.run(words, env=isolation.environment(), capture_output=True, text=True, timeout=60)
    assert "No matching distribution" in done.stderr
    assert "Retrying" not in done.stdout + done.stderr


def survivors() -> list[int]:
    return [one.pid for one in psutil.process_iter(["name"]) if one.info["name"] == SURVIVOR]


@pytest.fixture(scope="module")
def seen() -> SimpleNamespace:
    """The facts, what a notebook did, what the next one saw, what was there after each and at the end."""
    if not (level := levels.best()).is_filtered:
        missing(str(level))
    before = set(psutil.Process().children(recursive=True))  # a browser of other tests may go on having children
    with probes.grader() as (secret, port), probes.worker_at(levels.BUBBLEWRAP) as worker:
        facts = probes.facts(worker, secret, port)
        left = probes.printed(worker, LEAVES)
        running = survivors()
        found = json.loads(probes.printed(worker, SEES))
        sockets = [path.name for path in worker.control.iterdir() if path.is_dir()]
    return SimpleNamespace(
        facts=facts,
        left=left,
        running=running,
        found=found,
        sockets=sockets,
        folder=worker.folder,
        processes={one for one in psutil.Process().children(recursive=True) if not before & {one, *one.parents()}},
    )


FACTS: dict[str, Callable] = {
    "uid": lambda fact: 0 not in fact,
    "become root": lambda fact: fact in ("EPERM", "EINVAL"),
    "capabilities": lambda fact: not any(fact.values()),
    "new privileges": lambda fact: fact == "1",
    "seen": lambda fact: fact == [],
    "home": lambda fact: fact in ("ENOENT", "EACCES") or set(fact) <= on_the_way(Path.home()),
    "root": lambda fact: set(fact) <= {"dev", "proc", "run", "tmp"} | on_the_way(Path("/")),
    "environment": lambda fact: SECRET not in fact and not {"SSH_AUTH_SOCK", "OLDPWD", "LOGNAME"} & set(fact),
    "port": lambda fact: fact == "ECONNREFUSED",
    "name": lambda fact: fact in ("gaierror", "EAGAIN"),
    "interfaces": lambda fact: fact == ["lo"],
    "first process": lambda fact: fact == "EACCES" or not stray(fact),
    "written": lambda fact: fact == [],
    "largest file": lambda fact: fact == SMALL.file_bytes,
    "forks": lambda fact: 0 < fact < SMALL.processes,
    "unshare user": lambda fact: fact in ("ENOSPC", "EPERM"),
    "unshare mount": lambda fact: fact == "EPERM",
    "mount": lambda fact: fact == "EPERM",
    "vsock": lambda fact: fact == "EAFNOSUPPORT",
    "families": lambda fact: fact == [1, 2, 10, *["EAFNOSUPPORT"] * 4],
    "calls": lambda fact: set(fact.values()) == {"EPERM"} and len(fact) > 20,
    "seccomp": lambda fact: fact == "2",
    "nice": lambda fact: fact >= isolation.NICENESS,  # more where the tests are nice themselves
    "processor time": lambda fact: fact == [60, 65],  # the wall clock of the probe, and what SIGXCPU gets
    "core": lambda fact: fact == [0, 0],
}


def on_the_way(folder: Path) -> set[str]:
    """The names in `folder` of what leads to a file that is shown: Python may be installed in a home."""
    paths = (Path(path) for path in isolation.readable())
    return {path.relative_to(folder).parts[0] for path in paths if path.is_relative_to(folder)}


def stray(environ: str) -> set[str]:
    """Variables of a process that the sandbox did not give it (PWD is bubblewrap's)."""
    given = {f"{name}={value}" for name, value in isolation.environment().items()}
    return {line for line in environ.split("\0") if line} - given - {"PWD=/tmp"}


@pytest.mark.parametrize("name", FACTS)
def test_learners_code_is_shut_in(seen, name):
    assert FACTS[name](seen.facts[name]), seen.facts[name]


def test_all_facts_are_judged(seen):
    assert set(seen.facts) - set(FACTS) == {"processes", "filled"}


def test_it_sees_its_own_processes_alone(seen):
    assert len(seen.facts["processes"]) <= 2
    assert max(seen.facts["processes"]) < 10


def test_it_cannot_fill_a_disk_or_the_memory(seen):
    assert all(size <= SMALL.folder_bytes for size in seen.facts["filled"].values()), seen.facts["filled"]
    assert seen.facts["filled"]["/tmp"] > 2**20


def test_a_notebook_leaves_nothing_to_the_next(seen):
    assert seen.left == LEFT, "it must have done what the next is spared"
    assert seen.found == NOTHING


def test_no_process_and_no_file_is_left(seen):
    assert (seen.running, survivors()) == ([], [])
    assert seen.sockets == []
    assert seen.processes == set()
    assert not seen.folder.exists()


def test_without_bubblewrap_learners_must_be_trusted(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(WorkbookError, match=r"(?s)bwrap is not installed.*--trust-learners"):
        best()
    found = levels.best(trust_learners=True)
    assert (found.name, found.is_sandbox) == ("limits", False)
    assert str(found) == "limits (bubblewrap: bwrap is not installed)"


def test_trusted_learners_are_graded_where_nothing_can_shut_them_in():
    """As root, too, whose kernels have lost the right to read what is another's."""
    with probes.worker_at(levels.SandboxLevel("limits")) as worker:
        assert probes.printed(worker, "print(6 * 7)") == "42\n"


def test_without_namespaces_too_a_kernel_goes_with_its_server():
    """After Ctrl-C two of them had been asleep for an hour, of 290 MiB each."""
    with probes.worker_at(levels.SandboxLevel("limits")) as worker:
        asked = threading.Thread(target=ended_alone, args=(worker,))
        asked.start()
        family = []
        while len(family) < 2:  # its keeper and the kernel
            time.sleep(0.1)
            family = psutil.Process(worker.fork_server.pid).children(recursive=True) if worker.fork_server else []
        worker.fork_server.kill()
        asked.join()
        assert not psutil.wait_procs(family, timeout=30)[1]


def ended_alone(worker) -> None:
    with contextlib.suppress(Exception):  # its kernel is gone, which is said in one of two ways
        probes.printed(worker, "import time; time.sleep(600)")


def test_a_level_that_is_refused_says_why(monkeypatch):
    monkeypatch.setattr(levels, "command", lambda *_: [sys.executable, "-c", "raise OSError('not permitted')"])
    assert str(levels.best(trust_learners=True)) == "limits (bubblewrap: OSError: not permitted)"
    monkeypatch.setattr(levels, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
    assert levels.best(trust_learners=True).why == "bubblewrap: exit status 3"


UNKNOWN_PROCESSOR = """
import platform, runpy
platform.machine = lambda: "riscv64"
runpy.run_module("helpers.grading.sandbox.levels", run_name="__main__")
"""


def test_without_a_filter_of_system_calls_the_level_says_so(seen, monkeypatch):
    whole = levels.command

    def elsewhere(*arguments):
        words = whole(*arguments)
        at = words.index("-m")
        return [*words[:at], "-c", UNKNOWN_PROCESSOR, *words[at + 2 :]]

    monkeypatch.setattr(levels, "command", elsewhere)
    found = levels.best()
    assert (found.name, found.is_sandbox, found.is_filtered) == ("bubblewrap without seccomp", True, False)
    assert "no filter of system calls is known for riscv64" in str(found)
    with probes.worker_at(found) as worker:  # the wrapped command is of no matter here: this processor is known
        monkeypatch.undo()
        told = "print(open('/proc/self/status').read().split('Seccomp:')[1].split()[0])"
        assert probes.printed(worker, told) == "0\n"


@pytest.mark.parametrize("error", [PermissionError("no"), subprocess.TimeoutExpired("bwrap", 60)], ids=str)
def test_a_level_that_cannot_be_tried_is_one_that_fails(monkeypatch, error):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(levels.subprocess, "run", run)
    assert levels.best(trust_learners=True).why == f"bubblewrap: {error}"


def test_an_ordinary_user_can_shut_learners_in():
    done = as_an_ordinary_user("-m", "tests.grading.sandbox.probes")
    if "nothing on this machine can shut in" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-4])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["uid"] == 12345
    wrong = {name: fact for name, fact in found["facts"].items() if name in FACTS and not FACTS[name](fact)}
    wrong.pop("first process", None)  # it names another Python
    assert wrong == {}
    assert (found["left"], found["found"]) == (LEFT, NOTHING)
    assert survivors() == []


def as_an_ordinary_user(*arguments: str) -> subprocess.CompletedProcess:
    """Run Python as a user without a name, a home or a group."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user runs all of these tests")
    if not shutil.which("setpriv"):
        pytest.skip("setpriv is not installed")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nowhere",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
    }
    # env, because setpriv itself still finds programs with root's rights.
    become = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "env"]
    options = {"env": environment, "cwd": "/tmp", "capture_output": True, "text": True, "timeout": 300}
    asks = f"import sys, zmq, psutil, nbval; assert sys.version_info[:2] == {sys.version_info[:2]}"
    with tempfile.TemporaryDirectory() as folder:
        for python in (sys.executable, system_python(Path(folder))):
            if subprocess.run([*become, python, "-c", asks], **options).returncode == 0:
                return subprocess.run([*become, python, *arguments], **options)
    pytest.skip("another user can run no Python with these packages here")


def system_python(folder: Path) -> str:
    """An environment of the system's Python with the packages that these tests run with."""
    python = "/usr/bin/python3"
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=False, capture_output=True)
    for packages in folder.glob("lib/python3*/site-packages"):
        (packages / "these.pth").write_text(sysconfig.get_path("purelib"))
    folder.chmod(0o755)
    return str(folder / "bin/python")
