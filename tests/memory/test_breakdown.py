"""Bytes by part: rounding, printing, adding up and subtracting."""

import json

import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.errors import WorkbookError
from helpers.memory import Breakdown, Moment, format_bytes, rounded
from helpers.memory.breakdown import CAPTIONS, PARTS, Part, Phase, Point
from helpers.memory.budget import TrainBudget


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
        (2**50, "1,048,576.00 GiB"),
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
    assert Moment(Point.LOSS, Breakdown(parameters=1, logits=2)).total == 3


def test_parts_and_moments_read_as_text_and_are_compared_as_what_they_are():
    assert len(set(PARTS)) == 7
    assert Breakdown({Part.KV_CACHE: 3})["kv_cache"] == 3
    assert json.dumps({Part.KV_CACHE: 3, "at": Point.LOSS}) == '{"kv_cache": 3, "at": "loss"}'
    assert repr(list(Breakdown({Part.LOGITS: 1}))) == "['logits']"
    assert list(Breakdown({Part.LOGITS: 1})) == ["logits"]
    assert Moment(Phase.OPTIMIZER, Breakdown()).name == Moment(Point.OPTIMIZER, Breakdown()).name == "optimizer step"
    assert set(CAPTIONS) == set(Point)


def test_a_moment_is_asked_for_by_where_it_is():
    first, last = (Moment(Point.LAYER, Breakdown(activations=layer), layer) for layer in (31, 0))
    answer = TrainBudget(TrainSetup("llama-2-7b"), (first, last), 0, 0)
    assert (answer.at("layer"), answer.at(Point.LAYER, 0), answer.peak) == (first, last, first)
    with pytest.raises(WorkbookError) as refused:
        answer.at("lm_head")
    assert refused.value.what == "unknown moment 'lm_head'"
