"""Memory in any notebook: `%load_ext helpers.magic`, and then a cell that begins with `%%peak`.

    %%peak
    loss = model(ids, labels=ids).loss; loss.backward()

runs the cell and says what it took at most, beyond what was there before, and which tensors were live then.
`%%peak --budget 20GiB` raises AssertionError where that is more; `%%peak --trace` predicts it and computes nothing, and
`%%peak --trace --gpu h100` predicts it for a card (`predict`). Nothing else in the cell changes: names it sets are
set, what it displays is displayed. Imports memory, and torch once a cell is measured.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from ..catalog.devices import device
from ..catalog.errors import WorkbookError
from ..memory.breakdown import format_bytes
from ..memory.meter.memory_budget import MAX_MIB, Report, memory_budget

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

BYTES = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Called by `%load_ext helpers.magic`."""

    def peak(line: str, cell: str) -> None:
        asked = asked_of(line)
        if asked.traced:
            from .predict import predict

            peak_bytes, told = predict(shell, cell, asked.gpu)
        else:
            with memory_budget(MAX_MIB - 1) as spent:
                run(shell, cell)
            peak_bytes, told = spent.peak_bytes, page(spent)
        if asked.budget_bytes is not None and peak_bytes > asked.budget_bytes:
            over = format_bytes(peak_bytes - asked.budget_bytes)
            raise AssertionError(f"{told}\n{over} more than the budget of {format_bytes(asked.budget_bytes)}")
        print(told)

    shell.register_magic_function(peak, "cell", "peak")  # type: ignore[arg-type]  # a function, says its documentation


class PeakLine(NamedTuple):
    """What the line of `%%peak` asks for."""

    budget_bytes: int | None = None
    traced: bool = False
    gpu: str | None = None


def asked_of(line: str) -> PeakLine:
    """The options behind `%%peak`; WorkbookError for anything else.

    >>> asked_of("--budget 1.5GiB --trace")
    PeakLine(budget_bytes=1610612736, traced=True, gpu=None)
    """
    rest, budget_bytes, gpu = line.strip(), None, None
    if match := re.search(r"--budget[ =]\s*([\d.]+)\s*([A-Za-z]+)", rest):
        budget_bytes, rest = _size(line, match[1], match[2]), rest.replace(match[0], "")
    if match := re.search(r"--gpu[ =]\s*(\S+)", rest):
        gpu, rest = device(match[1]).name, rest.replace(match[0], "")
    traced = bool(re.search(r"--trace\b", rest))
    if re.sub(r"--trace\b", "", rest).strip() or (gpu and not traced):
        raise _misspelt(line)
    return PeakLine(budget_bytes, traced, gpu)


def _size(line: str, number: str, unit: str) -> int:
    size = BYTES.get(unit.upper())
    if size is None or number.count(".") > 1 or not float(number.strip(".") or 0):
        raise _misspelt(line)
    return round(float(number) * size)


def _misspelt(line: str) -> WorkbookError:
    expected = "nothing, --budget with a size in KiB, MiB, GiB, KB, MB or GB, --trace, or --trace --gpu with a card"
    return WorkbookError(f"%%peak {line.strip()}", expected, "write %%peak --budget 20GiB, or %%peak --trace")


def run(shell: InteractiveShell, cell: str) -> None:
    """Run a cell in the notebook's own names, and show its last value, as the notebook does."""
    source = shell.transform_cell(cell)
    name = shell.compile.cache(source)
    tree = ast.parse(source, name)
    is_shown = bool(tree.body) and isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";")
    shown = [tree.body.pop()] if is_shown else []
    exec(compile(tree, name, "exec"), shell.user_ns)
    exec(compile(ast.Interactive(shown), name, "single"), shell.user_ns)


def page(spent: Report) -> str:
    """What a cell took, in words, and what stands in the lines that made it."""
    lines = [f"peak: {format_bytes(spent.peak_bytes)} beyond what was there before this cell"]
    if spent.largest:
        lines += ["largest live tensors at the peak:", *map(str, spent.largest)]
    if spent.unseen_bytes:
        lines.append(
            f"  {format_bytes(spent.unseen_bytes):>11}  that no operator returned: cuBLAS, temporaries in kernels"
        )
    return "\n".join(lines)
