"""Recordings are read back as they were written, whole; a file that somebody edited is told from one that was made."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.memory.accuracy import recordings
from helpers.memory.accuracy.recordings import (
    Entry,
    MeasuredWith,
    RecordedDevice,
    Recording,
    read,
    read_all,
    replace_whole,
    write,
)

H100 = RecordedDevice("h100-80gb", "NVIDIA H100 80GB HBM3", "cuda", 85_061_827_297, (9, 0))
MADE = MeasuredWith("2.11.0", "13.0", "580.65", "0.1.0 1a2b3c4", "2026-11-30")
STEP = Entry("02/train-1b", "bf16", "peak allocated", "bytes", {"kind": "train", "model": "tiny-llama"}, (7,), MADE)
CURVE = Entry(
    "01/bandwidth", "read", "bandwidth", "bytes/s", {"kind": "sweep"}, (9e12, 3e12), MADE, (4096, 8192), "bytes"
)
WHOLE = Recording(H100, (STEP, CURVE))


def test_it_comes_back_as_it_was(tmp_path):
    path = write(WHOLE, tmp_path)
    assert read_all(tmp_path) == (replace(WHOLE, folder=str(tmp_path)),)
    first = path.read_bytes()
    write(read(path), tmp_path)
    assert path.read_bytes() == first


def test_no_recordings_are_no_error(tmp_path):
    assert read_all(tmp_path) == read_all(tmp_path / "nowhere") == ()


def test_another_folder_is_named_in_the_environment(tmp_path, monkeypatch):
    write(WHOLE, tmp_path)
    monkeypatch.setenv(recordings.ELSEWHERE, str(tmp_path))
    assert [recording.machine for recording in read_all()] == [H100]


def test_the_source_is_one_line():
    assert WHOLE.source(STEP) == "NVIDIA H100 80GB HBM3, torch 2.11.0, driver 580.65, 2026-11-30"
    assert WHOLE.source(replace(STEP, made=replace(MADE, driver=""))).count(",") == 2


@pytest.mark.parametrize(
    "broken",
    [
        {"unit": "MiB"},
        {"values": ()},
        {"values": (0,)},
        {"values": (float("nan"),)},
        {"values": (True,)},
        {"values": ("7",)},
        {"values": (1, 2)},
        {"x": (1, 2)},
        {"setup": {}},
        {"setup": {"kind": 3}},
        {"snapshot": "../elsewhere.json.gz"},
    ],
    ids=str,
)
def test_an_entry_that_nobody_can_have_measured_cannot_be_built(broken):
    with pytest.raises(WorkbookError, match="02/train-1b, bf16: "):
        replace(STEP, **broken)


def edited(change):
    data = {
        "format": 1,
        "device": json.loads(json.dumps(recordings.asdict(H100))),
        "entries": [recordings._plain(entry) for entry in WHOLE.entries],
    }
    change(data)
    return json.dumps(data)


EDITS = [
    (lambda data: data.update(format=2), "is no recording of format 1"),
    (lambda data: data.update(entries={}), "is no recording of format 1"),
    (lambda data: data["device"].pop("title"), "title"),
    (lambda data: data["device"].update(name="h200"), "is a recording of 'h200'"),
    (lambda data: data["entries"].append(3), "entry 2 of h100-80gb.json is of type int"),
    (lambda data: data["entries"][0].pop("value"), "has neither of value and y"),
    (lambda data: data["entries"][0].update(y=[1]), "has both of value and y"),
    (lambda data: data["entries"][0].update(colour="red"), "nobody knows colour"),
    (lambda data: data["entries"][0].pop("date"), "date"),
    (lambda data: data["entries"][0].update(value=-7), "02/train-1b, bf16: values"),
    (lambda data: data["entries"][1]["x"].pop(), "01/bandwidth, read: x is"),
]


@pytest.mark.parametrize(("change", "words"), EDITS, ids=[words for _, words in EDITS])
def test_an_edited_file_says_what_is_wrong(change, words, tmp_path):
    path = tmp_path / "h100-80gb.json"
    path.write_text(edited(lambda data: None))
    assert len(read(path).entries) == 2
    path.write_text(edited(change))
    with pytest.raises(WorkbookError, match=words) as told:
        read_all(tmp_path)
    assert "workbook record --force" in told.value.do


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"null"])
def test_what_is_no_json_object(content, tmp_path):
    (tmp_path / "t4.json").write_bytes(content)
    with pytest.raises(WorkbookError, match=r"t4\.json"):
        read_all(tmp_path)


def test_a_file_is_replaced_whole_or_stays(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    replace_whole(path, b"before")
    reader = tmp_path / "reader"
    reader.hardlink_to(path)
    replace_whole(path, b"first")
    assert reader.read_bytes() == b"before", "the file was written over, and somebody may be reading it"
    monkeypatch.setattr(recordings.os, "fsync", lambda descriptor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replace_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(path.parent.iterdir()) == [path]


def test_a_history_that_is_missing_or_damaged(tmp_path):
    entry = replace(STEP, snapshot="x.json.gz")
    recording = Recording(H100, (entry,), str(tmp_path))
    with pytest.raises(WorkbookError, match=r"x.json.gz of 02/train-1b cannot be read"):
        recording.snapshot(entry)
    replace_whole(tmp_path / "h100-80gb.snapshots" / "x.json.gz", b"not packed")
    with pytest.raises(WorkbookError, match="no packed snapshot"):
        recording.snapshot(entry)
