"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from helpers.catalog.errors import WorkbookError
from helpers.grading.sandbox import levels
from helpers.lesson.ranks import Ranks, kept
from tests import lanes, needs

settings.register_profile("workbook", deadline=None)  # no test asserts a wall-clock time
settings.load_profile("workbook")


_skipped: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped", action="store_true", help="run what the last run skipped for want of a program")


@pytest.hookimpl(tryfirst=True)  # before -m chooses by the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lanes.assign(items, whole=not any("::" in name for name in config.invocation_params.args))
    if config.getoption("--skipped"):
        before = set(config.cache.get(needs.SKIPPED, []))
        items[:] = [item for item in items if item.nodeid in before]


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs.look_for(item)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if needs.was_skipped(report):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if session.config.getoption("--skipped") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK  # nothing was skipped
    if not hasattr(session.config, "workerinput") and not session.config.getoption("--skipped"):
        session.config.cache.set(needs.SKIPPED, _skipped)


@pytest.fixture(scope="session", autouse=True)
def _sandbox_or_skip() -> Iterator[None]:
    """Whoever grades asks `levels.best` for a sandbox: where this machine has none, the test is skipped."""
    best, fails = levels.best, levels._fails

    def best_or_skip(trust_learners: bool = False) -> levels.SandboxLevel:
        try:
            return best(trust_learners)
        except WorkbookError:
            if reason := fails(levels.BUBBLEWRAP):
                needs.missing(f"bubblewrap for a sandbox ({reason})")
            raise

    levels.best = best_or_skip
    yield
    levels.best = best


def pytest_collection_finish() -> None:
    """What was imported is no garbage: a measured step, which collects garbage first, need not look through it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same for what the tests of a file have imported."""
    if nextitem and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def _four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def _two_ranks() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture
def ranks4(_four_ranks: Ranks) -> Ranks:
    """Four ranks that keep nothing; started once for all tests of a process, and anew after a test that broke them."""
    _four_ranks.run(kept.clear)
    return _four_ranks


@pytest.fixture
def ranks2(_two_ranks: Ranks) -> Ranks:
    """Two ranks that keep nothing."""
    _two_ranks.run(kept.clear)
    return _two_ranks
