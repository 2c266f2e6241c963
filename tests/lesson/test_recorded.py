"""Recordings in a notebook: prediction beside recording with its source, or one plain sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.lesson import recorded, recorded_table
from helpers.lesson.drawing import speeds
from helpers.memory.accuracy import recordings
from helpers.memory.accuracy.recordings import Entry, MeasuredWith, RecordedDevice, Recording, write
from helpers.memory.allocator import MIB, alloc, free, pack, read_snapshot
from helpers.memory.measure.levels import Sweep
from tests.memory.allocator.snapshots import snapshot_of

H100 = RecordedDevice("h100-80gb", "NVIDIA H100 80GB HBM3", "cuda", 85_061_827_297, (9, 0))
T4 = RecordedDevice("t4-16gb", "Tesla T4", "cuda", 2**34, (7, 5))
MADE = MeasuredWith("2.11.0", "13.0", "580.65", "0.1.0", "2026-11-30")
SOURCE = "NVIDIA H100 80GB HBM3, torch 2.11.0, driver 580.65, 2026-11-30"
NF4 = {"kind": "weights", "model": "llama-3-8b", "weights": "nf4"}
SIZES, RATES = (4096, 2**20, 2**26), (9e12, 5e12, 3e12)


def entry(experiment, label, quantity, unit, setup, *values, **more) -> Entry:
    return Entry(experiment, label, quantity, unit, setup, values, MADE, **more)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(recordings.ELSEWHERE, str(tmp_path))
    return tmp_path


def test_without_a_recording_nothing_is_printed_or_drawn(folder, printed):
    assert recorded("02/train-1b") == ()
    assert printed(recorded_table, "02/train-1b", "01/host-link") == ""
    assert printed(speeds.staircases, "Levels", recorded("01/bandwidth")) == ""
    assert speeds.staircases("Levels", recorded("01/bandwidth")) is None


def test_the_repository_has_no_recording_that_does_not_name_its_device():
    assert [path.stem for path in recordings.HERE.glob("*.json")] == [one.machine.name for one in recordings.read_all()]


def test_the_readme_says_whether_there_is_one():
    said = "No GPU has been recorded yet" in (recordings.HERE / "README.md").read_text(encoding="utf-8")
    assert said == (not list(recordings.HERE.glob("*.json")))


def test_prediction_beside_recording_with_the_source(folder, printed):
    """Llama-3-8B in NF4 is 6,027,761,664 bytes, 5.61 GiB, by the count of chapter 05."""
    write(
        Recording(
            H100,
            (
                entry("05/nf4-8b", "nf4", "held", "bytes", NF4, 6_000_000_000),
                entry("05/nf4-8b", "nf4", "allocated", "bytes", NF4, 6_100_000_000),
            ),
        ),
        folder,
    )
    assert printed(recorded_table, "05/nf4-8b").splitlines() == [
        SOURCE,
        f"  {'':<40}predicted by    predicted    recorded",
        "  nf4, held                               budget           5.61 GiB    5.59 GiB   +0.46 %",
        "  nf4, allocated                          –                            5.68 GiB",
    ]
    assert "allocated" not in printed(recorded_table, "05/nf4-8b", quantity="held")


def test_every_device_has_its_block_and_its_line_of_source_once(folder, printed):
    for machine in (T4, H100):
        write(
            Recording(
                machine,
                (
                    entry("05/nf4-8b", "nf4", "held", "bytes", NF4, 7),
                    entry("05/int8-8b", "int8", "held", "bytes", NF4, 7),
                ),
            ),
            folder,
        )
    assert [one.machine for one in recorded("05/nf4-8b")] == [H100, T4]
    assert [one.source for one in recorded("05/nf4-8b")] == [SOURCE, SOURCE.replace(H100.title, T4.title)]
    lines = printed(recorded_table, "05/nf4-8b", "05/int8-8b").splitlines()
    assert [line.partition(",")[0] for line in lines if line[0] != " "] == [H100.title, T4.title]
    assert len(lines) == 2 * 4


def test_a_datasheet_is_a_limit_of_which_a_share_is_reached(folder, printed):
    copy = {"kind": "copy", "size_bytes": 2**28, "ways": 1}
    roof = {"kind": "operator", "format": "bf16", "flops": 0, "read_bytes": 3_350_000_000, "written_bytes": 0}
    write(
        Recording(
            H100,
            (
                entry("01/host-link", "pinned", "bandwidth", "bytes/s", copy, 48e9),
                entry("01/roofline", "copy", "time", "s", roof, 1.25e-3),
            ),
        ),
        folder,
    )
    told = printed(recorded_table, "01/host-link", "01/roofline")
    assert "datasheet       64.0 GB/s   48.0 GB/s   75 % reached" in told
    assert "datasheet         1.00 ms     1.25 ms   80 % reached" in told


def test_a_curve_has_a_line_for_each_point(folder, printed):
    setup = {"kind": "kv cache", "model": "llama-3-8b", "kv": "bf16"}
    curve = entry("12/kv-long", "one user", "held", "bytes", setup, 2**28, 2**30, x=(2048, 8192), x_unit="tokens")
    write(Recording(H100, (curve,)), folder)
    lines = printed(recorded_table, "12/kv-long").splitlines()[2:]
    assert [line.split() for line in lines] == [
        ["one", "user,", "2,048", "tokens,", "held", "budget", "256.00", "MiB", "256.00", "MiB", "0.00", "%"],
        ["one", "user,", "8,192", "tokens,", "held", "budget", "1.00", "GiB", "1.00", "GiB", "0.00", "%"],
    ]


def test_a_history_is_replayed_before_the_readers_eyes(folder, printed):
    steps = [alloc("a", 30 * MIB), free("a"), alloc("b", 3 * MIB)]
    recordings.replace_whole(folder / "h100-80gb.snapshots" / "x.json.gz", pack(read_snapshot(snapshot_of(steps))))
    write(
        Recording(
            H100,
            (
                entry(
                    "03/snapshot-random",
                    "random",
                    "peak reserved",
                    "bytes",
                    {"kind": "snapshot"},
                    30 * MIB,
                    snapshot="x.json.gz",
                ),
            ),
        ),
        folder,
    )
    last = printed(recorded_table, "03/snapshot-random").splitlines()[-1]
    told = "equal: 3 events, 2 allocations by address, 1 calls to the driver, every final block"
    assert last == f"    its history replayed: {told}"


def test_a_damaged_file_is_told(folder):
    (folder / "h100-80gb.json").write_text("{")
    with pytest.raises(WorkbookError, match=r"h100-80gb\.json cannot be read"):
        recorded_table("02/train-1b")


def test_staircases_draw_every_device_and_yours(folder):
    curve = entry("01/bandwidth", "read", "bandwidth", "bytes/s", {"kind": "sweep"}, *RATES, x=SIZES, x_unit="bytes")
    write(Recording(H100, (curve,)), folder)
    one = speeds.staircases("Levels", recorded("01/bandwidth"))
    write(Recording(T4, (replace(curve, values=(4e12, 1e12, 3e11)),)), folder)
    yours = Sweep("cpu", SIZES, (2e11, 1e11, 2e10), {})
    more = speeds.staircases("Levels", recorded("01/bandwidth"), yours)
    assert one.png.startswith(b"\x89PNG")
    assert repr(one) == "[picture: Levels]"
    assert more.png != one.png
