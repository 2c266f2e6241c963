"""Memory in any notebook: `%load_ext helpers.magic`, and then a cell that begins with `%%peak`.

    %%peak
    loss = model(ids, labels=ids).loss; loss.backward()

runs the cell and says what it took at most, beyond what was there before, and which tensors were live then.
`%%peak --budget 20GiB` raises AssertionError where that is more. Nothing else in the cell changes: names it sets are
set, what it displays is displayed. Imports memory, and torch once a cell is measured.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .catalog.errors import WorkbookError
from .memory.closed_form.breakdown import format_bytes
from .memory.meter.memory_budget import MAX_MIB, Report, memory_budget

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

BYTES = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext helpers.magic`."""

    def peak(line: str, cell: str) -> None:
        budget_bytes = budget_of(line)
        with memory_budget(MAX_MIB - 1) as spent:
            name = run(shell, cell)
        told = page(spent, name)
        if budget_bytes is not None and spent.peak_bytes > budget_bytes:
            over = (
                f"{format_bytes(spent.peak_bytes - budget_bytes)} more than the budget of {format_bytes(budget_bytes)}"
            )
            raise AssertionError(f"{told}\n{over}")
        print(told)

    shell.register_magic_function(peak, "cell", "peak")  # type: ignore[arg-type]  # a function, says its documentation


def budget_of(line: str) -> int | None:
    """Bytes behind `--budget`; None where the line is empty. WorkbookError for anything else.

    >>> budget_of("--budget 1.5GiB")
    1610612736
    """
    if not line.strip():
        return None
    match = re.fullmatch(r"--budget[ =]\s*([\d.]+)\s*([A-Za-z]+)", line.strip())
    unit = BYTES.get(match[2].upper()) if match else None
    if match is None or unit is None or match[1].count(".") > 1 or not float(match[1].strip(".") or 0):
        expected = "nothing, or --budget with a size in KiB, MiB, GiB, KB, MB or GB"
        raise WorkbookError(f"%%peak {line.strip()}", expected, "write %%peak --budget 20GiB")
    return round(float(match[1]) * unit)


def run(shell: InteractiveShell, cell: str) -> str:
    """Run a cell in the notebook's own names, and show its last value, as the notebook does; its file's name."""
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source)
    tree = ast.parse(source, name)
    is_shown = bool(tree.body) and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";")
    shown = [tree.body.pop()] if is_shown else []
    exec(compile(tree, name, "exec"), shell.user_ns)
    exec(compile(ast.Interactive(shown), name, "single"), shell.user_ns)
    return name


def page(spent: Report, name: str) -> str:
    """What a cell took, in words; lines are counted from the one with `%%peak`."""
    lines = [f"peak: {format_bytes(spent.peak_bytes)} beyond what was there before this cell"]
    if spent.largest:
        lines += ["largest live tensors at the peak:", *map(str, spent.largest)]
    if spent.unseen_bytes:
        lines.append(
            f"  {format_bytes(spent.unseen_bytes):>11}  that no operator returned: cuBLAS, temporaries in kernels"
        )
    mine = re.compile(rf"{re.escape(Path(name).name)}:(\d+)")
    return mine.sub(lambda at: f"line {int(at[1]) + 1}", "\n".join(lines))
