"""Allocator snapshots, explained; the file of `workbook explain-oom`, and the closed form beside it."""

import pickle

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device
from helpers.cli import main
from helpers.memory.allocator import MIB, alloc, free, read_snapshot
from helpers.memory.oom import explain_file, explain_snapshot

from ..allocator.snapshots import snapshot_of
from .oom_messages import REAL, now

GIB = 2**30
OOM = REAL["2.1, a little too much"][0]
FRAGMENTS = [step for at in range(20) for step in (alloc(f"a{at}", 30 * MIB), alloc(f"b{at}", 12 * MIB))]
FRAGMENTS += [free(f"a{at}") for at in range(20)]


def snapshot(steps, **limits):
    return read_snapshot(snapshot_of(steps, **limits))


def test_a_snapshot_that_is_full_fragmented_or_capped():
    full = [*FRAGMENTS[:40], alloc("big", 200 * MIB)]
    assert explain_snapshot(snapshot(full, capacity_bytes=900 * MIB)).reason == "full"
    pieces = [alloc("a", 300 * MIB), free("a"), alloc("kept", 100 * MIB), alloc("big", 250 * MIB)]
    raw = snapshot_of(pieces, capacity_bytes=400 * MIB)
    raw["device_traces"][0][-1]["device_free"] = 100 * MIB
    explained = explain_snapshot(read_snapshot(raw))
    assert explained.reason == "fragmented"
    assert {row.name: row.size_bytes for row in explained.rows}["largest hole"] == 200 * MIB
    assert "the largest hole is 200.00 MiB" in str(explained)
    raw = snapshot_of([alloc("a", 100 * MIB), alloc("big", 250 * MIB)], capacity_bytes=300 * MIB)
    raw["device_traces"][0][-1]["device_free"] = 10 * GIB
    assert explain_snapshot(read_snapshot(raw)).reason == "capped"


def test_a_snapshot_names_who_holds_what():
    steps = [alloc("gone", 70 * MIB), alloc("a", 300 * MIB), alloc("b", 40 * MIB), free("gone"), alloc("c", 60 * MIB)]
    raw = snapshot_of([*steps, alloc("big", 250 * MIB)], capacity_bytes=500 * MIB)
    lines = {300: 7, 40: 9, 60: 9}
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    assert [block["size"] // MIB for block in blocks if block["state"] == "inactive"] == [10]
    for block in blocks:
        line = lines.get(block["size"] // MIB, 0)
        block["frames"] = [{"filename": "/srv/job/net.py", "line": line, "name": "forward"}]
    blocks = explain_snapshot(read_snapshot(raw)).blocks
    assert [(row.name, row.size_bytes // MIB, row.note) for row in blocks] == [
        ("net.py:7 forward", 300, "1 block"),
        ("net.py:9 forward", 100, "2 blocks"),
    ]


def test_a_snapshot_later_than_its_failure_says_so():
    raw = snapshot_of([alloc("a", 100 * MIB), alloc("big", 250 * MIB)], capacity_bytes=300 * MIB)
    raw["device_traces"][0].append({"action": "free_completed", "addr": 5, "size": 1, "stream": 0, "frames": []})
    assert "1 allocations and frees follow the failure" in str(explain_snapshot(read_snapshot(raw)))


def test_a_snapshot_without_a_failure_or_without_anything():
    explained = explain_snapshot(snapshot([alloc("a", 100 * MIB)]))
    assert "no out-of-memory event" in str(explained)
    assert "What to change" not in str(explained)
    with pytest.raises(WorkbookError, match="no segments"):
        explain_snapshot(snapshot([]))


def test_the_card_gives_a_snapshot_what_it_does_not_hold():
    raw = snapshot_of([alloc("a", 100 * MIB), alloc("big", 15 * GIB)], capacity_bytes=14 * GIB)
    rows = {row.name: row.size_bytes for row in explain_snapshot(read_snapshot(raw), device("t4")).rows}
    assert rows["outside"] == rows["the card"] - rows["free"] - rows["reserved"]
    assert "outside" not in {row.name for row in explain_snapshot(read_snapshot(raw)).rows}


def test_a_file_is_a_log_or_a_snapshot(tmp_path):
    log, dump = tmp_path / "log.txt", tmp_path / "snapshot.pickle"
    log.write_text(OOM)
    steps = [alloc("a", 100 * MIB), alloc("b", 250 * MIB)]
    dump.write_bytes(pickle.dumps(snapshot_of(steps, capacity_bytes=300 * MIB)))
    assert explain_file(log).rows[0].size_bytes == 2 * GIB
    assert explain_file(dump).reason == "full"
    for encoding in ("utf-16", "utf-8-sig"):
        log.write_text(OOM, encoding=encoding)
        assert explain_file(log).reason == "full"


def test_with_a_setup_the_room_is_what_the_others_leave(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text(now("64.00 MiB", "23.64 GiB", "11.06 MiB", "19.10 GiB", "34.87 MiB"))
    explained = explain_file(log, setup=TrainSetup("llama-3.2-1b", micro_batch=4))
    assert explained.room_bytes == pytest.approx((23.64 - 4.50) * GIB, rel=1e-3)
    assert explained.fits
    assert all(fit.peak_bytes <= explained.room_bytes for fit in explained.fits if not fit.device)
    assert explained.fits[0].flags in str(explained)
    small = explain_file(log, setup=ServeSetup("llama-3.2-1b"))
    assert "so it fits. The run differs from the flags" in small.predicted
    log.write_text("Killed")
    with pytest.raises(WorkbookError, match="how large the card"):
        explain_file(log, setup=ServeSetup("llama-3.2-1b"))
    assert "0.06" not in explain_file(log, device("t4"), ServeSetup("llama-3.2-1b")).predicted


BAD_FILES = {
    "nothing": (b"", "no out-of-memory message"),
    "another error": (b"Traceback (most recent call last):\nKeyError: 3\n", "no out-of-memory message"),
    "no text": (bytes(range(256)) * 4, "no out-of-memory message"),
    "a pickle that is no snapshot": (pickle.dumps([1, 2]), "holds no segments"),
    "a pickle that names code": (pickle.dumps(print), "it names builtins.print"),
    "a cut pickle": (b"\x80\x04", "is no snapshot"),
}


@pytest.mark.parametrize(("content", "phrase"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_explains_nothing(content, phrase, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["explain-oom", str(path)]) == 2
    printed = capsys.readouterr()
    assert phrase in printed.err
    assert printed.out == ""


def test_the_limit_of_a_log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text(OOM)
    monkeypatch.setattr("helpers.memory.oom.file.MAX_LOG_BYTES", 10)
    with pytest.raises(WorkbookError, match="cut out the failure"):
        explain_file(path)
