"""A process opts in, and the watcher sees its counters: fresh ones, whole ones, and only those of its user."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.catalog import WorkbookError
from helpers.watch import TorchCounters, publish_counters, read_counters
from helpers.watch.torch_counters import STALE_S, torch_counters

FOUND = TorchCounters(os.getpid(), "GPU-a", 1024, 2048, 1536, 0, 0)


def test_what_a_process_publishes_is_read_and_goes_when_it_stops(tmp_path: Path) -> None:
    writer = publish_counters(folder=tmp_path / "new", counters=lambda: [FOUND])
    assert read_counters(tmp_path / "new") == [FOUND]
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    writer.stop()
    assert list((tmp_path / "new").iterdir()) == []


def test_the_file_follows_the_counters(tmp_path: Path) -> None:
    found = [FOUND]
    writer = publish_counters(interval_s=0.01, folder=tmp_path, counters=lambda: found)
    found[0] = TorchCounters(os.getpid(), "GPU-a", 4096, 8192, 4096, 1, 0)
    deadline = time.monotonic() + 10
    while read_counters(tmp_path) != found and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_counters(tmp_path) == found
    writer.stop()


def test_a_process_without_cuda_publishes_nothing_and_does_not_fail(tmp_path: Path) -> None:
    writer = publish_counters(folder=tmp_path)
    assert read_counters(tmp_path) == []
    assert writer.path.exists()
    writer.stop()


class Cuda:
    """torch.cuda of a process on a machine with two cards."""

    def __init__(self, initialized: bool) -> None:
        self.initialized, self.asked = initialized, 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.initialized

    def device_count(self) -> int:
        self.asked += 1
        return 2

    def memory_stats(self, index: int) -> dict[str, int]:
        return {"allocated_bytes.all.current": 100 + index, "reserved_bytes.all.current": 200, "num_ooms": 1}

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(uuid=["GPU-a", "b"][index])


def test_counters_are_those_of_every_card_with_the_uuid_that_nvml_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda", Cuda(initialized=True))
    found = torch_counters()
    assert [(one.uuid, one.allocated_bytes, one.reserved_bytes, one.ooms) for one in found] == [
        ("GPU-a", 100, 200, 1),
        ("GPU-b", 101, 200, 1),
    ]


def test_asking_does_not_initialize_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(initialized=False)
    monkeypatch.setattr("torch.cuda", cuda)
    assert torch_counters() == []
    assert cuda.asked == 0


def test_counters_are_stale_after_ten_seconds(tmp_path: Path) -> None:
    writer = publish_counters(folder=tmp_path, counters=lambda: [FOUND])
    written = json.loads(writer.path.read_text())["time_s"]
    assert read_counters(tmp_path, written + STALE_S - 1) == [FOUND]
    assert read_counters(tmp_path, written + STALE_S + 1) == []
    writer.stop()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"time_s": "now", "counters": []}',
        json.dumps({"time_s": 100, "counters": [{"pid": 1}]}),
        json.dumps({"time_s": 100, "counters": [{**asdict(FOUND), "pid": "1"}]}),
        json.dumps({"time_s": 100, "counters": [{**asdict(FOUND), "more": 1}]}),
    ],
)
def test_a_file_that_is_broken_hides_no_other(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.json").write_text(text)
    (tmp_path / "2.json").write_text(json.dumps({"time_s": 100, "counters": [asdict(FOUND)]}))
    assert read_counters(tmp_path, 100) == [FOUND]


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert read_counters(tmp_path / "none") == []


def test_a_link_that_another_user_laid_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.watch.torch_counters._user", lambda: os.getuid() + 1)
    with pytest.raises(WorkbookError, match="belongs to another user"):
        publish_counters(folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkbookError, match="a folder to write to"):
        publish_counters(folder=tmp_path / "file" / "below")


@pytest.mark.parametrize("interval_s", [0, -1, True, "1", float("nan"), 60])
def test_an_interval_that_is_none(tmp_path: Path, interval_s: object) -> None:
    with pytest.raises(WorkbookError, match="interval_s is"):
        publish_counters(interval_s, folder=tmp_path)


def test_a_full_disk_costs_a_sample_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = publish_counters(folder=tmp_path, counters=lambda: [FOUND])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    writer.write()
    assert read_counters(tmp_path) == [FOUND]
    writer.stop()
