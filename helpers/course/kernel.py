"""One fresh Jupyter kernel, started as nbval starts it, that runs cells and hands back their outputs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode, v4

RunCell = Callable[[str], list[NotebookNode]]


def environment(seed: str = "0") -> dict[str, str]:
    """This process's environment as the notebooks' stored outputs assume it.

    `PYTEST_CURRENT_TEST`: ipykernel captures output differently under pytest, so we store what it gives so.
    The course's own variables are reset: outputs for another model or seed would fail everywhere else.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKBOOK_")}
    return kept | {"PYTEST_CURRENT_TEST": "workbook", "WORKBOOK_SEED": seed}


@contextmanager
def kernel(folder: Path, *, seed: str = "0", cell_timeout_s: int = 300) -> Iterator[RunCell]:
    """A function that runs one cell's source in a kernel of this interpreter whose folder is `folder`.

    It returns the outputs, streams joined; an exception in the cell is an output of type `error`, not raised.
    A dead or hung kernel is one too (`KernelDied`, `TimedOut`), and after it every call returns the same.
    """
    client = NotebookClient(
        v4.new_notebook(cells=[v4.new_code_cell()]),
        km=_manager(),
        timeout=cell_timeout_s,
        allow_errors=True,
        coalesce_streams=True,
        shutdown_kernel="immediate",
    )
    broken: list[NotebookNode] = []

    def run(source: str) -> list[NotebookNode]:
        if broken:
            return list(broken)
        cell = v4.new_code_cell(source)
        try:  # store_history=False as in nbval, so that `Out`, `_` and a trailing `;` behave alike
            client.execute_cell(cell, 0, execution_count=1, store_history=False)
        except DeadKernelError:
            broken.append(_error("KernelDied", "the kernel died while it ran this cell"))
        except CellTimeoutError:
            broken.append(_error("TimedOut", f"the cell ran for more than {cell_timeout_s} seconds"))
        return list(broken) or cell.outputs

    # The kernel process's own streams: start-up warnings and what C code writes, which nbval does not see.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # cleanup_kc: nbclient leaves a manager that it was given, and its kernel, running unless told.
    with client.setup_kernel(cwd=str(folder), env=environment(seed), cleanup_kc=True, **quiet):
        yield run


def error_in(outputs: list[NotebookNode]) -> NotebookNode | None:
    """The exception among a cell's outputs, or None."""
    return next((output for output in outputs if output.output_type == "error"), None)


def _manager() -> AsyncKernelManager:
    """nbval's own: its `--nbval-current-env` is this interpreter, whatever kernelspecs the user has."""
    from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

    return AsyncKernelManager(kernel_name=CURRENT_ENV_KERNEL_NAME, kernel_spec_manager=NbvalKernelspecManager())


def _error(name: str, message: str) -> NotebookNode:
    return v4.new_output("error", ename=name, evalue=message, traceback=[f"{name}: {message}"])
