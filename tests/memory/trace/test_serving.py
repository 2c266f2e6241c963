"""A batch traced from its prompts to its last token: against every step run, and packed weights against their bytes."""

from dataclasses import replace

import pytest
from transformers.integrations import sdpa_attention

from helpers.catalog import ServeSetup, WorkbookError
from helpers.memory import budget, trace
from helpers.memory.trace import serving
from tests.memory.configs import variant
from tests.versions import since

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
LLAMA, WINDOWED = variant("llama-3-8b", **SMALL), variant("mistral-7b", **SMALL, head_dim=32, sliding_window=40)

like_steps = since("transformers", "5.23", "repeats K and V for the mask of a full window")
MODELS = [
    pytest.param(LLAMA, id="llama"),
    pytest.param(WINDOWED, id="windowed", marks=like_steps),
    pytest.param("tiny-gpt2", id="gpt2"),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("prompt", "context"), [(1, 60), (30, 90), (37, 60), (120, 140)])
def test_steps_that_are_continued_end_as_those_that_are_run(model, prompt, context, monkeypatch):
    setup = ServeSetup(model, users=3, context=context, prompt=prompt)
    told = trace.serve(setup)
    monkeypatch.setattr(serving, "REAL_STEPS", 1000)
    run = trace.serve(setup)
    assert told.peak_bytes == pytest.approx(run.peak_bytes, abs=512)  # a window's mask, at the byte where it is full
    assert told.peak.at == run.peak.at
    assert told.peak_allocated_bytes == pytest.approx(run.peak_allocated_bytes, rel=0.001)
    assert told.measured.at("decode").parts["kv_cache"] == run.measured.at("decode").parts["kv_cache"]
    assert told.on_gpu.allocated[-1] == run.on_gpu.allocated[-1]
    assert len(told.events) < len(run.events)


def test_before_5_23_a_window_that_fills_later_is_refused(monkeypatch):
    """The steps after that would be like none that is run."""
    monkeypatch.delattr(sdpa_attention, "pack_gqa", raising=False)
    setup = ServeSetup(WINDOWED, users=3, context=60, prompt=1)
    with pytest.raises(WorkbookError, match="window of 40 tokens fills"):
        serving._require_steps_alike(setup, 39)
    serving._require_steps_alike(setup, 40)
    serving._require_steps_alike(replace(setup, context=39), 3)


def test_the_peak_is_the_higher_of_prefill_and_decoding():
    long, short = (trace.serve(ServeSetup(LLAMA, users=2, context=400, prompt=prompt)) for prompt in (380, 1))
    assert (long.peak.at, short.peak.at) == ("prefill", "decode")
    for found in (long, short):
        assert found.peak_bytes == max(moment.total for moment in found.measured.moments)
        assert {moment.at for moment in found.measured.moments} == {"prefill", "decode"}


def test_what_a_forward_makes_is_called_activations_and_logits():
    found = trace.prefill(ServeSetup(LLAMA, users=40, context=64))
    assert found.parts["activations"] > 3 * 40 * 64 * 1024 * 2
    assert found.parts["workspace"] == found.library_bytes == 8_519_680
    assert any(
        block.category == "logits" and block.shape[-1] == 512 for block in (event.block for event in found.events)
    )


def test_pieces_of_a_prompt_lower_the_peak_and_take_a_mask_in_transformers():
    setup = ServeSetup(LLAMA, users=1, context=2048)
    whole, pieces = trace.serve(setup), trace.serve(replace(setup, prefill_tokens=256))
    predicted = budget.serve(replace(setup, prefill_tokens=256), "a100")
    assert predicted.peak_bytes < pieces.peak_bytes < whole.peak_bytes
    mask, repeated = 256 * 2048 * (1 + 2), 2 * 2048 * 256 * 2
    assert pieces.peak_bytes - predicted.peak_bytes <= mask + repeated


@pytest.mark.parametrize(
    "weights", ["gptq-int4", "gptq-int8", "awq-int4", "int4-g64", "int3-g128", "fp8-e4m3", "mxfp8"]
)
def test_packed_weights_hold_what_the_closed_form_counts(weights):
    setup = ServeSetup(LLAMA, weights, "fp16", users=2, context=700)
    found, predicted = trace.serve(setup), budget.serve(replace(setup, prefill_tokens=1400), "a100")
    tensors = 2 * 7 * 5 + 10
    assert 0 <= found.parts["parameters"] - predicted.held["parameters"] <= 512 * tensors
    later = predicted.library_bytes - found.library_bytes  # before the head, kernels that decode use no cuBLAS
    assert predicted.peak_bytes - later == pytest.approx(found.peak_bytes, rel=0.01)


def test_a_kernel_that_decodes_a_weight_for_many_tokens_holds_it_while_it_multiplies():
    """At few tokens a weight in 16 bits is larger than what an MLP makes."""
    wide = variant("llama-3-8b", **{**SMALL, "intermediate_size": 8192})
    setups = [ServeSetup(wide, weights, "fp16", context=1024) for weights in ("int8-g128", "gptq-int8")]
    fused, decoded = (trace.prefill(replace(setup, context=130)).parts for setup in setups)
    assert decoded["workspace"] - fused["workspace"] == 2 * 256 * 8192
    few = [trace.prefill(replace(setup, context=127)).parts["workspace"] for setup in setups]
    assert few[0] == few[1]


def test_layers_that_are_skipped_stay_in_16_bits():
    setup = ServeSetup(LLAMA, "awq-int4", "fp16", context=64)
    more = [
        trace.prefill(replace(setup, skipped=names)).parts["parameters"] for names in (("lm_head",), ("down_proj",))
    ]
    assert more[1] - more[0] == pytest.approx(2 * 256 * 1024 * 1.47 - 512 * 256 * 1.47, rel=0.05)


@pytest.mark.parametrize(
    ("setup", "phrase"),
    [
        (ServeSetup("mixtral-8x7b", "gptq-int4", "fp16"), "has experts"),
        (ServeSetup(LLAMA, "gptq-int4", "fp8-e4m3"), "not traced"),
        (ServeSetup(LLAMA, "int8"), "not traced"),
        (ServeSetup(LLAMA, "bf16", "fp16"), "not traced"),
    ],
)
def test_what_is_not_traced_is_refused(setup, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        trace.serve(setup)


HYBRID = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}


@pytest.mark.parametrize(("model", "a_token"), [(HYBRID, 2 * 64), (LLAMA, 2 * 32)])
def test_the_trace_holds_the_cache_that_the_closed_form_counts(model, a_token):
    """States and convolutions, too; and the old keys of one layer, while the new ones are put behind them."""
    setup = ServeSetup(model, users=3, context=300, prompt=250)
    old_keys = 3 * 299 * a_token * 2
    traced = trace.serve(setup).measured.at("decode").parts["kv_cache"]
    assert traced - budget.serve(setup).held["kv_cache"] == -(-old_keys // 512) * 512


def test_drafts_are_not_traced():
    with pytest.raises(WorkbookError, match="2 drafts are not traced"):
        trace.serve(ServeSetup(HYBRID, drafts=2))
