"""A loader that is ahead of the quantizer: the same blocks in another order, and a range of reserved bytes."""

from types import SimpleNamespace

import pytest

from helpers.catalog import TrainSetup
from helpers.memory import trace
from helpers.memory.accuracy import AccuracyRow, cases
from helpers.memory.allocator import MIB
from helpers.memory.trace.read_ahead import in_order_of, reserved_range

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 4096,
}


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    setup = TrainSetup(LLAMA, "bf16", "adamw", 1, 128, "full")
    return trace.lora(setup, 8, base="nf4", gpu="t4")


def test_ahead_by_one_the_next_weight_is_whole_before_this_one_is_quantized() -> None:
    events = ["warm up", "a whole", "a packed", "a freed", "b whole", "b packed", "b freed", "norm", "step"]
    told = list(in_order_of(events, (1, 4, 7, 8), 1))
    assert told == ["warm up", "a whole", "b whole", "a packed", "a freed", "norm", "b packed", "b freed", "step"]


@pytest.mark.parametrize("ahead", [0, 2, 10**6])
def test_however_far_ahead_each_event_is_told_once(found, ahead: int) -> None:
    told = list(in_order_of(found.events, found.weights_from, ahead))
    assert len(told) == len(found.events)
    assert set(map(id, told)) == set(map(id, found.events))


def test_with_5_0_it_is_a_range_that_holds_the_answer_of_5_17(found) -> None:
    early, late = reserved_range(found, "5.0"), reserved_range(found, "5.17")
    assert late.low == late.high == found.peak_reserved_bytes
    assert early.low < early.high
    assert found.peak_reserved_bytes in early
    assert "ahead" in early.why
    assert "before the next" in late.why


def test_a_base_that_is_not_quantized_is_loaded_without_a_race() -> None:
    plain = trace.train(TrainSetup(LLAMA, "bf16", sequence=16))
    found = reserved_range(plain, "5.0")
    assert found.low == found.high == plain.peak_reserved_bytes


@pytest.mark.slow
def test_a_published_step_that_was_13_percent_off_lies_in_the_range() -> None:
    """SmolLM2-1.7B in NF4: with each weight quantized before the next is read it would be 5,556 MiB."""
    from helpers.memory.accuracy.table import rows_of

    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    (row,) = rows_of(cases("qlora")[0])
    assert row.predicted == 5556 * MIB
    assert row.span is not None
    assert row.span[0] <= row.measured <= row.span[1]
    assert row.error == 0


def test_outside_of_its_span_a_measurement_is_off_by_the_nearer_end() -> None:
    case = SimpleNamespace(unit_bytes=1, unit="MiB", name="")
    assert AccuracyRow(case, "", 200, 110, span=(100, 150)).error == -0.25
    assert AccuracyRow(case, "", 120, 110, span=(100, 150)).error == 0
    assert AccuracyRow(case, "", 80, 110, span=(100, 150)).error == 0.25
