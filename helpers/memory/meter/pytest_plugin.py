"""A memory budget as a pytest fixture, for any project's CI: a test fails when a block of code needs more than it did.

    def test_step(memory_budget):
        with memory_budget(mib=120) as spent:
            train_step()

The peak is that of storages which the block allocates (and of the models in `holding`), rounded to 512 bytes as CUDA
counts them, so a CPU runner guards what a GPU will use. On a GPU the allocator's own peak counts where it is higher.
`--memory-report` prints every block's peak beside its budget; `--memory-baseline FILE` fails a run in which a peak has
grown since the file was written (`baseline`). pytest finds the plugin where this package is installed; where it merely
lies on the path: pytest_plugins = ["helpers.memory.meter.pytest_plugin"] in your top conftest.py.
Imports memory; torch only when a budget is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import pytest

from ...catalog.errors import WorkbookError
from ..breakdown import format_bytes
from . import memory_budget as guard
from .memory_budget import Report
from .peak_baseline import growth, read_baseline, write_baseline

if TYPE_CHECKING:
    from torch import nn

PROPERTY = "memory_budget"
Budget = Callable[..., AbstractContextManager[Report]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("memory budget")
    group.addoption("--memory-report", action="store_true", help="print every block's peak and budget")
    group.addoption("--memory-baseline", type=Path, metavar="FILE", help="fail where a peak has grown since this file")
    group.addoption("--memory-baseline-update", action="store_true", help="write this run's peaks to that file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "memory_budget(mib): fail the test when its peak of tensors passes mib MiB")


@pytest.fixture
def memory_budget(request: pytest.FixtureRequest) -> Budget:
    """`memory_budget(mib=120, holding=(model,))`: a context manager; the test fails when the block needs more.

    Yields a Report, whose `peak_bytes` is known after the block. An exception inside the block passes through as it is.
    WorkbookError for a budget that is no positive number.
    """
    return lambda mib, holding=(): _Budget(request.node, mib, holding)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("memory_budget")
    if marker is None:
        return (yield)
    if marker.kwargs.keys() - {"mib"} or len(marker.args) + len(marker.kwargs) != 1:
        what = f"the marker memory_budget has {marker.args} {marker.kwargs}"
        problem = WorkbookError(what, "one size in MiB", "write @pytest.mark.memory_budget(mib=120)")
        pytest.fail(str(problem), pytrace=False)
    with _Budget(item, *marker.args, **marker.kwargs):
        return (yield)


class _Budget:
    """The block as a context manager that leaves no frame of its own in a failure."""

    def __init__(self, item: pytest.Item, mib: float, holding: Iterable[nn.Module] | nn.Module = ()) -> None:
        self.item, self.block = item, guard.memory_budget(mib, holding)

    def __enter__(self) -> Report:
        self.spent = self.block.__enter__()
        return self.spent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.block.__exit__(kind, error, traceback)
        if kind is not None:
            return
        spent = self.spent
        self.item.user_properties.append((PROPERTY, [spent.peak_bytes, spent.budget_bytes]))
        if not spent.fits:
            pytest.fail(str(spent), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of --memory-report; the figures travel in the reports, so it is complete under pytest-xdist too."""
    if not terminalreporter.config.getoption("memory_report"):
        return
    rows = sorted(_rows(terminalreporter))
    terminalreporter.section("memory budgets")
    if not rows:
        terminalreporter.write_line("no test used memory_budget")
        return
    width = max(len(name) for name, _, _ in rows)
    terminalreporter.write_line(f"{'test':<{width}}  {'peak':>11}  {'budget':>11}")
    for name, peak, budget in rows:
        row = f"{name:<{width}}  {format_bytes(peak):>11}  {format_bytes(budget):>11}  {_remark(peak, budget)}"
        terminalreporter.write_line(row.rstrip())


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """The baseline is compared once, by the process that has all reports; growth is told and fails the run."""
    path: Path | None = session.config.getoption("memory_baseline")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if path is None or reporter is None or hasattr(session.config, "workerinput"):
        return (yield)
    found: dict[str, int] = {}
    for name, peak, _ in _rows(reporter):
        found[name] = max(peak, found.get(name, 0))
    try:
        told = _compare(path, found, session.config.getoption("memory_baseline_update"))
    except WorkbookError as error:
        told = [str(error)]
    if told:
        reporter.section("memory baseline", red=True)
        reporter.write_line("\n".join(told))
        session.exitstatus = max(session.exitstatus, pytest.ExitCode.TESTS_FAILED)
    return (yield)


def _compare(path: Path, found: dict[str, int], update: bool) -> list[str]:
    """What has grown; nothing where the file is written instead."""
    if update:
        write_baseline(path, read_baseline(path) if path.exists() else {}, found)
        return []
    return growth(read_baseline(path), found)


def _rows(reporter: pytest.TerminalReporter) -> Iterator[tuple[str, int, int]]:
    """The test, its peak and its budget, from the report of each call."""
    for report in chain.from_iterable(reporter.stats.values()):
        if getattr(report, "when", "") == "call":
            yield from ((report.nodeid, *sizes) for name, sizes in report.user_properties if name == PROPERTY)


def _remark(peak_bytes: int, budget_bytes: int) -> str:
    if peak_bytes > budget_bytes:
        return "over"
    return "slack: over twice the peak" if budget_bytes > 2 * peak_bytes else ""
