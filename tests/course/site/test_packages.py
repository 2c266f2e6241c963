"""Pinned npm packages: what is not what was pinned is refused."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course.site import packages
from tests.house.tree import ROOT


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one pin, whose archive lies in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packages.cache_folder().mkdir(parents=True)
    with tarfile.open(packages.cache_folder() / "pyodide-1.0.0.tgz", "w:gz") as archive:
        entry = tarfile.TarInfo("package/a.js")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"one"))
    digest = hashlib.sha512((packages.cache_folder() / "pyodide-1.0.0.tgz").read_bytes()).digest()
    (tmp_path / packages.PINS).write_text(f"# pins\npyodide==1.0.0 sha512-{base64.b64encode(digest).decode()}\n")
    return tmp_path


def test_a_cached_archive_needs_no_network(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert packages.files_of(root, "pyodide", ["a.js"]) == {"a.js": b"one"}
    assert packages.is_cached(root, "pyodide")


def test_an_archive_with_another_digest_is_refused(root: Path) -> None:
    path = packages.cache_folder() / "pyodide-1.0.0.tgz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(WorkbookError, match="SHA-512"):
        packages.files_of(root, "pyodide", ["a.js"])


def test_a_file_that_is_not_in_it_is_told(root: Path) -> None:
    with pytest.raises(WorkbookError, match=r"holds no b\.js"):
        packages.files_of(root, "pyodide", ["b.js"])


def test_without_npm_the_cache_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages.cache_folder() / "pyodide-1.0.0.tgz").unlink()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(WorkbookError, match="no npm"):
        packages.files_of(root, "pyodide", ["a.js"])


def test_npm_that_fails_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages.cache_folder() / "pyodide-1.0.0.tgz").unlink()
    npm = root / "npm"
    npm.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}:/usr/bin:/bin")
    with pytest.raises(WorkbookError, match="no such package"):
        packages.files_of(root, "pyodide", ["a.js"])
    assert not list(packages.cache_folder().iterdir())


def test_every_line_of_the_pins_is_read() -> None:
    lines = [line for line in (ROOT / packages.PINS).read_text().splitlines() if not line.startswith("#")]
    known = packages.pins(ROOT)
    assert len(lines) == len(known)
    assert {"pyodide", "mathjax", "minisearch", "axe-core"} == set(known)
