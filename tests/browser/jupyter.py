"""A JupyterLab of its own on a folder of notebooks: its own settings, kernels and port, gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60


@dataclass(frozen=True)
class Lab:
    """A running server. `url(notebook)` opens one notebook alone, without the file browser."""

    port: int
    token: str

    def url(self, notebook: str) -> str:
        return f"http://127.0.0.1:{self.port}/doc/tree/{notebook}?token={self.token}&reset"


@contextlib.contextmanager
def jupyter_lab(folder: Path, home: Path) -> Iterator[Lab]:
    """Serve `folder`; every file that Jupyter writes for itself goes under `home`. Nothing is left running."""
    lab = Lab(_free_port(), secrets.token_hex(8))
    log = home / "jupyter.log"
    _write_settings(home)
    with log.open("wb") as output:
        server = subprocess.Popen(
            _command(lab, folder),
            env=_environment(home),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_until_up(lab, server, log)
        yield lab
    finally:
        _stop(server)


def _write_settings(home: Path) -> None:
    """No pop-ups over the page, and every cell rendered, not only those on the screen."""
    settings = {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, values in settings.items():
        path = home / "jupyterlab_settings_dir" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))


def _command(lab: Lab, folder: Path) -> list[str]:
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": lab.port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder,
        "IdentityProvider.token": lab.token,
        "LabApp.expose_app_in_browser": True,  # window.jupyterapp, to run commands by name
    }
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root"]
    return command + [f"--{name}={value}" for name, value in options.items()]


def _environment(home: Path) -> dict[str, str]:
    own = {
        name: str(home / name.lower())
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "IPYTHONDIR",
        )
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKBOOK_")}
    return {**kept, **own, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{lab.port}/api?token={lab.token}", timeout=2).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not come up:\n{log.read_text(errors='replace')[-2000:]}")


def _stop(server: subprocess.Popen) -> None:
    """Ask the server to shut its kernels down, then end the whole session, kernels too."""
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait(timeout=10)
