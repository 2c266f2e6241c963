"""Bytes by part: rounding, printing, adding up and subtracting."""

import pytest

from helpers.memory import Breakdown, Moment, format_bytes, rounded
from helpers.memory.closed_form.breakdown import PARTS


@pytest.mark.parametrize(("size", "blocks"), [(0, 0), (1, 1), (511, 1), (512, 1), (513, 2), (2**40 + 1, 2**31 + 1)])
def test_rounding_is_up_to_whole_blocks_of_512(size, blocks):
    assert rounded(size) == 512 * blocks


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (80 * 10**9, "74.51 GiB"),  # 80 GB are not 80 GiB
        (80 * 2**30, "80.00 GiB"),
        (-3 * 2**20, "-3.00 MiB"),
        (2**50, "1048576.00 GiB"),
    ],
)
def test_human_prints_binary_units(size, text):
    assert format_bytes(size) == text


def test_a_breakdown_is_a_mapping_that_adds_up_in_its_own_order():
    parts = Breakdown(gradients=2, parameters=1)
    assert list(parts) == ["gradients", "parameters"]
    assert (parts["gradients"], len(parts), parts.total, Breakdown().total) == (2, 2, 3, 0)
    assert parts == {"gradients": 2, "parameters": 1}


def test_subtraction_gives_the_residual_of_every_part_of_either():
    residual = Breakdown(parameters=10, logits=4) - Breakdown(parameters=7, activations=1)
    assert dict(residual) == {"parameters": 3, "logits": 4, "activations": -1}
    assert residual.total == 14 - 8


def test_text_forms_are_stable_and_aligned():
    parts = Breakdown(parameters=2**30, kv_cache=512)
    assert repr(parts) == "Breakdown(parameters=1073741824, kv_cache=512)"
    assert str(parts) == "parameters      1.00 GiB\nkv_cache           512 B\ntotal           1.00 GiB"
    assert str(Breakdown()) == "total           0 B"


def test_a_moment_has_the_total_of_its_parts():
    assert Moment("peak", Breakdown(parameters=1, logits=2)).total == 3
    assert len(set(PARTS)) == 7
