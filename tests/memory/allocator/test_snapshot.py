"""Snapshots of a real allocator: read whole, refused clearly, and never executed."""

import copy
import os
import pickle

import pytest

from helpers.catalog import WorkbookError
from helpers.memory.allocator import MIB, alloc, free, live_snapshot, read_snapshot, replay
from helpers.memory.allocator.compare import by_address
from tests.memory.allocator.snapshots import snapshot_of

STEPS = [alloc("a", 3 * MIB), alloc("b", 1000), alloc("c", 30 * MIB), free("a")]
GOOD = snapshot_of(STEPS)


@pytest.fixture
def dumped(tmp_path):
    """`dumped(object)` writes it as torch does, by plain pickle."""

    def dump(value):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
        return path

    return dump


def test_a_file_and_a_dict_read_alike(dumped):
    assert read_snapshot(dumped(GOOD)) == read_snapshot(str(dumped(GOOD))) == read_snapshot(GOOD)


def test_segments_are_those_of_the_simulator():
    snapshot, ran = read_snapshot(GOOD), replay(STEPS)
    assert (snapshot.reserved_bytes, snapshot.allocated_bytes) == (52 * MIB, 30 * MIB + 1024)
    for real, simulated in zip(snapshot.segments, by_address(ran.segments), strict=True):
        assert (real.address, real.pool, real.size_bytes) == (simulated.address, simulated.pool, simulated.size_bytes)
        assert [(b.size_bytes, b.requested_bytes, b.state) for b in real.blocks] == [
            (b.size_bytes, b.requested_bytes, b.state) for b in simulated.blocks
        ]


def test_the_history_names_the_users_own_line():
    trace = read_snapshot(GOOD).trace()
    assert [event.action for event in trace] == ["segment_alloc", "alloc"] * 3 + ["free_requested", "free_completed"]
    assert trace[0].where == "train.py:12 step"
    assert read_snapshot(GOOD).trace(3) == ()


def test_states_of_blocks_that_another_stream_may_still_use():
    for state in ("active_pending_free", "active_awaiting_free"):
        data = copy.deepcopy(GOOD)
        data["segments"][0]["blocks"][0]["state"] = state
        assert any(b.state == "pending" for segment in read_snapshot(data).segments for b in segment.blocks)


def test_blocks_without_addresses_and_files_without_a_history():
    data = copy.deepcopy(GOOD)
    del data["device_traces"], data["allocator_settings"]
    for segment in data["segments"]:
        for block in segment["blocks"]:
            del block["address"]
    assert read_snapshot(data).segments == read_snapshot(GOOD).segments


class Hostile:
    """What a pickle runs when it is loaded trustingly."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_hostile_pickle_is_refused_and_does_nothing(dumped, tmp_path):
    mark = tmp_path / "was_here"
    path = dumped({"segments": [], "device_traces": [Hostile(mark)]})
    with pytest.raises(WorkbookError) as caught:
        read_snapshot(path)
    assert not mark.exists()
    assert "a snapshot names nothing" in caught.value.what
    pickle.loads(path.read_bytes())  # the same bytes, trusted: this is what was prevented
    assert mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80",
        b"not a pickle",
        b"\x80\x04N.",
        b"\x80\x04]\x94.",
        pickle.dumps({"segments": 3}),
        pickle.dumps([GOOD]),
        b"(" * 5000 + b"d" * 5000,
        pickle.dumps({"models": []}),
        b"PK\x03\x04zip",
    ],
)
def test_a_file_that_is_no_snapshot(dumped, content):
    with pytest.raises(WorkbookError) as caught:
        read_snapshot(dumped(content))
    assert "snapshot.pickle" in caught.value.what
    assert "_dump_snapshot" in caught.value.do


def test_a_file_that_is_not_there(tmp_path):
    for path in (tmp_path / "none.pickle", tmp_path):
        with pytest.raises(WorkbookError, match="cannot read"):
            read_snapshot(path)


def broken(change):
    data = copy.deepcopy(GOOD)
    change(data)
    return data


BROKEN = [
    (lambda d: d["segments"].append(7), "segment 3 is of type int"),
    (lambda d: d["segments"][0].pop("total_size"), "total_size of segment 0 is None"),
    (lambda d: d["segments"][0].update(total_size=5), "do not add up"),
    (lambda d: d["segments"][0].update(blocks=None), "blocks of segment 0 is nothing"),
    (lambda d: d["segments"][0].update(segment_type="huge"), "segment_type of segment 0 is 'huge'"),
    (lambda d: d["segments"][0]["blocks"][0].update(size="1"), "size of block 0 of segment 0 is '1'"),
    (lambda d: d["segments"][0]["blocks"][0].update(size=-512), "size of block 0 of segment 0 is -512"),
    (lambda d: d["segments"][1]["blocks"][1].update(address=1), "block 1 of segment 1 does not begin"),
    (lambda d: d["segments"][0]["blocks"][0].update(state="gone"), "state of block 0 of segment 0 is 'gone'"),
    (lambda d: d["segments"][0]["blocks"].__setitem__(0, []), "block 0 of segment 0 is of type list"),
    (lambda d: d.update(device_traces={}), None),
    (lambda d: d.update(device_traces={"a": 1}), "device_traces is of type dict"),
    (lambda d: d.update(device_traces=[7]), "device_traces[0] is of type int"),
    (lambda d: d["device_traces"][0].append(7), "of device 0 is of type int"),
    (lambda d: d["device_traces"][0][0].update(action="boom"), "action of event 0 of device 0 is 'boom'"),
    (lambda d: d["device_traces"][0][0].update(size=None), "size of event 0 of device 0 is None"),
]


@pytest.mark.parametrize(("change", "what"), BROKEN)
def test_a_snapshot_with_a_broken_part(change, what):
    if what is None:
        assert read_snapshot(broken(change)).traces == ()
        return
    with pytest.raises(WorkbookError) as caught:
        read_snapshot(broken(change))
    assert what in caught.value.what


def test_without_a_gpu_there_is_no_live_snapshot(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(WorkbookError, match="no CUDA device"):
        live_snapshot()
