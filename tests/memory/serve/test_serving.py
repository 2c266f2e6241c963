"""A serving replica in closed form, against the trace of the running models."""

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, WorkbookError
from helpers.memory import budget, trace
from tests.memory.configs import variant
from tests.versions import unmasked_opt

GIB = 2**30
SMALL = {"num_hidden_layers": 3, "vocab_size": 512}
LLAMA = {**SMALL, "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2}
WINDOWED = {**LLAMA, "head_dim": 32, "sliding_window": 96}


@pytest.fixture(scope="module")
def shapes():
    return {
        "llama": variant("llama-3-8b", **LLAMA),
        "qwen2": variant("qwen2.5-7b", **LLAMA),
        "qwen3": variant("qwen3-8b", **LLAMA, head_dim=64),
        "mistral": variant("mistral-7b", **WINDOWED),
        "phi3": variant("phi-3-mini-4k", pad_token_id=0, **{**WINDOWED, "num_key_value_heads": 8}),
        "gemma2": variant("gemma-2-9b", **WINDOWED),
        "gemma3": variant("gemma-3-1b", **WINDOWED),
        "smollm3": {**LLAMA, "model_type": "smollm3", "pad_token_id": 0},
        "gpt2": "tiny-gpt2",
        "opt": variant(
            "opt-13b", **SMALL, hidden_size=256, num_attention_heads=8, word_embed_proj_dim=256, ffn_dim=1024
        ),
    }


@pytest.mark.parametrize(("name", "tokens"), [("mixtral-8x7b", 2048), ("mixtral-8x7b", 64), ("qwen3-30b-a3b", 4096)])
def test_experts_peak_where_the_trace_does(name, tokens):
    setup = ServeSetup(name, context=tokens)
    predicted, found = budget.serve(setup, "a100").at("prefill"), trace.prefill(setup, "a100")
    assert predicted.parts["activations"] == pytest.approx(found.parts["activations"], rel=0.01)
    assert predicted.total == pytest.approx(found.peak_bytes, rel=0.0005)


FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3", "smollm3", "gpt2", "opt")


@pytest.mark.parametrize("family", [*FAMILIES[:-1], pytest.param("opt", marks=unmasked_opt)])
@pytest.mark.parametrize(("users", "tokens"), [(1, 160), (3, 128)])
def test_a_prefill_peaks_where_the_trace_does(family, users, tokens, shapes):
    biased = family in ("gpt2", "opt")
    users *= 24 if biased else 1  # so that the activations are more than the workspace that the head's product makes
    setup = ServeSetup(shapes[family], users=users, context=tokens, prefill_tokens=users * tokens)
    predicted, found = budget.serve(setup, "a100").at("prefill"), trace.prefill(setup, "a100")
    assert not budget.serve(setup, "a100").why
    # Before its first product without a bias, which is the head's, a model of biased products has no cuBLAS workspace
    first = 8_519_680 if biased else 0
    assert predicted.total - first == pytest.approx(found.peak_bytes, rel=0.005, abs=2**14)
    dropped = budget.serve(setup, "a100").dropped_bytes  # which the trace sees in the cache
    assert predicted.parts["kv_cache"] + dropped == found.parts["kv_cache"]
    activations = predicted.parts["activations"] - dropped
    assert activations == pytest.approx(found.parts["activations"], rel=0.03, abs=2**12)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decode_step_peaks_where_the_trace_does(family, shapes):
    setup = ServeSetup(shapes[family], users=5, context=90)
    predicted, found = budget.serve(setup, "a100").at("decode"), trace.decode(setup, "a100")
    assert predicted.total == pytest.approx(found.peak_bytes, rel=0.004, abs=2**14)


def test_what_is_held_is_no_matter_of_the_forward():
    setup = ServeSetup("llama-3-8b", users=8, context=4096)
    held = {budget.serve(replace(setup, prefill_tokens=most, prompt=prompt)).held.total
            for most in (None, 512, 10**5) for prompt in (None, 1, 100)}  # fmt: skip
    assert len(held) == 1


def test_pieces_of_a_prompt_take_less_and_several_prompts_more():
    setup = ServeSetup("llama-3-8b", users=8, context=4096)
    peaks = [budget.serve(replace(setup, prefill_tokens=most)).at("prefill").total for most in (512, 2048, None, 16384)]
    assert peaks == sorted(set(peaks))


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize(("most", "held"), [(None, 164), (41, 95 + 41), (82, 164)])
def test_a_window_holds_itself_and_one_piece_as_the_trace_does(family, most, held, shapes):
    """A window of 96 tokens: the 95 before a piece, and the piece. Sizes are whole multiples of 512 bytes."""
    setup = ServeSetup(shapes[family], context=164, prefill_tokens=most)
    assert {layer.attention.kv_values(164, most or 164) for layer in setup.model.layers} == {2 * 2 * 32 * held}
    found, predicted = trace.serve(setup, "a100").measured.at("prefill"), budget.serve(setup, "a100")
    assert predicted.at("prefill").parts["kv_cache"] + predicted.dropped_bytes == found.parts["kv_cache"]


def test_gemma_at_131072_tokens_keeps_1024_of_them_in_52_of_62_layers():
    """Whole, as Transformers takes it, it does not fit an H200. The trace's cache at its peak in pieces: 13.66 GiB."""
    setup = ServeSetup("gemma-3-27b-text", context=131072)
    found, whole = budget.serve(setup, "h200"), budget.serve(replace(setup, prefill_tokens=131072), "h200")
    layer = 2 * 16 * 128 * 2
    assert found.parts["kv_cache"] == found.held["kv_cache"] == layer * (10 * 131072 + 52 * 1024)
    assert found.dropped_bytes == layer * 52 * (8192 - 1)
    assert found.peak_bytes / GIB == pytest.approx(65.3, abs=0.05)
    assert whole.peak_bytes / GIB == pytest.approx(149.5, abs=0.05)
    assert whole.held == found.held


def test_a_long_prompt_comes_in_pieces_and_a_short_one_whole():
    tokens = {prompt: ServeSetup("llama-3-8b", users=4, context=prompt).forward for prompt in (4096, 8192, 8193, 30720)}
    assert tokens == {4096: (1, 4096), 8192: (1, 8192), 8193: (1, 8192), 30720: (1, 8192)}


def test_a_card_adds_its_workspace_and_a_buffer_stays_with_exllama():
    plain, gptq = (ServeSetup("llama-3-8b", weights, context=256) for weights in ("int4-g128", "gptq-int4"))
    assert budget.serve(plain, "h100").peak_bytes - budget.serve(plain).peak_bytes == 32 * 2**20
    largest = 2 * 4096 * 14336
    assert [moment.parts["workspace"] for moment in budget.serve(gptq).moments] == [largest] * 2
    inputs = 32 * (6 * 4096 + 14336) * 4
    assert budget.serve(gptq).held["parameters"] - budget.serve(plain).held["parameters"] == inputs


@pytest.mark.parametrize(("tokens", "decoded"), [(1023, 8 * 1023 * 2 * 14336), (1024, 2 * 4096 * 14336)])
def test_awq_adds_up_partial_sums_for_few_tokens_and_decodes_for_many(tokens, decoded):
    awq, fused = (ServeSetup("llama-3-8b", weights, context=tokens) for weights in ("awq-int4", "int4-g128"))
    wide = tokens * 2 * 14336
    assert budget.serve(awq).at("prefill").total - budget.serve(fused).at("prefill").total == decoded - wide


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b"])
def test_a_model_without_a_closed_form_says_so_and_counts_what_it_holds(name):
    found = budget.serve(ServeSetup(name, context=1000))
    assert "no closed form" in found.why
    assert found.peak_bytes == found.held.total


def test_a_card_without_a_fused_kernel_says_so():
    assert "falls back to the plain formula" in budget.serve(ServeSetup("llama-3-8b"), "t4").why
    assert not budget.serve(ServeSetup("llama-3-8b"), "mi300x").why


@pytest.mark.parametrize("bad", [{"prompt": 0}, {"prompt": 4097}, {"prompt": 2.0}, {"prefill_tokens": 0}])
def test_a_prompt_longer_than_the_context_is_refused(bad):
    with pytest.raises(WorkbookError):
        ServeSetup("llama-3-8b", context=4096, **bad)
