"""What NVML cannot see: allocated and reserved bytes inside a process. The process opts in with one line.

    from helpers.watch import publish_counters
    publish_counters()                  # in your training script; a thread writes a small file every second

A file per process lies in a folder that only its user may open, and the watcher reads them. Nothing listens on a port,
CUDA is not initialized by asking, and a watcher that is not there costs the process nothing but the file. Counters of a
process that has ended without removing its file are ignored once they are `STALE_S` old. An out-of-memory error that
ends the process takes the counters with it: the log tells of that one, and `workbook explain-oom` reads it.
"""

from __future__ import annotations

import atexit
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..catalog.errors import WorkbookError, require_number

STALE_S = 10.0
_user: Callable[[], int] = getattr(os, "getuid", lambda: 0)  # Windows has no numbers for users; files there tell 0


@dataclass(frozen=True)
class TorchCounters:
    """PyTorch's counters for one card in one process; `peak_bytes` is the highest `allocated_bytes` so far.

    `alloc_retries` counts the times that the allocator freed its cache because memory was refused, `ooms` the errors.
    """

    pid: int
    uuid: str
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int
    alloc_retries: int
    ooms: int


def counters_folder() -> Path:
    """Where the files lie unless told otherwise: one folder for each user of the machine."""
    return Path(tempfile.gettempdir()) / f"workbook-watch-{_user()}"


def torch_counters() -> list[TorchCounters]:
    """This process's counters, one for each card that it uses; empty before CUDA is initialized. Imports torch."""
    import torch

    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats(index)
        found.append(
            TorchCounters(
                os.getpid(),
                f"GPU-{str(torch.cuda.get_device_properties(index).uuid).removeprefix('GPU-')}",
                stats.get("allocated_bytes.all.current", 0),
                stats.get("reserved_bytes.all.current", 0),
                stats.get("allocated_bytes.all.peak", 0),
                stats.get("num_alloc_retries", 0),
                stats.get("num_ooms", 0),
            )
        )
    return found


class CountersWriter:
    """A thread that writes this process's counters every `interval_s`, until `stop()` or the end of the process."""

    def __init__(self, folder: Path, interval_s: float, counters: Callable[[], list[TorchCounters]]) -> None:
        self.path, self._interval_s, self._counters = folder / f"{os.getpid()}.json", interval_s, counters
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="workbook-watch", daemon=True)

    def start(self) -> None:
        self.write()
        self._thread.start()
        atexit.register(self.stop)

    def write(self) -> None:
        """The file whole or not at all: written beside, then renamed. A full disk costs a sample, never the run."""
        text = json.dumps({"time_s": time.time(), "counters": [asdict(one) for one in self._counters()]})
        beside = self.path.with_suffix(".new")
        try:
            beside.write_text(text, encoding="utf-8")
            os.replace(beside, self.path)
        except OSError:
            beside.unlink(missing_ok=True)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self.write()


def publish_counters(
    interval_s: float = 1.0, folder: Path | None = None, counters: Callable[[], list[TorchCounters]] = torch_counters
) -> CountersWriter:
    """Let `workbook watch` see this process's counters; returns the writer, whose `stop()` ends it.

    WorkbookError for an interval that is no positive number, or a folder that cannot be made or belongs to others.
    """
    expected = f"seconds, above 0 and below {STALE_S / 2:g}"
    require_number("interval_s", interval_s, below=STALE_S / 2, expected=expected, do="pass interval_s=1")
    place = folder or counters_folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = place.lstat().st_uid  # of a link itself: another user may have laid it
    except OSError as error:
        raise WorkbookError(f"{place}: {error.strerror}", "a folder to write to", "pass folder=PATH") from None
    if owner != _user():
        raise WorkbookError(f"{place} belongs to another user", "a folder of your own", "pass folder=PATH")
    writer = CountersWriter(place, interval_s, counters)
    writer.start()
    return writer


def read_counters(folder: Path | None = None, now_s: float | None = None) -> list[TorchCounters]:
    """The fresh counters of all processes that opted in, by process and card; unreadable files are passed over."""
    now = time.time() if now_s is None else now_s
    paths = sorted((folder or counters_folder()).glob("*.json"))
    return [counters for path in paths for counters in _counters_in(path, now)]


def _counters_in(path: Path, now_s: float) -> Iterator[TorchCounters]:
    try:
        told: Any = json.loads(path.read_text(encoding="utf-8"))
        if abs(now_s - told["time_s"]) > STALE_S:
            return
        found = [TorchCounters(**one) for one in told["counters"]]
    except (OSError, ValueError, TypeError, KeyError):
        return
    whole = [field.name for field in fields(TorchCounters) if field.name != "uuid"]
    yield from (one for one in found if all(type(getattr(one, name)) is int for name in whole))
