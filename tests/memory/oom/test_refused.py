"""Requests that were refused although enough was free: each cause by what its message shows."""

import pytest

from helpers.memory.oom import Reason, explain, parse
from helpers.memory.oom.refused import is_windows, is_wsl

from .oom_messages import ME, before, now

WSL = ME.format("17179869184.00 GiB")
FREE = ("3.48 GiB", "95.59 GiB", "50.40 GiB", "42.49 GiB", "47.72 MiB")
XPU = (
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate {}. GPU 0 has a total capacity of 15.11 GiB{}. Of "
    "the allocated memory {} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. Please use "
    "`empty_cache` to release all unoccupied cached memory."
)


@pytest.mark.parametrize(
    ("text", "says", "first", "possible"),
    [
        (now(*FREE, ""), "page file", "close what else", ["host", "full"]),
        (before("50.00 MiB", "6.00 GiB", "693.78 MiB", "3.91 GiB", "712.00 MiB"), "page file", "", ["host", "full"]),
        (now(*FREE, WSL), "This is WSL", "leave some of the card free", ["capped", "host"]),
        (now(*FREE, "").replace("CUDA out", "HIP out"), "ttm.pages_limit", "on an APU", ["capped", "fragmented"]),
        (now(*FREE, ME.format("45.00 GiB")), "may have let go", "nvidia-smi", ["outside", "capped", "host"]),
        (before("12.50 MiB", "10.92 GiB", "8.57 MiB", "9.28 GiB", "14.00 MiB"), "MIG slice", "nvidia-smi", None),
    ],
    ids=["Windows", "Windows, before 2.1", "WSL", "ROCm", "Linux", "Linux, older"],
)
def test_what_is_known_to_refuse_is_named_by_what_the_message_shows(text, says, first, possible):
    explained = explain(text)
    assert explained.reason is Reason.UNCLEAR
    assert says in explained.why.sentence
    assert explained.changes[0].do.startswith(first)
    assert possible is None or explained.figures["possible"] == possible
    assert f"Left by what is known: {', '.join(explained.why.possible)}." in str(explained)


def test_windows_is_told_by_its_missing_processes_or_a_whole_capacity():
    tells = {
        now(*FREE, ""): True,
        now(*FREE, WSL): False,
        now(*FREE, "Process 7 has 3.00 GiB memory in use."): False,
        now(*FREE, "").replace("CUDA out", "HIP out"): False,
        before("1.00 GiB", "11.99 GiB", "1.00 GiB", "3.00 GiB", "1.00 GiB"): True,
        before("1.00 GiB", "11.75 GiB", "1.00 GiB", "3.00 GiB", "1.00 GiB"): False,
        before("9.00 MiB", "1024.00 MiB", "1.00 MiB", "30.00 MiB", "1.00 MiB"): False,
    }
    assert {text: is_windows(parse(text)) for text in tells} == tells


def test_what_the_driver_does_not_know_under_wsl_is_said_and_is_no_process():
    assert is_wsl(parse(now(*FREE, WSL)))
    assert is_wsl(parse(now(*FREE, "Process 5 has 17179869184.00 GiB memory in use.")))
    assert not is_wsl(parse(now(*FREE)))
    told = str(explain(now("4.00 GiB", "8.00 GiB", "1.00 GiB", "6.00 GiB", "0.10 GiB", WSL)))
    assert "17179869184.00 GiB is no size: under WSL" in told


@pytest.mark.parametrize(
    ("asked", "free", "allocated", "reason"),
    [
        ("8.00 GiB", "", "0 bytes", "capped"),
        ("8.00 GiB", " of which 9.00 GiB is free", "0 bytes", "capped"),
        ("3.00 GiB", " of which 9.00 GiB is free", "0 bytes", "unclear"),
        ("8.00 GiB", " of which 4.00 GiB is free", "10.50 GiB", "full"),
        ("8.00 GiB", "", "10.50 GiB", "unclear"),
        ("32.00 GiB", "", "0 bytes", "full"),
    ],
)
def test_intels_limit_on_one_allocation_is_blamed_only_where_all_would_fit(asked, free, allocated, reason):
    explained = explain(XPU.format(asked, free, allocated))
    assert explained.reason == reason
    assert ("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1" in str(explained)) == (reason == "capped")


def test_more_free_than_the_card_has_is_no_request_larger_than_the_card():
    text = now("16.00 GiB", "15.49 GiB", "84.98 GiB", "1.67 GiB", "8.08 GiB", "").replace("CUDA out", "HIP out")
    assert explain(text).reason is Reason.UNCLEAR
    assert "more free than there is" in str(explain(text))


def test_a_message_that_was_cut_or_failed_itself():
    cut = explain("CUDA out of memory. Tried to allocate 3725.29 GiB. GPU")
    assert (cut.reason, "larger than any card" in str(cut)) == ("full", True)
    assert explain("CUDA out of memory. Tried to allocate 30.00 GiB. GPU").why.possible == ("full", "fragmented")
    assertion = 'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1154'
    assert "MIG slice" in explain(assertion).why.sentence
