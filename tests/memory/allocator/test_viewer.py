"""What is written for PyTorch's viewer: read back it is the same history, and PyTorch's own readers take it."""

from __future__ import annotations

import pickle
import pickletools

import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.errors import WorkbookError
from helpers.memory.accuracy import published
from helpers.memory.allocator import (
    MIB,
    Snapshot,
    alloc,
    compare_with_snapshot,
    empty_cache,
    free,
    read_snapshot,
    replay,
    write_for_viewer,
)

PROGRAM = (alloc("batch", 40 * MIB), free("batch"), alloc("weights", 12 * MIB), alloc("scratch", 24 * MIB),
           free("scratch"), empty_cache(), alloc("batch 2", 36 * MIB))  # fmt: skip

READ = {  # by the viewer's own unpickler
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE", "TUPLE1", "TUPLE2"),
    *("TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE"),
}


def read_by_torch(path):
    return pickle.loads(path.read_bytes())


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_a_replay_reads_back_as_the_history_that_it_is(tmp_path, settings):
    ran, path = replay(PROGRAM, settings), tmp_path / "x.pickle"
    assert write_for_viewer(ran, path) == path.stat().st_size
    back = read_snapshot(path)
    assert (back.reserved_bytes, back.allocated_bytes) == (ran.reserved[-1], ran.allocated[-1])
    assert [event.where for event in back.trace() if event.action == "alloc"] == [""] * 4  # names are no Python files
    if not settings:
        assert str(compare_with_snapshot(back)).startswith("equal")


def test_a_request_that_fails_is_told(tmp_path):
    ran = replay(PROGRAM, "", 64 * MIB)
    write_for_viewer(ran, tmp_path / "x.pickle")
    (trace,) = read_by_torch(tmp_path / "x.pickle")["device_traces"]
    assert (trace[-1]["action"], trace[-1]["size"], trace[-1]["frames"][0]["filename"]) == ("oom", 36 * MIB, "batch 2")


def test_the_published_history_keeps_its_bytes_and_frees_are_requested_before_they_complete(tmp_path):
    real = published.history("transformer-step").snapshot
    write_for_viewer(real, tmp_path / "real.pickle")
    back = read_snapshot(tmp_path / "real.pickle")
    assert back.segments == real.segments
    assert str(compare_with_snapshot(back)) == str(compare_with_snapshot(real))
    actions = [event["action"] for event in read_by_torch(tmp_path / "real.pickle")["device_traces"][0]]
    assert actions.count("free_requested") == actions.count("free_completed") > 3000


def test_torchs_own_readers_take_a_traced_step(tmp_path):
    from torch.cuda import _memory_viz

    from helpers.memory import trace

    step = trace.train(TrainSetup("tiny-llama"))
    write_for_viewer(step.on_gpu, tmp_path / "step.pickle")
    told = read_by_torch(tmp_path / "step.pickle")
    codes = {code.name for code, _, _ in pickletools.genops((tmp_path / "step.pickle").read_bytes())}
    assert codes <= READ, "the viewer knows no class of ours"
    reserved = step.on_gpu.reserved[-1] / MIB
    assert f"total_reserved: {reserved:.1f}MiB" in _memory_viz.segsum(told)
    assert _memory_viz.trace(told).count("cudaMalloc") == len(step.on_gpu.segment_events)
    names = {frame["filename"] for event in told["device_traces"][0] for frame in event["frames"]}
    assert "model.embed_tokens.weight" in names


def test_nothing_to_show_is_an_error(tmp_path):
    with pytest.raises(WorkbookError, match="no event to show"):
        write_for_viewer(Snapshot(()), tmp_path / "x.pickle")
