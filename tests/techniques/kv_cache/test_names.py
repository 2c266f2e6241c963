"""Caches by name: what a name means, and every name or number that means nothing."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import ragged, tiny

GOOD = [
    ("concat", {}, kv.ConcatLayer, {}),
    ("dynamic", {}, kv.GrowingLayer, {"step": 64}),
    ("dynamic:128", {}, kv.GrowingLayer, {"step": 128}),
    ("static:512", {"batch": 4}, kv.StaticLayer, {"max_tokens": 512, "batch": 4}),
    ("static", {"max_tokens": 9}, kv.StaticLayer, {"max_tokens": 9, "batch": 0}),
    ("window:128", {}, kv.WindowLayer, {"window": 128, "sinks": 0}),
    ("window:128+4", {}, kv.WindowLayer, {"window": 128, "sinks": 4}),
    ("int8", {}, kv.QuantizedLayer, {"bits": 8, "per": "channel", "group": 32, "residual": 32}),
    ("int4:0", {"group": 16}, kv.QuantizedLayer, {"bits": 4, "group": 16, "residual": 0}),
    ("int2-per-token:8", {}, kv.QuantizedLayer, {"bits": 2, "per": "token", "residual": 8}),
    ("offloaded", {"step": 7}, kv.OffloadedLayer, {"step": 7}),
]
# name, numbers, and what the message must hold
BAD = [
    ("int5", {}, "int8"),
    ("windows", {}, "did you mean 'window:128+4'"),
    ("dinamic", {}, "did you mean 'dynamic'"),
    ("Int4", {}, "did you mean 'int4'"),
    ("window", {}, "a window cache without window"),
    ("static", {}, "a name such as 'static:512'"),
    ("heavy:96", {}, "without recent"),
    ("window:0", {}, "window of a window cache is 0"),
    ("window:-3", {}, "unknown KV cache"),
    ("window:1+2+3", {}, "unknown KV cache"),
    ("concat:3", {}, "unknown KV cache"),
    ("dynamic-per-token", {}, "unknown KV cache"),
    ("static:512", {"max_tokens": 9}, "max_tokens=9 beside 'static:512'"),
    ("dynamic", {"window": 9}, "window=9 beside 'dynamic'"),
    ("dynamic", {"step": 2.0}, "step of a dynamic cache is 2.0"),
    ("static:8", {"batch": True}, "batch of a static cache is True"),
    ("int4", {"group": 6}, "multiple of 4"),
    ("int4", {"residual": -1}, "residual of a int4 cache is -1"),
    (None, {}, "unknown KV cache None"),
    (4, {}, "unknown KV cache 4"),
    ("", {}, "unknown KV cache ''"),
]


@pytest.mark.parametrize(("name", "numbers", "kind", "expected"), GOOD)
def test_a_name(name, numbers, kind, expected):
    layers = kv.cache_of(tiny("llama-gqa"), name, **numbers).layers
    assert [type(layer) for layer in layers] == [kind] * 3
    assert {key: getattr(layers[0], key) for key in expected} == expected


@pytest.mark.parametrize(("name", "numbers", "said"), BAD)
def test_no_name(name, numbers, said):
    with pytest.raises(WorkbookError) as error:
        kv.plan_of(name, **numbers)
    assert said in str(error.value)


def test_no_model():
    with pytest.raises(WorkbookError, match="a model of type str"):
        kv.cache_of("tiny-llama", "int4")


def test_every_example_is_a_name_and_a_plan_is_its_own():
    for name in kv.EXAMPLES:
        assert kv.plan_of(kv.plan_of(name)) == kv.plan_of(name)
    with pytest.raises(WorkbookError, match="one or the other"):
        kv.plan_of(kv.plan_of("int4"), residual=3)


def test_a_full_static_cache_says_how_many_would_fit_and_is_unharmed():
    model, ids = tiny("llama-gqa"), ragged((30,)).ids
    cache = kv.cache_of(model, "static:32")
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache)
        with pytest.raises(WorkbookError) as error:
            model(input_ids=ids[:, :5], past_key_values=cache)
        assert error.value.what == "StaticCache full: 32 positions, 30 of them taken, and 5 more came"
        assert error.value.expected == "at most 2 more"
        assert "max_tokens=35" in error.value.do
        found = model(input_ids=ids[:, :2], past_key_values=cache).logits
        expected = model(input_ids=torch.cat([ids, ids[:, :2]], 1), use_cache=False).logits[:, -2:]
    assert (found - expected).abs().max() < 1e-4
    assert cache.get_max_length() == 32


def test_generate_past_the_end_is_refused_too():
    model = tiny("llama-gqa")
    with pytest.raises(WorkbookError, match="StaticCache full: 32 positions, 32 of them taken, and 1 more"):
        model.generate(
            ragged((30,)).ids,
            past_key_values=kv.cache_of(model, "static:32"),
            max_new_tokens=9,
            do_sample=False,
            pad_token_id=0,
        )


def test_a_static_cache_reserves_for_its_batch():
    model, ids = tiny("llama-gqa"), ragged((10, 10)).ids
    cache = kv.cache_of(model, "static:32", batch=4)
    two = kv.greedy(model, ids, 3, cache)
    assert torch.equal(two.tokens, kv.greedy(model, ids, 3).tokens)
    assert len(cache.layers[0].keys) == 4
    with pytest.raises(WorkbookError, match="holds 1 sequences, and 2 came"):
        kv.greedy(model, ids, 1, kv.cache_of(model, "static:32", batch=1))


def test_layers_that_keep_no_keys_stay_those_of_transformers():
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "lfm2",
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=60,
        num_key_value_heads=2,
        layer_types=["conv", "full_attention"],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    cache = kv.cache_of(model, "dynamic")
    assert [isinstance(layer, kv.KVLayer) for layer in cache.layers] == [False, True]
    ids = ragged((12,)).ids
    assert torch.equal(kv.greedy(model, ids, 5, cache).tokens, kv.greedy(model, ids, 5).tokens)


ENGINES = [
    ("dynamik", {}, "did you mean 'dynamic'"),
    ("static", {}, "pass max_tokens=512"),
    ("offloaded", {}, "a CUDA device"),
    ("quanto", {}, "optimum.quanto"),
    ("hqq", {}, "not installed"),
]


@pytest.mark.parametrize(("name", "options", "said"), ENGINES)
def test_what_transformers_cannot_do_here(name, options, said):
    if (name == "offloaded" and torch.cuda.is_available()) or _installed(name):
        pytest.skip("this machine can")
    with pytest.raises(WorkbookError) as error:
        kv.transformers_cache(tiny("llama-gqa"), name, **options)
    assert said in str(error.value)


def test_transformers_fp8_where_it_has_it():
    model, ids = tiny("llama-gqa"), ragged((30,)).ids
    try:
        cache = kv.transformers_cache(model, "fp8")
    except WorkbookError as error:
        pytest.skip(str(error))
    logits = kv.greedy(model, ids, 2, cache).logits
    assert (logits - kv.greedy(model, ids, 2).logits).abs().max() < 0.5
    with pytest.raises(WorkbookError, match="full attention"):
        kv.transformers_cache(tiny("mistral-window"), "fp8")


def _installed(name):
    import importlib.util

    return name in ("quanto", "hqq") and importlib.util.find_spec({"quanto": "optimum"}.get(name, name)) is not None
