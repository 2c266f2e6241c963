"""What is asked of torch.cuda, with a torch.cuda that answers what a GPU would; no GPU has answered here yet."""

from __future__ import annotations

import datetime
from types import SimpleNamespace

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.course.doctor.nvidia_smi import NvidiaDriver
from helpers.course.record import target as module
from helpers.course.record.target import Gpu, MemoryCounters
from helpers.memory.allocator import MIB, alloc, compare_with_snapshot
from tests.memory.allocator.snapshots import snapshot_of

H100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=85_061_827_297)


@pytest.fixture
def cuda(monkeypatch):
    """A torch.cuda with one H100; `cuda.calls` is what was asked of it, `cuda.reserved` what it says is reserved."""
    state = SimpleNamespace(calls=[], reserved=0, allocated=0, properties=H100)
    answers = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "get_device_capability": lambda: (9, 0),
        "get_device_properties": lambda device: state.properties,
        "mem_get_info": lambda: (70 * 2**30, 80 * 2**30),
        "memory_allocated": lambda: state.allocated,
        "memory_reserved": lambda: state.reserved,
        "memory_stats": lambda: {"requested_bytes.all.current": 5},
        "max_memory_allocated": lambda: 300,
        "max_memory_reserved": lambda: 400,
        "synchronize": lambda: state.calls.append("synchronize"),
        "reset_peak_memory_stats": lambda: state.calls.append("reset"),
        "empty_cache": lambda: state.calls.append("empty_cache"),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    clear = lambda: state.calls.append("workspaces")  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    record = lambda **options: state.calls.append(options)  # noqa: E731
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot_of([alloc("x", 3 * MIB)]))
    monkeypatch.setattr(module.nvidia_smi, "ask", lambda: NvidiaDriver("580.65.06", "13.0"))
    return state


def test_a_catalogued_device_has_its_name(cuda):
    machine = Gpu().machine()
    assert (machine.name, machine.title, machine.type) == ("h100-80gb", "NVIDIA H100 80GB HBM3", "cuda")
    assert (machine.total_bytes, machine.capability) == (85_061_827_297, (9, 0))


def test_another_gets_a_name_that_a_file_can_have(cuda):
    cuda.properties = SimpleNamespace(name="NVIDIA RTX PRO 6000/Max-Q (48 GB)", total_memory=48 * 2**30)
    assert Gpu().machine().name == "nvidia-rtx-pro-6000-max-q-48-gb"


def test_with_what_it_was_made(cuda, monkeypatch):
    made = Gpu().made()
    assert (made.torch, made.driver) == (torch.__version__, "580.65.06")
    assert datetime.date.fromisoformat(made.date)
    monkeypatch.setattr(module.nvidia_smi, "ask", lambda: None)
    assert Gpu().made().driver == ""


def test_the_version_names_the_commit_of_this_repository_only(monkeypatch, tmp_path):
    assert module.workbook_version().startswith("0.1")
    answer = SimpleNamespace(stdout=f"{module.ROOT}\n1a2b3c4\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: answer)
    assert module.workbook_version().endswith(" 1a2b3c4")
    answer.stdout = f"{tmp_path}\n1a2b3c4\n"
    assert " " not in module.workbook_version()


def test_peaks_are_reset_before_and_read_after(cuda):
    peak = Gpu().peak(lambda: cuda.calls.append("run"))
    assert peak == MemoryCounters(300, 400)
    assert cuda.calls == ["synchronize", "reset", "run", "synchronize"]


def test_memory_now_and_cleared(cuda):
    cuda.allocated, cuda.reserved = 7, 9
    assert Gpu().memory() == MemoryCounters(7, 9, 5)
    cuda.calls.clear()
    Gpu().clear()
    assert cuda.calls == ["synchronize", "workspaces", "empty_cache"]
    assert Gpu().free_bytes() == 70 * 2**30


def test_a_history_is_recorded_from_nothing_and_switched_off(cuda):
    found = Gpu().history(lambda: cuda.calls.append("run"))
    assert compare_with_snapshot(found).agrees
    options = [call for call in cuda.calls if call != "synchronize"]
    assert options == [{"max_entries": module.MOST_EVENTS, "context": None}, "run", {"enabled": None}]
    cuda.calls.clear()
    with pytest.raises(ZeroDivisionError):
        Gpu().history(lambda: 1 / 0)
    assert cuda.calls[-1] == {"enabled": None}


def test_no_history_where_something_is_reserved(cuda):
    cuda.reserved = 2**21
    with pytest.raises(WorkbookError, match="2,097,152 bytes were reserved before the history began"):
        Gpu().history(lambda: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu():
    with pytest.raises(WorkbookError, match="there is no GPU"):
        Gpu()
