"""What an attack leaves behind where the sandbox does not hold: files, processes, connections, marks.

Attacks write files called MARK, name their processes PROCESS_MARK and connect to PORT. A test looks for
each afterwards:

    with evidence.listener() as connections:
        grade(...)
    assert not connections
    assert not evidence.files(places) and not evidence.processes() and not evidence.shown_in(run_folder)
"""

from __future__ import annotations

import site
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.grading.corpus.lab import HIDDEN_MARK, SOLUTION_MARK

MARK = "corpus-was-here"
PROCESS_MARK = "corpus-survivor"  # 15 characters: Linux cuts a process's name there
PORT = 47_653
SECRET = "only-the-grader-knows"  # put it into the environment of the grader: no kernel may print it


def files(places: Iterable[Path] = ()) -> list[Path]:
    """Every file called MARK... in `places`, at any depth, and where attacks write on any machine; sorted."""
    root = Path(__file__).resolve().parents[3]
    usual = [Path.home(), Path.home() / ".ipython/profile_default/startup", Path(site.getusersitepackages())]
    usual += [Path(sys.prefix), root, *(root / name for name in ("helpers", "solutions", "tests"))]
    usual += [Path("/"), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path(tempfile.gettempdir())]
    found = {path for place in usual for path in place.glob(f"{MARK}*")}  # links are named, not followed
    found |= {path for place in places for path in place.rglob(f"{MARK}*")}
    return sorted(found)


def processes() -> list[int]:
    """The ids of the processes that an attack started and that still run."""
    return [one.pid for one in psutil.process_iter(["name"]) if one.info["name"] == PROCESS_MARK]


def shown_in(folder: Path) -> list[str]:
    """Each file below `folder` that holds a mark which no kernel may have seen, with the mark."""
    marks = (SOLUTION_MARK, HIDDEN_MARK, SECRET)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [f"{path}: {mark}" for path in paths for mark in marks if mark.encode() in path.read_bytes()]


@contextmanager
def listener(port: int = PORT) -> Iterator[list[str]]:
    """Listen on `port` of this machine; the list fills with the addresses that connected. OSError if it is taken."""
    connections: list[str] = []
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(0.1)
        ended = threading.Event()
        thread = threading.Thread(target=_accept, args=(server, connections, ended))
        thread.start()
        try:
            yield connections
        finally:
            ended.set()
            thread.join()


def _accept(server: socket.socket, connections: list[str], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            connection, address = server.accept()
        except TimeoutError:
            continue
        with connection:
            connections.append(str(address))
