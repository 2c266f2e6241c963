"""The Python that pages run: Pyodide's files, and this package's sources in one archive."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .packages import files_of

FOLDER = "python"
WASM, LIBRARY, LOCK = "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"
SCRIPTS = ("pyodide.mjs", "pyodide.asm.js")
SOURCES = "helpers.zip"
PACKED = ".packed"  # gzip under a name that no server unpacks or labels by itself; the worker does
ROOMS = ("catalog", "memory", "questions", "techniques", "watch", "lesson", "cli")
NEEDED_DATA = ("catalog/data/*.json", "lesson/data/*.json", "memory/oom/*.toml")
# What of the standard library no page imports: old code pages, servers, mail, tools of a terminal. 0.6 MB less.
UNUSED = (
    *("encodings/cp", "encodings/iso", "encodings/mac", "multiprocessing/", "_pyrepl/", "xmlrpc/", "wsgiref/"),
    *("doctest.py", "pydoc.py", "pdb.py", "optparse.py", "mailbox.py", "imaplib.py", "smtplib.py", "ftplib.py"),
    "poplib.py",
)
NAMES_IN_ZIPS = "encodings/cp437.py"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first date that a zip can hold: the same bytes whenever it is made


def runtime(root: Path) -> dict[str, bytes]:
    """The files of the folder python/ by name, and `manifest.json` with the bytes that each has when unpacked."""
    pyodide = files_of(root, "pyodide", (*SCRIPTS, WASM, LIBRARY, LOCK))
    loaded = {
        WASM: pyodide[WASM],
        LIBRARY: _short_library(pyodide[LIBRARY]),
        LOCK: _short_lock(pyodide[LOCK]),
        SOURCES: sources(root),
    }
    manifest = {name: len(content) for name, content in loaded.items()}
    found = {script: pyodide[script] for script in SCRIPTS}
    found |= {name: content for name, content in loaded.items() if name != WASM}
    found[WASM + PACKED] = gzip.compress(pyodide[WASM], compresslevel=9, mtime=0)
    found["manifest.json"] = json.dumps({"unpacked": manifest, "packed": [WASM]}, sort_keys=True).encode()
    return {f"{FOLDER}/{name}": content for name, content in sorted(found.items())}


def _short_lock(lock: bytes) -> bytes:
    """The list of packages that could be loaded, without any: pages use the standard library alone."""
    return json.dumps({**json.loads(lock), "packages": {}}, sort_keys=True).encode()


def _short_library(library: bytes) -> bytes:
    """The standard library without what is UNUSED."""
    with zipfile.ZipFile(io.BytesIO(library)) as whole:
        names = [name for name in whole.namelist() if name == NAMES_IN_ZIPS or not name.startswith(UNUSED)]
        return _zipped((name, whole.read(name)) for name in names if not name.endswith("/"))


def sources(root: Path) -> bytes:
    """The package's modules and data that pages use, as a zip."""
    paths = sorted(_modules(root / "helpers"))
    return _zipped((path.relative_to(root).as_posix(), path.read_bytes().replace(b"\r\n", b"\n")) for path in paths)


def _zipped(files: Iterable[tuple[str, bytes]]) -> bytes:
    """A zip of them, with the same bytes every time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _modules(package: Path) -> Iterator[Path]:
    yield package / "__init__.py"
    for room in ROOMS:
        yield from (package / room).rglob("*.py")
    for data in NEEDED_DATA:
        yield from package.glob(data)
