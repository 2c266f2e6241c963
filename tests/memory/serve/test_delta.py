"""Hybrids served: the closed form of a forward through delta rules, against the trace of Transformers' own code."""

import pytest

from helpers.catalog import ServeSetup, model
from helpers.lesson import calculators
from helpers.memory import budget, trace
from helpers.memory.serve.delta import DeltaForward, widest_bytes

RULE = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1100,
    "num_hidden_layers": 4,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
FAMILIES = {
    "qwen3_next": {"model_type": "qwen3_next", **SIZES, **RULE, **EXPERTS},
    "qwen3_5_text": {"model_type": "qwen3_5_text", **SIZES, **RULE},
    "qwen3_5_moe_text": {"model_type": "qwen3_5_moe_text", **SIZES, **RULE, **EXPERTS},
    "wider values": {"model_type": "qwen3_5_text", **SIZES, **RULE, "linear_value_head_dim": 64},
    "heads alike": {"model_type": "qwen3_next", **SIZES, **RULE, **EXPERTS, "linear_num_key_heads": 8},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("users", "tokens"), [(1, 512), (2, 500), (3, 64), (8, 1)])
def test_a_prefill_peaks_where_the_trace_does(family, users, tokens):
    """Of prompts of one token, too, of which a chunk of 64 is made."""
    setup = ServeSetup(FAMILIES[family], users=users, context=tokens, prefill_tokens=users * tokens)
    predicted, found = budget.serve(setup, "a100").at("prefill"), trace.prefill(setup, "a100")
    assert not budget.serve(setup, "a100").why
    assert predicted.total == pytest.approx(found.peak_bytes, rel=0.005)
    assert predicted.parts["activations"] == pytest.approx(found.parts["activations"], rel=0.01)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("users", "tokens"), [(1, 512), (8, 64), (64, 8)])
def test_a_step_of_decoding_peaks_where_the_trace_does(family, users, tokens):
    setup = ServeSetup(FAMILIES[family], users=users, context=tokens)
    whole = ServeSetup(FAMILIES[family], users=users, context=tokens, prompt=1, prefill_tokens=users)
    predicted, found = budget.serve(setup, "a100").at("decode"), _last_step(whole)
    assert predicted.total == pytest.approx(found, rel=0.005)


def _last_step(setup):
    """The most that is alive from the last token's forward on."""
    found = trace.serve(setup, "a100")
    live, highest = 0, {}
    for event in found.events:
        live += event.sign * event.block.size_bytes
        highest[event.phase] = max(live, highest.get(event.phase, 0))
    return highest["decode"]


def test_real_sizes():
    """Qwen3.5-9B's widths in four of its layers, 2,048 tokens."""
    config = {**model("Qwen/Qwen3.5-9B").config, "num_hidden_layers": 4, "layer_types": None}
    setup = ServeSetup(config, context=2048)
    predicted, found = budget.serve(setup, "h100").at("prefill"), trace.prefill(setup, "h100")
    assert predicted.total == pytest.approx(found.peak_bytes, rel=0.002)


def test_the_rule_by_hand():
    """Two heads of 64 and 32, 128 tokens: three squares of 64 a token, and tensors of keys and values in FP32."""
    delta = model(FAMILIES["wider values"]).layers[0].attention.delta
    forward = DeltaForward(delta, sequences=1, tokens=128, width=2)
    token = 8 * 4  # an FP32 for each head
    squares, keys, values = 3 * 64 * token, 5 * 32 * token, 4 * 64 * token
    more = 2 * 8 * 64 * 64 * 4 + 8 * 32 * 64 * 4 + 128 * 64 * token  # of two chunks, the states, the result once more
    gates = 128 * (8 * 64 * 2 + 3 * 8 * 2 + 8 * 4 + delta.channels * 2)
    named = 128 * (squares + keys + values + 3 * token) + 64 * 64 + 512
    assert widest_bytes(forward) == gates + named + more


def test_an_answer_says_whose_rule_is_counted():
    said = str(calculators.serving_answer(ServeSetup("qwen3-next"), None))
    assert "flash-linear-attention" in said
    assert "has no closed form" not in said
    assert "flash-linear-attention" not in str(calculators.serving_answer(ServeSetup("llama-3-8b"), None))
