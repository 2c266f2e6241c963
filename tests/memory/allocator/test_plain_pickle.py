"""Pickles that ask for more than their size explains: refused in a second and 200 MB, and honest ones are read."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys

import pytest

from helpers.catalog import WorkbookError
from helpers.memory.allocator import MIB, alloc, plain_pickle, read_snapshot, snapshot
from tests.memory.allocator.snapshots import snapshot_of

GOOD = snapshot_of([alloc("a", 3 * MIB), alloc("b", 1000)])
PLAIN = {"a": [1, 300, 70_000, -1, 2**40, 1.5, None, True, False, "é" * 300, ""], "pool": (0, 1), "b": {}, "c": [[]]}


def memoized(index: int) -> bytes:
    """An empty list, kept as number `index`."""
    return b"\x80\x04]r" + struct.pack("<I", index) + b"."


def shared(number: int) -> dict:
    """Few bytes, and `number` squared events to read."""
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": []}
    return {"segments": [], "device_traces": [[event] * number] * number}


def doubled(depth: int) -> list:
    """A list whose text has 2 ** depth brackets."""
    value: list = []
    for _ in range(depth):
        value = [value, value]
    return value


def colliding(number: int) -> bytes:
    """A dict whose integer keys all have the same hash."""
    keys = b"".join(b"\x8a\x0c" + (k * (2**61 - 1)).to_bytes(12, "little") + b"N" for k in range(1, number))
    return b"\x80\x04}(" + keys + b"u."


SEGMENT = {**GOOD["segments"][0]}
HOSTILE = {
    "a memo of four gigabytes": (memoized(2**28), "counts more objects than it has bytes"),
    "the largest index": (memoized(2**32 - 1), "counts more objects than it has bytes"),
    "a text of four gigabytes": (b"\x80\x04X\xff\xff\xff\xff.", "was cut off"),
    "a text of exabytes": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x3f.", "was cut off"),
    "bytes of exabytes": (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x3f.", "BINBYTES8"),
    "a frame of exabytes": (b"\x80\x04\x95" + b"\xff" * 7 + b"\x3f].", "is no snapshot"),
    "nothing but dicts": (b"\x80\x04" + b"}" * 5_000_000 + b".", "little but empty lists and dicts"),
    "dicts that are kept": (b"\x80\x04" + b"}\x94" * 2_500_000 + b".", "little but empty lists and dicts"),
    "deep": (b"\x80\x04" + b"]\x94" * 900 + b"a" * 899 + b".", "holds no segments"),
    "keys that collide": (colliding(200_000), "LONG1"),
    "tuples that could": (pickle.dumps({(2**60, 2**59): 1}), "a tuple of something else"),
    "events named again and again": (pickle.dumps(shared(20_000)), "do not come from"),
    "blocks named again and again": (
        pickle.dumps({"segments": [{**SEGMENT, "blocks": SEGMENT["blocks"] * 20_000}] * 20_000}), "do not come from",
    ),
    "a size without end": (pickle.dumps({"segments": [{**SEGMENT, "total_size": doubled(50)}]}), "of type list"),
    "a kind without end": (pickle.dumps({"segments": [{**SEGMENT, "segment_type": doubled(50)}]}), "segment_type of"),
    "settings without end": (
        pickle.dumps({"segments": [], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": doubled(50)}}), "no failure",
    ),
    "an old protocol": (b"\x80\x04I9999999999999999999999\n.", "INT"),
    "an opcode that is none": (b"\x80\x04\xff.", "0xff"),
}  # fmt: skip
READ = """
import contextlib, io, json, sys, time
from helpers.cli import main
rows = []
for path in sys.argv[1:]:
    start, told = time.process_time(), io.StringIO()
    with contextlib.redirect_stderr(told):
        status = main(["explain-oom", path])
    seconds = time.process_time() - start
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    rows.append([status, seconds, int(peak.split()[1]), told.getvalue()])
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """For each of HOSTILE the exit status, processor seconds, the process's peak in KiB so far, and its words."""
    paths = [tmp_path_factory.mktemp("hostile") / "snapshot.pickle" for _ in HOSTILE]
    for path, (content, _) in zip(paths, HOSTILE.values(), strict=True):
        path.write_bytes(content)
    command = [sys.executable, "-c", READ, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return dict(zip(HOSTILE, json.loads(done.stdout), strict=True))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells a process's peak memory")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_snapshot_is_refused_at_little_cost(name, refused):
    status, seconds, kilobytes, told = refused[name]
    assert HOSTILE[name][1] in told
    assert status == 2
    assert seconds < 3  # of processor time, and less than one on a quiet machine
    assert kilobytes < 200_000


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_read_as_it_is(protocol):
    assert plain_pickle.load(io.BytesIO(pickle.dumps(PLAIN, protocol))) == PLAIN
    many_objects = [{"name": f"f{n}", "line": n} for n in range(2000)]  # indices in the memo of more than a byte
    assert plain_pickle.load(io.BytesIO(pickle.dumps(many_objects, protocol))) == many_objects


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_snapshot_of_every_protocol_is_read(protocol, tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(GOOD, protocol))
    assert read_snapshot(path) == read_snapshot(GOOD)


def test_a_file_that_is_too_large_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_BYTES", 100)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(GOOD))
    with pytest.raises(WorkbookError, match="larger than"):
        read_snapshot(path)


def test_a_stack_that_many_entries_share_is_looked_at_once(tmp_path, monkeypatch):
    looked_at = []
    monkeypatch.setattr(snapshot, "_own_line", lambda frames: looked_at.append(frames) or "train.py:3")
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 12345678901}
    stack = [{"filename": "train.py", "name": "f", "line": 3}]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[{**event, "frames": stack} for _ in range(99)]]}))
    assert [event.where for event in read_snapshot(path).trace()] == ["train.py:3"] * 99
    assert looked_at == [stack]
