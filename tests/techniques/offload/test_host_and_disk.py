"""Blocks of host memory, and files that are whole or refused."""

import os
import signal

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.memory.meter.places import Place, PlacesMeter
from helpers.techniques.offload.disk import Mapped, read, save
from helpers.techniques.offload.host import HostBuffers, HostLayout, host_block, packed

TENSORS = {
    "a": torch.arange(5, dtype=torch.float32),
    "b": torch.ones(3, 3, dtype=torch.bfloat16),
    "c": torch.tensor(7),
    "d": torch.arange(4, dtype=torch.uint8),
}


def test_a_layout_gives_back_what_was_packed():
    layout, flat = packed(TENSORS, pinned=False)
    assert layout.size_bytes == flat.nbytes == 32 + 32 + 16 + 16
    assert all(torch.equal(view, TENSORS[name]) for name, view in layout.views(flat).items())
    assert all(view.data_ptr() % 16 == flat.data_ptr() % 16 for view in layout.views(flat).values())
    assert HostLayout.of({}).size_bytes == 0


def test_blocks_are_the_host_s():
    with PlacesMeter() as meter:
        block = host_block(1024, pinned=torch.cuda.is_available())
        assert (meter.bytes_in(Place.HOST), meter.bytes_in(Place.DEVICE)) == (1024, 0)
    assert block.is_pinned() == torch.cuda.is_available()


def test_a_host_without_room_is_told_in_a_sentence():
    with pytest.raises(WorkbookError, match=r"the host has no room for 1,152,921,504,606,846,976 bytes"):
        host_block(2**60, pinned=False)


@pytest.mark.parametrize(("told", "room"), [("CUDA error: out of memory", False), ("illegal memory access", True)])
def test_another_error_of_the_driver_is_not_called_a_full_host(monkeypatch, told, room):
    def failing(*_, **__):
        raise RuntimeError(told)

    monkeypatch.setattr(torch, "empty", failing)
    with pytest.raises(RuntimeError if room else WorkbookError, match=told if room else "has no room"):
        host_block(1024, pinned=False)


def test_buffers_are_lent_and_come_back():
    buffers = HostBuffers(2, 64, pinned=False)
    first, second = buffers.take(), buffers.take()
    assert first.data_ptr() != second.data_ptr()
    with pytest.raises(WorkbookError, match="all 2 buffers of 64 bytes are in use"):
        buffers.take()
    buffers.give(second)
    assert buffers.take().data_ptr() == second.data_ptr()
    buffers.give(first)
    for wrong in (first, torch.empty(64, dtype=torch.uint8)):
        buffers_full = pytest.raises(WorkbookError, match="comes back that is not out")
        with buffers_full:
            buffers.give(wrong) if wrong is first else (buffers.give(second), buffers.give(wrong))


@pytest.fixture
def path(tmp_path):
    save(TENSORS, tmp_path / "weights")
    return tmp_path / "weights"


def test_read_and_mapped_are_what_was_saved(path):
    targets = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    assert read(path, targets) == sum(tensor.nbytes for tensor in TENSORS.values())
    pages = Mapped(path)
    for name, tensor in TENSORS.items():
        assert torch.equal(targets[name], tensor)
        assert torch.equal(pages[name], tensor)


def test_a_meter_counts_the_file(tmp_path):
    with PlacesMeter() as meter:
        size = save(TENSORS, tmp_path / "weights")
        assert meter.bytes_in(Place.DISK) == size == (tmp_path / "weights").stat().st_size


def test_a_layer_s_tensors_by_the_rest_of_their_names(tmp_path):
    save({f"model.layers.{at}.w": torch.full((2,), float(at)) for at in range(11)}, tmp_path / "w")
    pages = Mapped(tmp_path / "w")
    assert {name: tensor.tolist() for name, tensor in pages.layer(1).items()} == {"w": [1.0, 1.0]}
    with pytest.raises(WorkbookError, match=r"holds nothing called model\.layers\.11\."):
        pages.layer(11)


@pytest.mark.parametrize("act", [Mapped, lambda path: read(path, {"a": torch.zeros(5)})])
@pytest.mark.parametrize("cut", [0, 4, 30, -5])
def test_a_file_that_was_cut_short_is_refused(path, act, cut):
    path.write_bytes(path.read_bytes()[:cut])
    if cut == -5 and act is not Mapped:
        act = lambda path: read(path, {"d": torch.zeros(4, dtype=torch.uint8), "a": torch.zeros(5)})  # noqa: E731
        path.write_bytes(path.read_bytes()[:-30])  # the header is whole, and some values are missing
    with pytest.raises(WorkbookError, match="weights cannot be read"):
        act(path)


def test_a_read_that_fails_half_way_is_told(path, monkeypatch):
    calls = []

    def failing(file, rooms, offset):
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        rooms[0][:4] = b"\0" * 4
        return 4

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(WorkbookError, match=r"cannot be read: .*Input/output error"):
        read(path, {"a": torch.zeros(5)})


@pytest.mark.parametrize(
    ("targets", "told"),
    [
        ({"e": torch.zeros(1)}, "holds as e nothing"),
        ({"a": torch.zeros(6)}, r"holds as a F32 of shape \[5\]"),
        ({"a": torch.zeros(5).half()}, "holds as a F32"),
        ({"b": torch.zeros(3, 6, dtype=torch.bfloat16)[:, ::2]}, "cannot be read into its target"),
        ({"a": torch.zeros(5, device="meta")}, "cannot be read into its target"),
    ],
)
def test_a_target_that_does_not_fit_the_file(path, targets, told):
    with pytest.raises(WorkbookError, match=told):
        read(path, targets)


@pytest.mark.parametrize("act", [Mapped, lambda path: read(path, {})])
def test_no_file_and_no_safetensors(tmp_path, act):
    with pytest.raises(WorkbookError, match="there is no file nothing in"):
        act(tmp_path / "nothing")
    with pytest.raises(WorkbookError, match="cannot be read"):
        act(tmp_path)
    (tmp_path / "text").write_text("no tensors here, but more than eight bytes")
    with pytest.raises(WorkbookError, match="text cannot be read"):
        act(tmp_path / "text")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a limit on files is set in a child process")
def test_a_disk_without_room_keeps_the_old_file_and_no_half_of_the_new(path):
    child = os.fork()
    if child == 0:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            save({"a": torch.zeros(10_000)}, path)
        except WorkbookError as problem:
            os._exit(0 if "weights has not been written" in str(problem) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [file.name for file in path.parent.iterdir()] == ["weights"]
    assert torch.equal(Mapped(path)["a"], TENSORS["a"])


def test_a_full_disk_is_called_so(path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("helpers.techniques.offload.disk.save_file", full)
    with pytest.raises(WorkbookError, match="the disk is full"):
        save(TENSORS, path)
