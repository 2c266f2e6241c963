"""What `make` does before anything is installed: the choices, and the messages when something is missing."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from setup_env import __main__ as command
from setup_env import environment, machine, torch_build
from setup_env.machine import Stop
from tests.house import tree

PIN = "2.13.0"


def labels(gpu: bool, system: str) -> list[str]:
    return [attempt.label for attempt in torch_build.torch_attempts("python", PIN, gpu, system)]


def test_without_a_gpu_cuda_is_the_last_resort() -> None:
    attempts = torch_build.torch_attempts("python", PIN, False, "Linux")
    assert attempts[0].commands[-1][-1] == "torch==2.13.0+cpu"
    assert "--torch-backend=cpu" in attempts[1].commands[-1]
    assert [attempt.need_bytes for attempt in attempts] == [3 * 2**30, 3 * 2**30, 8 * 2**30]


def test_with_a_gpu_no_attempt_is_cpu_only() -> None:
    for system in ("Linux", "Windows"):
        assert not [label for label in labels(True, system) if "CPU" in label]
    words = [word for attempt in torch_build.torch_attempts("p", PIN, True, "Linux") for word in attempt.commands[-1]]
    assert "--torch-backend=auto" in words
    assert "torch>=2.11,<3" in words


def test_a_mac_takes_the_default_build() -> None:
    assert labels(False, "Darwin") == labels(False, "Windows") == ["the default build"]


@pytest.mark.parametrize(
    ("version", "gpu", "system_torch", "stays"),
    [
        ("2.13.0+cpu", False, False, True),
        ("2.13.0", False, False, True),
        ("2.12.0+cpu", False, False, False),
        (None, False, False, False),
        ("2.13.0+cpu", True, False, False),
        ("2.13.0", True, False, True),
        ("2.11.0+cu126", True, False, True),
        ("2.10.0+cu126", True, False, False),
        ("2.12.0+cu128", False, True, True),
        ("2.9.1", False, True, False),
        ("3.0.0", True, False, False),
    ],
)
def test_which_torch_stays(version: str | None, gpu: bool, system_torch: bool, stays: bool) -> None:
    assert torch_build.torch_will_do(version, PIN, gpu, system_torch) is stays


def test_a_failed_attempt_leads_to_the_next(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    ran = []
    monkeypatch.setattr(torch_build, "run", lambda words: ran.append(words) or (int("+cpu" in words[-1]), "no match"))
    monkeypatch.setattr(torch_build.platform, "system", lambda: "Linux")
    torch_build.install_torch("python", gpu=False)
    assert len(ran) == 3
    assert "not available here: no match" in capsys.readouterr().out


def test_a_cpu_torch_is_removed_before_a_cuda_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(torch_build, "run", lambda words: ran.append(words) or (0, ""))
    monkeypatch.setattr(torch_build, "installed_torch", lambda python: "2.13.0+cpu")
    torch_build.settle_torch("python", gpu=True, system_torch=False)
    assert "uninstall" in ran[0]
    assert "--torch-backend=auto" in ran[-1]


def test_when_every_attempt_fails_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_build, "run", lambda words: (1, "ERROR: No matching distribution"))
    with pytest.raises(Stop, match=r"(?s)could not be installed.*No matching.*rm -rf \.venv"):
        torch_build.install_torch("python", gpu=True)


def test_a_full_disk_ends_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    full = (1, "OSError: [Errno 28] No space left on device")
    monkeypatch.setattr(torch_build, "run", lambda words: ran.append(words) or full)
    with pytest.raises(Stop, match=r"(?s)could not be installed.*full"):
        torch_build.install_torch("python", gpu=False)
    assert len(ran) == 1


def test_a_full_disk_is_told_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    with pytest.raises(Stop, match=r"1\.0 GiB free in .*, 3\.0 needed"):
        machine.require_space(3 * 2**30)
    machine.require_space(2**30)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("OSError: [Errno 28] No space left on device", "full"),
        ("error: dns error\nFailed to establish a new connection", "network"),
        ("ERROR: ResolutionImpossible", "rm -rf .venv"),
    ],
)
def test_a_failure_says_what_to_do(output: str, told: str) -> None:
    assert told in machine.diagnose(output)


def test_an_old_python_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.sys, "version_info", (3, 10, 13))
    monkeypatch.setenv("WORKBOOK_PYTHON_CHOSEN", "1")
    with pytest.raises(Stop, match=r"3\.10\.13; the workbook needs 3\.11, 3\.12, 3\.13 or 3\.14"):
        machine.require_python()


def test_an_old_python_hands_over_to_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.sys, "version_info", (3, 10, 13))
    monkeypatch.delenv("WORKBOOK_PYTHON_CHOSEN", raising=False)
    monkeypatch.setattr(machine, "another_python", lambda: "python3.12")
    called = []
    monkeypatch.setattr(machine.subprocess, "call", lambda words, cwd: called.append(words) or 0)
    with pytest.raises(SystemExit):
        machine.require_python()
    assert called[0][:3] == ["python3.12", "-m", "setup_env"]


def test_old_pythons_can_read_it() -> None:
    for path in (tree.ROOT / "setup_env").glob("*.py"):
        parsed = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 6))
        future = [node for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        assert not future, f"{path.name}: Python 3.6 does not know `from __future__ import annotations`"


@pytest.mark.parametrize("ci", ["", "0", "true"])
def test_without_deepspeed_a_learner_goes_on_and_ci_stops(
    ci: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(environment, "run", lambda words: (1, "error: metadata-generation-failed"))
    if ci == "true":
        with pytest.raises(Stop, match=r"(?s)DeepSpeed could not.*metadata"):
            environment.install_deepspeed("python", "Linux")
        return
    environment.install_deepspeed("python", "Linux")
    told = capsys.readouterr().out
    assert "warning: DeepSpeed could not be installed: error: metadata-generation-failed" in told
    assert "python -m pip install -r requirements-deepspeed.txt" in told


def test_deepspeed_is_asked_for_on_linux_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    ran = []
    monkeypatch.setattr(environment, "run", lambda words: ran.append(words) or (0, ""))
    for system in ("Darwin", "Windows", "Linux"):
        environment.install_deepspeed("python", system)
    assert [words[-1].endswith("requirements-deepspeed.txt") for words in ran] == [True]
    assert capsys.readouterr().out.count("left out") == 2


@pytest.fixture
def other_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the environment is made from; the module looks there and installs nothing."""
    for name in ("requirements.txt", "requirements-deepspeed.txt", "pyproject.toml", "setup.py"):
        shutil.copy(tree.ROOT / name, tmp_path)
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    for module, name, value in (
        (environment, "ROOT", str(tmp_path)),
        (environment, "VENV", str(venv)),
        (environment, "STAMP", str(venv / "workbook-stamp")),
        (environment, "read", lambda name: (tmp_path / name).read_text(encoding="utf-8")),
        (environment, "settle_torch", lambda *args: PIN),
        (environment, "install_rest", lambda torch: None),
        (environment, "install_deepspeed", lambda python, system: None),
        (machine, "has_gpu", lambda: False),
    ):
        monkeypatch.setattr(module, name, value)
    return tmp_path


@pytest.mark.skipif(os.name == "nt", reason="the fixture makes a POSIX environment")
def test_a_stamp_is_left_once_and_only_by_success(other_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.env()
    assert environment.is_current()
    for name in ("requirements.txt", "requirements-deepspeed.txt"):
        pins = other_root / name
        pins.write_text(pins.read_text().replace("==", "==9"))
        assert not environment.is_current()
        environment.env()
    pins.write_text(pins.read_text().replace("==9", "=="))

    def fail(torch: str) -> None:
        raise Stop("no", "again")

    monkeypatch.setattr(environment, "install_rest", fail)
    with pytest.raises(Stop):
        environment.env()
    assert not (other_root / ".venv" / "workbook-stamp").exists()


def test_without_a_screen_no_browser_is_opened() -> None:
    page = command.START
    assert "--no-browser" in command.lab_arguments("Linux", {}, False, page)
    assert "--no-browser" not in command.lab_arguments("Linux", {"WAYLAND_DISPLAY": "wayland-0"}, False, page)
    assert "--no-browser" not in command.lab_arguments("Darwin", {}, False, page)
    assert "--allow-root" in command.lab_arguments("Linux", {}, True, page)
    assert "--allow-root" not in command.lab_arguments("Linux", {}, False, page)


@pytest.mark.parametrize(("failed", "page"), [(0, command.START), (2, command.FIRST_CHAPTER)])
def test_the_first_page_is_the_learners_own_where_they_can_have_one(failed, page, monkeypatch) -> None:
    called = []
    monkeypatch.setattr(command.subprocess, "call", lambda words, cwd: called.append(words) or failed)
    assert command.first_page() == page
    assert called[0][1:] == ["-m", "helpers.cli", "workspace"]
    assert f"--LabApp.default_url={page}" in command.lab_arguments("Linux", {}, False, page)


def test_the_first_page_is_shown_as_a_page_and_not_as_its_text(other_root: Path) -> None:
    environment.quiet_jupyter()
    (settings,) = other_root.rglob("overrides.json")
    viewers = json.loads(settings.read_text())["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"]
    assert viewers == {"markdown": "Markdown Preview"}
    (server,) = other_root.rglob("jupyter_server_config.json")
    assert json.loads(server.read_text())["ServerApp"]["jpserver_extensions"] == {"ipyparallel": False}


@pytest.mark.parametrize(
    ("extra", "environ", "port", "own"),
    [
        ([], {}, "8888", False),
        (["--port", "9000"], {}, "9000", False),
        (["--ServerApp.port=9001"], {"JUPYTER_PORT": "1"}, "9001", False),
        ([], {"JUPYTER_PORT": "9002", "JUPYTER_TOKEN": "secret"}, "9002", True),
        (["--IdentityProvider.token=secret"], {}, "8888", True),
    ],
)
def test_the_address_is_told_with_its_port_and_never_the_token(extra, environ, port, own) -> None:
    told = "\n".join(command.where_to_look(extra, environ, "/lab"))
    assert f"ssh -L {port}:localhost:{port} " in told
    assert (f"http://localhost:{port}/lab " in told) is own, (
        "JupyterLab prints the address only with a token of its own"
    )
    assert "secret" not in told


def test_progress_says_what_pip_is_at_and_is_heard(monkeypatch, capsys) -> None:
    monkeypatch.setattr(machine, "BEAT_S", 0.05)
    code = "import time; print('Collecting torch==2.13.0 (from -r x)', flush=True); time.sleep(0.3)"
    assert machine.run([sys.executable, "-c", code]) == (0, "Collecting torch==2.13.0 (from -r x)\n")
    assert "package 1, torch" in capsys.readouterr().out
    progress = machine.Progress()
    progress.read("Installing collected packages: a, b, c\n")
    assert progress.doing == "writing 3 packages to disk"


@pytest.mark.skipif(os.name == "nt", reason="CI's script is bash")
def test_what_ci_hides_is_out_of_reach_and_nothing_else() -> None:
    hidden = subprocess.run([".ci/hide", "git", "no-such-program"], cwd=tree.ROOT, capture_output=True, text=True)
    path = hidden.stdout.strip()
    assert not shutil.which("git", path=path)
    assert [shutil.which(name, path=path) is None for name in ("bash", "python3", "make")] == [False] * 3
    python = [shutil.which("python3", path=path), "-c", "import sys; print(sys.executable)"]
    found = subprocess.run(python, env={**os.environ, "PATH": path}, capture_output=True, text=True).stdout.strip()
    assert not found.startswith(tempfile.gettempdir()), "a Python that is a link there would lose its library"


def test_unknown_arguments_are_refused() -> None:
    done = subprocess.run([sys.executable, "-m", "setup_env", "lib"], cwd=tree.ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "env, lab or environment.yml" in done.stderr
    assert "Traceback" not in done.stderr
