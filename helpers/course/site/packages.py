"""Pinned npm packages: fetched once by `npm pack`, kept in the cache, checked against their digests each time."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...catalog.errors import WorkbookError, require_name

PINS = "requirements-site.txt"
_PIN = re.compile(r"^([a-z-]+)==(\S+) sha512-(\S+)$", re.MULTILINE)
TIMEOUT_S = 300


@dataclass(frozen=True)
class Pin:
    """One package at one version; `sha512` is the base64 digest of its archive."""

    name: str
    version: str
    sha512: str

    @property
    def archive_name(self) -> str:
        return f"{self.name}-{self.version}.tgz"


def pins(root: Path) -> dict[str, Pin]:
    """Every package that requirements-site.txt pins, by name."""
    text = (root / PINS).read_text(encoding="utf-8")
    return {name: Pin(name, version, digest) for name, version, digest in _PIN.findall(text)}


def cache_folder() -> Path:
    """Where archives are kept: XDG_CACHE_HOME, else ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-memory-workbook"


def files_of(root: Path, name: str, wanted: Iterable[str]) -> dict[str, bytes]:
    """The bytes of `wanted` files of the package called `name`, by path. WorkbookError for a missing one."""
    known = pins(root)
    path = archive(known[require_name("pinned package", name, known)])
    found = {}
    with tarfile.open(path) as package:
        for file in wanted:
            try:
                member = package.extractfile(f"package/{file}")
            except KeyError:
                member = None
            if member is None:
                raise WorkbookError(f"{path.name} holds no {file}", "the files of the pinned version", f"check {PINS}")
            found[file] = member.read()
    return found


def archive(pin: Pin) -> Path:
    """The package's archive in the cache, fetched there first if it is not. WorkbookError where it cannot be had."""
    path = cache_folder() / pin.archive_name
    if not path.is_file():
        _fetch(pin, path)
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    if digest != pin.sha512:
        what = f"{path} has the SHA-512 digest {digest[:12]}…"
        raise WorkbookError(what, f"{pin.sha512[:12]}…, as {PINS} pins it", "delete the file, and run this again")
    return path


def is_cached(root: Path, name: str) -> bool:
    """Whether the package needs no network."""
    return (cache_folder() / pins(root)[name].archive_name).is_file()


def _fetch(pin: Pin, path: Path) -> None:
    """Into the cache whole or not at all: it is fetched beside, then renamed."""
    npm = shutil.which("npm")
    if npm is None:
        expected, do = f"npm, to fetch {pin.name} {pin.version} once", "install Node.js, which brings npm: nodejs.org"
        raise WorkbookError("no npm on the PATH", expected, do)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [npm, "pack", f"{pin.name}@{pin.version}", "--silent", "--pack-destination", folder]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise _unfetched(pin, f"no answer within {TIMEOUT_S} s") from None
        fetched = Path(folder) / pin.archive_name
        if done.returncode or not fetched.is_file():
            raise _unfetched(pin, (done.stderr.strip().splitlines() or ["npm failed"])[0])
        os.replace(fetched, path)


def _unfetched(pin: Pin, why: str) -> WorkbookError:
    what = f"npm cannot fetch {pin.name} {pin.version}: {why}"
    return WorkbookError(what, "a network, the first time", f"put {pin.archive_name} into {cache_folder()}")
