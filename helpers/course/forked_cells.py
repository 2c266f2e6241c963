"""Many answers tried on one lab for the price of one: its cells run once, then each answer in a fork of that process.

    ran = run_in_forks(folder, [setup, answer, check], [Trial((wrong_answer, check)), Trial((other_answer, check))])
    ran.before      # how setup, answer and check went, up to the first that failed
    ran.trials      # how the cells of each trial went, in a fork that had run all of `before`

No Jupyter kernel is started: a fork takes no thread of its parent along, and a kernel lives by its threads. The cells
run in IPython's own shell, with one thread of torch's. `Ranks` are forks as well, anew for every call: they keep
nothing from one call to the next, which no lab asks of them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple

from ..catalog.errors import WorkbookError

AT_ONCE = 2  # trials
SETTLE_S = 0.3  # after a rank has failed: the others may fail too, or wait for ever for the one that did


class CellRun(NamedTuple):
    """One cell: what it printed, and its exception as 'Name: words', '' where there was none.

    A cell that did not come to its end has 'TimedOut: ...' or 'ProcessDied: ...'.
    """

    printed: str
    error: str = ""


RunCell = Callable[[str], CellRun]


class Trial(NamedTuple):
    """Cells to run in a fork. It is over after the cell whose error contains `until`, where that says something."""

    cells: tuple[str, ...]
    until: str = ""


class ForkedRun(NamedTuple):
    """How the cells before the trials went, and the cells of each trial; no trial where one before them failed."""

    before: tuple[CellRun, ...]
    trials: tuple[tuple[CellRun, ...], ...]


def run_in_forks(
    folder: Path, before: Sequence[str], trials: Sequence[Trial] = (), *, seed: str = "0", limit_s: float = 60
) -> ForkedRun:
    """Run the cells `before` in a new process whose folder is `folder`, then each of `trials` in a fork of it.

    A trial goes on after a cell that raised, as a notebook's later cells do, for `limit_s` seconds at most.
    WorkbookError when the process itself fails.
    """
    from .kernel import environment  # not in the new process: Jupyter's client takes a second to import

    threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # a fork takes no other thread along
    fixed = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg", "GLOO_SOCKET_IFNAME": "lo"}
    request = {"before": list(before), "trials": list(trials), "limit_s": limit_s}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request),
        env=environment(seed) | threads | fixed | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        expected = "a process that runs every cell"
        do = "run the notebook's cells one by one, and see which ends Python"
        raise WorkbookError(f"the cells' process ended with status {done.returncode}: {words}", expected, do)
    found = json.loads(done.stdout)
    return ForkedRun(_cell_runs(found["before"]), tuple(map(_cell_runs, found["trials"])))


def _cell_runs(rows: list[list[str]]) -> tuple[CellRun, ...]:
    return tuple(CellRun(*row) for row in rows)


def _main() -> None:
    """In the new process: the request on stdin, the answer on stdout, which the cells do not get to see."""
    request = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from ..lesson import ranks

    vars(ranks)["Ranks"] = ForkedRanks
    run = _shell()
    before = list(_run_until(lambda cell: cell.error, run, request["before"]))
    trials = [] if before and before[-1].error else [Trial(*trial) for trial in request["trials"]]
    json.dump({"before": before, "trials": _tried(run, trials, request["limit_s"])}, answer)
    answer.close()


def _shell() -> RunCell:
    """A function that runs one cell as a notebook's kernel does, and keeps its prints."""
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance(ast_node_interactivity="none")  # a last expression is shown, not printed
    shell.display_pub = CapturingDisplayPublisher()
    vars(shell).update(showtraceback=_silent, showsyntaxerror=_silent)  # they print; the error itself is in the result

    def run(source: str) -> CellRun:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = shell.run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        return CellRun(printed.getvalue(), f"{type(error).__name__}: {error}" if error else "")

    return run


def _silent(*_: object, **__: object) -> None:
    """In the place of what prints a traceback."""


def _run_until(is_last: Callable[[CellRun], object], run: RunCell, cells: Sequence[str]) -> Iterator[CellRun]:
    for source in cells:
        yield (cell := run(source))
        if is_last(cell):
            return


def _tried(run: RunCell, trials: Sequence[Trial], limit_s: float) -> list[list[CellRun]]:
    """How the cells of each trial went, each in a fork, two at a time."""
    waiting, found = list(enumerate(trials)), {}
    running: list[tuple[int, _Fork]] = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number, trial = waiting.pop(0)
            running.append((number, _Fork(run, trial, limit_s)))
        soonest = min(fork.end for _, fork in running)
        wait([fork.pipe for _, fork in running], max(0.0, soonest - time.monotonic()))
        for number, fork in [pair for pair in running if pair[1].is_over()]:
            running.remove((number, fork))
            found[number] = fork.close()
    return [found[number] for number in range(len(trials))]


class _Fork:
    """One trial, in a process group of its own, which is ended whole."""

    def __init__(self, run: RunCell, trial: Trial, limit_s: float) -> None:
        self.trial, self.limit_s, self.end = trial, limit_s, time.monotonic() + limit_s
        self.pipe, send = Pipe(duplex=False)
        self.child = os.fork()
        if self.child == 0:
            os.setsid()
            cells = _run_until(lambda cell: trial.until and trial.until in cell.error, run, trial.cells)
            _then_exit(lambda: send.send([tuple(cell) for cell in cells]))  # the shell's __main__ is not this module
        send.close()

    def is_over(self) -> bool:
        return self.pipe.poll(0) or time.monotonic() >= self.end

    def close(self) -> list[CellRun]:
        """How its cells went; all of them failed where the time was over or the process ended."""
        rows, error = None, f"TimedOut: more than {self.limit_s:g} seconds"
        if self.pipe.poll(0):
            try:
                rows = self.pipe.recv()
            except EOFError:
                error = "ProcessDied: the process ended"
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        return [CellRun(*row) for row in rows or [("", error)] * len(self.trial.cells)]


def _then_exit(function: Callable[[], object]) -> None:
    """In a fork: do it and end this process, without the clean-up that belongs to the one that forked it."""
    gc.freeze()  # what the fork was given is looked at by no collection, which would copy its pages
    try:
        function()
    finally:
        sys.stderr.flush()
        os._exit(0)


class ForkedRanks:
    """In the place of `helpers.lesson.ranks.Ranks`: for every call `count` forks, joined by gloo."""

    def __init__(self, count: int, *, timeout_s: float = 60, **_: object) -> None:
        self.count, self.timeout_s = count, timeout_s

    def run(self, function: Callable, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank; what it returned, by rank. RuntimeError with a rank's error."""
        with tempfile.TemporaryDirectory(prefix="workbook-ranks-") as folder:
            call = functools.partial(function, *args, **kwargs)
            ranks = [self._fork(rank, f"{folder}/store", call) for rank in range(self.count)]
            try:
                answers = _answers([receive for _, receive in ranks], timeout_s or self.timeout_s)
            finally:
                for child, _ in ranks:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
        for rank, (error, _, _) in sorted(answers.items(), key=lambda item: item[1][0].startswith("Connection")):
            if error:
                raise RuntimeError(f"rank {rank} raised {error}")
        if len(answers) < self.count:
            raise RuntimeError(f"{self.count - len(answers)} ranks did not answer")
        for module in dict.fromkeys(name for _, names, _ in answers.values() for name in names):
            with contextlib.suppress(Exception):  # so that the next fork finds it imported
                importlib.import_module(module)
        return [pickle.loads(answers[rank][2]) for rank in range(self.count)]

    def restart(self) -> None:
        """Nothing: ranks are new for every call."""

    def stop(self) -> None:
        """Nothing: no rank outlives its call."""

    def __reduce__(self) -> Any:
        raise TypeError("the ranks themselves: a function that is sent runs on a rank and cannot call them")

    def _fork(self, rank: int, store: str, function: Callable[[], Any]) -> tuple[int, Connection]:
        receive, send = Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            receive.close()
            _then_exit(lambda: self._answer_and_wait(send, rank, store, function))
        send.close()
        return child, receive

    def _answer_and_wait(self, send: Connection, rank: int, store: str, function: Callable[[], Any]) -> None:
        """A rank that sends nothing is done before the others have connected: if it left, they would fail for it."""
        send.send(self._answer(rank, store, function))
        time.sleep(self.timeout_s)  # until it is killed, when all have answered

    def _answer(self, rank: int, store: str, function: Callable[[], Any]) -> tuple[str, list[str], bytes]:
        """On a rank: (its error or '', the modules that it imported, what it returned)."""
        import torch.distributed as dist

        there = set(sys.modules)
        try:
            dist.init_process_group("gloo", store=dist.FileStore(store, self.count), rank=rank, world_size=self.count)
            value = pickle.dumps(function())
            return "", [name for name in sys.modules if name not in there], value
        except Exception as error:
            return f"{type(error).__name__}: {error}", [], b""


def _answers(pipes: list[Connection], limit_s: float) -> dict[int, tuple[str, list[str], bytes]]:
    """By rank, the answers that came in time; after a rank's failure the others have a moment left."""
    found: dict[int, tuple[str, list[str], bytes]] = {}
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    end = time.monotonic() + limit_s
    while waiting and (ready := wait(list(waiting), max(0.0, end - time.monotonic()))):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            try:
                found[rank] = pipe.recv()
            except EOFError:
                found[rank] = "ProcessDied: it ended without an answer", [], b""
            if found[rank][0]:
                end = min(end, time.monotonic() + SETTLE_S)
    return found


if __name__ == "__main__":
    _main()
