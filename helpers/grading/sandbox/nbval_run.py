"""Run an assembled lab under unmodified nbval in a process of its own; per cell id, how it went."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from ...course import notebook as nb
from ...lesson import asking

HELPERS_ROOT = Path(__file__).resolve().parents[3]  # what `import helpers` needs on its path
KERNEL, ASKING_KERNEL = "asking", "helpers.grading.sandbox.asking_kernel"
NO_KERNEL = "no kernel"  # an outcome that is nobody's but ours
LOOK_S = 0.5
NO_LIMIT_S = 10**6  # nbval's own, for a whole cell: the guard's is lower, and notices a dead kernel


@dataclass(frozen=True)
class CellResult:
    """One cell: 'passed', 'failed' or 'not reached', why, its wall seconds, what it showed.

    `fatal` is 'hung', 'died' or 'flooded' where the kernel could not go on after it: nothing after it was run.
    """

    outcome: str
    message: str
    seconds: float
    outputs: tuple[dict, ...] = ()
    fatal: str = ""

    @property
    def passed(self) -> bool:
        """True for an explicit pass only."""
        return self.outcome == "passed"

    @property
    def stdout(self) -> str:
        """What the cell printed."""
        return nb.stream(self.outputs, "stdout")

    @property
    def told(self) -> list:
        """What the kernel or a cell of ours reported of the answers (`asking.MIME`), in order; None for no JSON."""
        return [_parsed(text) for text in self._told]

    @property
    def words(self) -> str:
        """All that is known of why: the message, what was printed or told, the errors with their tracebacks."""
        shown = [output.get("text") or "\n".join(output.get("traceback", ())) for output in self.outputs]
        return "\n".join([self.message, *shown, *self._told])

    @property
    def errors(self) -> str:
        """What went wrong, without what was printed or answered: an answer may well be the word MemoryError."""
        texts = [(output.get("name"), output.get("text", "")) for output in self.outputs]
        shown = [text for name, text in texts if name == "stderr" or text.startswith(FORMATTING)]
        traces = ["\n".join(output.get("traceback", ())) for output in self.outputs]
        return "\n".join([self.message, *shown, *traces, *self.raised])

    @property
    def raised(self) -> list[str]:
        """What answers raised, as an asking cell wrote it down."""
        rows = [row for told in self.told if isinstance(told, dict) for row in told.get("rows", ())]
        return [str(row["raised"]) for row in rows if isinstance(row, dict) and "raised" in row]

    @property
    def _told(self) -> list[str]:
        return [output["data"][asking.MIME] for output in self.outputs if asking.MIME in output.get("data", {})]


FORMATTING = "Unexpected exception formatting exception"  # said by IPython, of an error that it cannot show
CellResults = dict[str, CellResult]  # by cell id
UNFINISHED = CellResult("not reached", "not reached: the time for the whole lab was over", 0.0)


def run(notebook: NotebookNode, *, wall_s: float = 600, look: Callable[[CellResults], object] = len) -> CellResults:
    """The results by cell id, in a kernel of this interpreter. A cell that is not in them was never finished.

    The notebook runs in an empty folder of its own, so no conftest, module or data beside it is read. After
    `wall_s` for the whole run it is ended with its kernel, and the cells that finished are returned. Meanwhile `look`
    is shown now and then what there is of them.
    """
    with tempfile.TemporaryDirectory(prefix="workbook-") as name:
        folder = Path(name)
        nb.write(folder / "lab.ipynb", notebook)
        write_kernelspec(folder, [sys.executable, "-m", ASKING_KERNEL, "-f", "{connection_file}"])
        command = [sys.executable, "-m", "pytest", *arguments(folder)]
        log = _run_pytest(command, folder, wall_s, lambda: look(results(folder / "results.jsonl")))
        found = results(folder / "results.jsonl")
        if not_run(found):
            raise RuntimeError(f"nbval could not run a cell:\n{log}")
    return found


def write_kernelspec(folder: Path, command: list[str]) -> None:
    """The kernel that `arguments(folder)` names: it is found where JUPYTER_PATH is `folder`."""
    spec = folder / "kernels" / KERNEL
    spec.mkdir(parents=True)
    kernel = {"argv": command, "display_name": KERNEL, "language": "python", "interrupt_mode": "message"}
    (spec / "kernel.json").write_text(json.dumps(kernel))


def arguments(folder: Path) -> list[str]:
    """pytest's arguments that run lab.ipynb in `folder` and report to results.jsonl there."""
    plugins = ["-p", "nbval.plugin", "-p", "helpers.grading.sandbox.nbval_plugin", "-p", "no:cacheprovider"]
    plugins += ["-p", "no:unraisableexception", "-p", "no:threadexception"]  # which collect garbage ten times over
    return [
        *("-q", "--color=no", "--noconftest", "-c", os.devnull, "--rootdir", str(folder), *plugins),
        *(f"--workbook-results={folder / 'results.jsonl'}", "--nbval", f"--nbval-cell-timeout={NO_LIMIT_S}"),
        f"--nbval-kernel-name={KERNEL}",
        str(folder / "lab.ipynb"),
    ]


def results(path: Path) -> CellResults:
    """The cells reported in `path` so far, the last word about each; a line cut short is left out."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        key, outputs = row.pop("cell"), tuple(row.pop("outputs"))
        found[key] = CellResult(**row, outputs=outputs)
    return found


def not_run(found: CellResults) -> bool:
    """True when nothing is known about the notebook: no cell was reported, or there was no kernel."""
    return not found or any(result.outcome == NO_KERNEL for result in found.values())


def pytest_environment(*dropped: str) -> dict[str, str]:
    """This process's environment with `helpers`, without pytest's and the course's variables and those `dropped`.

    `dropped` are beginnings of names.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "WORKBOOK_", *dropped))}
    paths = os.pathsep.join(filter(None, [str(HELPERS_ROOT), os.environ.get("PYTHONPATH")]))
    return kept | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": paths}


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a learner's code may send it, too
        return None


def _run_pytest(command: list[str], folder: Path, wall_s: float, look: Callable[[], object]) -> str:
    """Run to the end or to the time limit; the log. Where we are ended by Ctrl-C, pytest and its kernel are as well."""
    env = pytest_environment() | {"JUPYTER_PATH": str(folder)}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    # In a process group of its own, so that a terminal's Ctrl-C is not passed on twice: the second would end pytest
    # before it has ended its kernel.
    process = subprocess.Popen(command, cwd=folder, env=env, text=True, stdout=pipe, stderr=both, process_group=0)
    try:
        return _log(process, wall_s, look)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as ended:
        process.send_signal(signal.SIGINT)  # pytest then ends its kernel, which has a session of its own
        try:
            log = process.communicate(timeout=15)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            log = process.communicate()[0]
        if isinstance(ended, KeyboardInterrupt):
            raise
        return log


def _log(process: subprocess.Popen[str], wall_s: float, look: Callable[[], object]) -> str:
    """What it printed until its end; looks on as often as a person does. TimeoutExpired after `wall_s`."""
    end = time.monotonic() + wall_s
    while True:
        left_s = end - time.monotonic()
        try:
            log = process.communicate(timeout=min(LOOK_S, left_s))[0]
        except subprocess.TimeoutExpired:
            if left_s <= LOOK_S:
                raise
            look()
            continue
        look()
        return log
