"""Run an assembled lab under unmodified nbval in a process of its own; per cell id, how it went."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from helpers.course import notebook as nb
from helpers.course.kernel import environment

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class CellResult:
    """One cell: 'passed', 'failed' or 'not reached', why, and its wall seconds."""

    outcome: str
    message: str
    seconds: float

    @property
    def passed(self) -> bool:
        """True for an explicit pass only."""
        return self.outcome == "passed"


def run(
    notebook: NotebookNode, *, seed: str = "0", cell_timeout_s: float = 60, wall_timeout_s: float = 600
) -> dict[str, CellResult]:
    """The results by cell id. A cell that is not in them never finished: see `missing`.

    The notebook runs in an empty folder of its own, so no conftest, module or data beside it is read. After
    `wall_timeout_s` for the whole run it is ended with its kernel, and the cells that finished are returned.
    """
    with tempfile.TemporaryDirectory(prefix="workbook-") as name:
        folder, results = Path(name), Path(name) / "results.jsonl"
        nb.write(folder / "lab.ipynb", notebook)
        log = _run_pytest(_command(folder, results, cell_timeout_s), folder, seed, wall_timeout_s)
        rows = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        if not rows:
            raise RuntimeError(f"nbval reported no cell at all:\n{log}")
    return {row.pop("cell"): CellResult(**row) for row in map(json.loads, rows)}


def missing(wall_timeout_s: float = 600) -> CellResult:
    """The result of a cell that never finished."""
    return CellResult("not reached", f"not reached: the whole lab may take {wall_timeout_s:g} seconds", 0.0)


def _command(folder: Path, results: Path, cell_timeout_s: float) -> list[str]:
    plugins = ["-p", "nbval.plugin", "-p", "helpers.course.nbval_report", "-p", "no:cacheprovider"]
    return [
        *(sys.executable, "-m", "pytest", "-q", "--color=no", "--noconftest", "-c", os.devnull),
        *("--rootdir", str(folder), *plugins, f"--workbook-results={results}"),
        *("--nbval", "--nbval-current-env", f"--nbval-cell-timeout={cell_timeout_s:g}"),
        str(folder / "lab.ipynb"),
    ]


def _run_pytest(command: list[str], folder: Path, seed: str, wall_timeout_s: float) -> str:
    """Run to the end or to the time limit; the log."""
    env = {name: value for name, value in environment(seed).items() if not name.startswith("PYTEST_")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE_ROOT), env.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        return process.communicate(timeout=wall_timeout_s)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then ends its kernel, which is not in our process group
    try:
        return process.communicate(timeout=15)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
