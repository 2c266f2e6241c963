"""The arithmetic of PyTorch's allocator: full, in pieces, under a limit, or somebody else's."""

import pytest

from helpers.memory.oom import explain

from .oom_messages import ME, before, now


@pytest.mark.parametrize(
    ("cached", "reason"), [("60.00 MiB", "full"), ("300.00 MiB", "full"), ("400.00 MiB", "fragmented")]
)
def test_as_much_cached_as_every_program_has_is_no_fragmentation(cached, reason):
    explained = explain(now("50.00 MiB", "11.00 GiB", "10.00 MiB", "10.00 GiB", cached, ME.format("10.90 GiB")))
    assert explained.reason == reason
    assert any("expandable_segments" in change.do for change in explained.changes)


def test_a_small_card_has_a_few_open_segments():
    assert explain(before("26.00 MiB", "1024.00 MiB", "500.00 MiB", "10.00 MiB", "560.00 MiB")).reason == "full"
    assert explain(before("26.00 MiB", "1024.00 MiB", "500.00 MiB", "10.00 MiB", "580.00 MiB")).reason == "fragmented"


@pytest.mark.parametrize(
    ("free", "reserved", "reason"),
    [("26.12 MiB", "2.75 GiB", "outside"), ("10.00 MiB", "6.00 GiB", "outside"), ("10.00 MiB", "8.60 GiB", "full")],
)
def test_others_are_blamed_by_how_much_of_the_card_is_not_pytorchs(free, reserved, reason):
    """7.98 and 4.75 GiB of 10.76 are more than a process's own; 2.15 GiB, less than a quarter of the card, are not."""
    explained = explain(before("500.00 MiB", "10.76 GiB", reserved, free, reserved))
    assert explained.reason == reason
    assert ("not PyTorch's" in str(explained)) == (reason == "full")


def test_a_little_more_free_than_asked_beside_a_card_that_others_fill_is_theirs():
    explained = explain(before("20.00 MiB", "10.76 GiB", "2.42 GiB", "26.12 MiB", "2.75 GiB"))
    assert explained.reason == "outside"
    assert "Something else than PyTorch's allocator holds 7.98 GiB" in explained.why.sentence
    named = now(
        "20.00 MiB",
        "10.76 GiB",
        "26.12 MiB",
        "2.42 GiB",
        "0.33 GiB",
        "Process 3 has 7.00 GiB memory in use. " + ME.format("3.00 GiB"),
    )
    assert "Other processes hold 7.00 GiB" in explain(named).why.sentence


def test_under_a_limit_what_is_left_in_open_blocks_is_the_limits():
    """1.05 GiB allowed and 1,017 MiB in tensors: 55 MiB in parts of blocks are no fragmentation."""
    text = now("2.00 MiB", "287.98 GiB", "275.86 GiB", "1017.01 MiB", "54.99 MiB", "1.05 GiB allowed;")
    explained = explain(text)
    assert explained.reason == "capped"
    assert "with 54.99 MiB cached in parts of blocks" in explained.why.sentence


@pytest.mark.parametrize(
    ("says", "advised"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, set"),
        ("PYTORCH_ALLOC_CONF", "PYTORCH_ALLOC_CONF=expandable_segments:True, set"),
        ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF=expandable_segments:True, set"),
        (None, "PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.11 PYTORCH_CUDA_ALLOC_CONF), set"),
    ],
)
@pytest.mark.parametrize("cached", ["60.00 MiB", "4.84 GiB"], ids=["full", "fragmented"])
def test_the_variable_is_the_one_that_the_message_names_and_both_without_one(says, advised, cached):
    text = now("50.00 MiB", "23.65 GiB", "10.00 MiB", "12.09 GiB", cached, ME.format("20.81 GiB"))
    text = text.replace("PYTORCH_CUDA_ALLOC_CONF", says) if says else text.partition(" If reserved")[0]
    (change,) = (change.do for change in explain(text).changes if "expandable_segments" in change.do)
    assert change.startswith(advised)
