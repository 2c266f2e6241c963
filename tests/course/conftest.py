"""One built and released example lab per session, copied for each test that changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.course.build import build
from helpers.course.release import release
from tests.course.example_lab import example_lab, save


@pytest.fixture(scope="session")
def built_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A course whose one worked lab, 05_numbers, is built and released. Do not change it."""
    root = tmp_path_factory.mktemp("course")
    save(example_lab(), root / "solutions/05_numbers.ipynb")
    assert build(["05"], root) == 0
    assert release(root) == 0
    return root


@pytest.fixture
def course(built_root: Path, tmp_path: Path) -> Path:
    """A copy of `built_root` of the test's own."""
    return Path(shutil.copytree(built_root, tmp_path / "course"))
