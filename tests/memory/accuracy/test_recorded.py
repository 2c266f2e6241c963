"""Budget, trace and simulator against every recording there is; and the comparison itself, on a rehearsed one.

Allocated within 1 %, reserved within 5 %, every snapshot's calls to the driver and final segments equal.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.catalog.devices import device
from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course.record import record
from helpers.memory.accuracy import recorded, recordings
from helpers.memory.accuracy.recordings import Entry, Recording, read, write
from helpers.memory.allocator import pack
from tests.course.record.rehearsal import rehearsed
from tests.memory.accuracy.test_recordings import H100, MADE


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(recordings.HERE.glob("*.json")), ids=lambda path: path.stem)
def test_every_recording_agrees(path: Path) -> None:
    assert not list(recorded.disagreements(read(path)))


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory) -> Recording:
    """A training step and a history, recorded on this CPU: what the instruments say of a CPU is held against it."""
    folder = tmp_path_factory.mktemp("recordings")
    for name in ("02/train-1b", "03/snapshot-cat"):  # each with an allocator of its own
        with rehearsed() as target:
            assert record(folder, [name], target=target, say=lambda line: None) == 0
    return read(folder / "rehearsal.json")


def with_value(recording: Recording, quantity: str, factor: float) -> Recording:
    entries = [
        replace(entry, values=(factor * entry.value,)) if entry.quantity == quantity else entry
        for entry in recording.entries
    ]
    return replace(recording, entries=tuple(entries))


def test_a_true_recording_agrees(rehearsal):
    assert not list(recorded.disagreements(rehearsal))
    answered = [set(recorded.predictions(entry, rehearsal.machine)) for entry in rehearsal.entries]
    assert answered == [{"budget", "trace"}, {"simulator"}, set(), {"simulator"}]  # the third is a time


@pytest.mark.parametrize(
    ("quantity", "factor", "told"),
    [
        ("peak allocated", 1.02, ["budget", "trace"]),
        ("peak allocated", 0.98, ["budget", "trace"]),
        ("peak allocated", 1.005, []),
        ("peak reserved", 1.06, ["simulator", "simulator"]),
        ("peak reserved", 1.03, []),
    ],
)
def test_what_is_off_by_more_than_the_limit_is_told(rehearsal, quantity, factor, told):
    found = list(recorded.disagreements(with_value(rehearsal, quantity, factor)))
    assert [line.rpartition(": ")[2].split()[0] for line in found] == told


def out_of_order(snapshot):
    """Two calls to the driver exchanged, as no allocator would make them."""
    (trace,) = snapshot.traces
    first, second = [at for at, event in enumerate(trace) if event.action == "segment_alloc"][:2]
    changed = list(trace)
    changed[first], changed[second] = trace[second], trace[first]
    return replace(snapshot, traces=(tuple(changed),))


def larger(snapshot):
    """The last call to the driver asked for two MiB more."""
    (trace,) = snapshot.traces
    at = max(number for number, event in enumerate(trace) if event.action == "segment_alloc")
    changed = (*trace[:at], trace[at]._replace(size_bytes=trace[at].size_bytes + 2**21), *trace[at + 1 :])
    return replace(snapshot, traces=(changed,))


def merged(snapshot):
    """The first final segment has a block less, its bytes in the one before."""
    first, *others = snapshot.segments
    a, b, *rest = first.blocks
    joined = (replace(a, size_bytes=a.size_bytes + b.size_bytes), *rest)
    return replace(snapshot, segments=(replace(first, blocks=joined), *others))


@pytest.mark.parametrize(
    ("change", "words"),
    [(out_of_order, "call 0 to the driver"), (larger, "to the driver"), (merged, "segment 0 at the end")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_history_that_the_simulator_does_not_follow_is_told(tmp_path, change, words):
    with rehearsed() as target:
        record(tmp_path, ["03/snapshot-random"], target=target, say=lambda line: None)
    recording = read(tmp_path / "rehearsal.json")
    (entry,) = recording.entries
    assert not list(recorded.disagreements(recording))
    path = recordings.snapshots_folder(tmp_path, "rehearsal") / entry.snapshot
    path.write_bytes(pack(change(recording.snapshot(entry))))
    found = list(recorded.disagreements(recording))
    assert found
    assert words in found[0]


def entry_of(setup: dict, unit: str, value: float = 1.0, quantity: str = "") -> Entry:
    return Entry("01/x", "x", quantity, unit, setup, (value,), MADE)


def test_a_datasheet_answers_for_rates_and_times():
    """8192³ products in BF16 on an H100: 2 × 8192³ / 989.4 TFLOP/s are 1.11 ms."""
    card = device("h100")
    work = {"flops": 2 * 8192**3, "read_bytes": 4 * 8192**2, "written_bytes": 2 * 8192**2}
    asked = [
        (entry_of({"kind": "copy", "size_bytes": 1, "ways": 2}, "bytes/s"), 128e9),
        (entry_of({"kind": "roof", "format": "bf16"}, "bytes/s"), card.memory_bytes_per_s),
        (entry_of({"kind": "roof", "format": "bf16"}, "FLOP/s"), card.flops_per_s("bf16")),
        (entry_of({"kind": "operator", "format": "bf16", **work}, "s"), 2 * 8192**3 / 989.4e12),
        (entry_of({"kind": "decode", "model": "llama-3-8b", "context": 1}, "s"), 15_010_447_360 / 3.35e12),
    ]
    for entry, answer in asked:
        assert recorded.predictions(entry, H100) == {"datasheet": (pytest.approx(answer, rel=0.001),)}
        assert recorded.predictions(entry, replace(H100, name="nobody-knows-it")) == {}
    assert not list(recorded.disagreements(Recording(H100, tuple(entry for entry, _ in asked))))


def test_the_budget_of_a_recording_is_that_of_its_card():
    fields = {"kind": "train", "model": "tiny-llama", "precision": "bf16", "optimizer": "adamw-fused", "sequence": 64}
    entry = entry_of(fields, "bytes", quantity="peak allocated")
    budgets = [
        recorded.predictions(entry, machine)["budget"][0]
        for machine in (H100, replace(H100, name="a100-80gb", capability=(8, 0)))
    ]
    assert budgets[0] - budgets[1] == 2 * (32 * 2**20 - 8_519_680)


def test_a_setup_that_cannot_be_rebuilt_says_so():
    with pytest.raises(WorkbookError, match="cannot be rebuilt"):
        recorded.predictions(entry_of({"kind": "train", "modell": "tiny-llama"}, "bytes", quantity="x"), H100)
    assert recorded.predictions(entry_of({"kind": "of another version"}, "bytes"), H100) == {}


def test_workbook_accuracy_has_the_recorded_rows(rehearsal, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(recordings.ELSEWHERE, rehearsal.folder)
    assert main(["accuracy", "--only", "recorded"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines if line.startswith("02/train-1b")] == [
        ["02/train-1b", "bf16", "peak", word, by]
        for word, by in (("allocated,", "budget"), ("allocated,", "trace"), ("reserved,", "simulator"))
    ]
    assert main(["accuracy", "--only", "recorded", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {(row["kind"], row["device"]) for row in rows} == {("recorded", "rehearsal")}
    assert all(abs(row["error"]) < 0.01 and row["source"].endswith("2026-11-22") for row in rows)
    monkeypatch.setenv(recordings.ELSEWHERE, str(tmp_path))
    assert main(["accuracy", "--only", "recorded"]) == 0
    assert "no GPU has been recorded yet: `workbook record` on one adds its rows" in capsys.readouterr().out


def test_a_curve_gives_a_row_for_each_point(tmp_path, monkeypatch):
    setup = {"kind": "kv cache", "model": "llama-3-8b", "kv": "bf16"}
    curve = Entry("12/kv-long", "one user", "held", "bytes", setup, (2**28, 2**30), MADE, (2048, 8192), "tokens")
    write(Recording(H100, (curve,)), tmp_path)
    monkeypatch.setenv(recordings.ELSEWHERE, str(tmp_path))
    assert [(row.case.name, row.predicted, row.error) for row in recorded.rows()] == [
        ("12/kv-long one user, 2,048 tokens", 2**28, 0),
        ("12/kv-long one user, 8,192 tokens", 2**30, 0),
    ]
