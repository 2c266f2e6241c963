"""What loading leaves beyond the tensors, and takes on the way, beside published peaks of whole processes."""

import pytest

from helpers.catalog import ServeSetup
from helpers.memory import budget, trace
from helpers.memory.serve import loading
from tests.memory.configs import QWEN2

MIB = 2**20
QWEN_05B = QWEN2 | {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "vocab_size": 151936,
}
QWEN_3B = QWEN_05B | {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
}


def replica(config, weights, prompt=1):
    return ServeSetup(config, weights=weights, kv="fp16", prompt=prompt, context=prompt + 2048, prefill_tokens=prompt)


def test_codes_and_scales_are_blocks_of_their_own():
    """One block for a weight with its scales would end 0.3 to 0.9 MiB before its segment does: 92 MB in all."""
    assert loading.ends_bytes(replica(QWEN_3B, "gptq-int4")) < MIB


def test_ends_by_hand():
    """Qwen2.5-7B in BF16: 84 matrices of the MLPs have 129.5 MiB, two tables 1,039.5, each in a segment of even MiB."""
    assert loading.ends_bytes(replica("qwen2.5-7b", "bf16")) == (84 + 2) * MIB // 2


def test_a_tied_head_that_is_stored_comes_twice():
    """Its peak was published, and a prediction without the second copy is 32 % below it."""
    found = budget.serve(replica(QWEN_05B, "awq-int4"), "a100-80gb")
    table = 151936 * 896 * 2
    assert loading.tied_head_again(found.setup) == (table,)
    assert found.peak_bytes / found.peak_allocated_bytes == pytest.approx(0.68, abs=0.005)


def test_small_models_in_blocks_of_fp8_too():
    """The Qwen3 below 8B are tied. 0.6B: 751 MB of weights, and 311 of a head."""
    assert loading.tied_head_again(replica("Qwen/Qwen3-0.6B-FP8", "shipped")) == (151936 * 1024 * 2,)


@pytest.mark.parametrize("weights", ["bf16", "gptq-int4", "gptq-int8", "fp8-e4m3"])
def test_one_that_is_not_stored_comes_once(weights):
    assert loading.tied_head_again(replica(QWEN_05B, weights)) == ()


def test_a_long_context_takes_more_than_loading():
    found = budget.serve(replica(QWEN_05B, "awq-int4", prompt=30720), "a100-80gb")
    assert found.peak_allocated_bytes == found.peak_bytes + loading.ends_bytes(found.setup)


def test_the_head_of_its_own_comes_once():
    assert loading.tied_head_again(replica("qwen2.5-7b", "awq-int4")) == ()


def test_the_trace_sees_it_while_it_loads():
    """A table of 6,000 x 1,024 is more than what a few tokens take afterwards, and leaves 0.28 MiB of its segment."""
    config = QWEN2 | {"vocab_size": 6000, "hidden_size": 1024, "num_hidden_layers": 1}
    setup = ServeSetup(config, weights="awq-int4", kv="fp16", prompt=1, context=4, prefill_tokens=1)
    found, said = trace.serve(setup, "a100-80gb"), budget.serve(setup, "a100-80gb")
    loaded = sum(event.sign * event.block.size_bytes for event in found.events[: found.first])
    table, end = 2 * 6000 * 1024, 12 * MIB - 2 * 6000 * 1024
    assert found.on_gpu.peak_allocated_bytes == loaded + table + 2 * end > found.peak_allocated_bytes
    assert said.peak_allocated_bytes == pytest.approx(found.on_gpu.peak_allocated_bytes, rel=0.002)
