"""Bytes held, counted on storages, against the closed form: to the byte, for every attention type and kind of cache."""

import pytest

from helpers.catalog import ServeSetup, WorkbookError, model
from helpers.memory import budget
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import FAMILIES, WINDOW, ragged, tiny

KINDS = [
    "concat",
    "dynamic",
    "dynamic:71",
    "static:90",
    "window:20+3",
    "window:8",
    "int8",
    "int4:0",
    "int2:16",
    "int2-per-token",
    "offloaded:71",
]
FP32 = 4
LAYERS_OF_A_WINDOW = {"gemma2-hybrid": [0, 2], "gemma3-hybrid": [0, 1, 2, 3, 4, 6], "mistral-window": [0, 1, 2]}


def filled(net, name, prompt, decoded, rows=2, **numbers):
    """A cache that has seen a prompt in one piece, and then `decoded` tokens one by one."""
    cache = kv.cache_of(net, name, **numbers)
    kv.greedy(net, ragged((prompt,) * rows).ids, decoded + 1, cache)
    return cache


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_held_is_the_closed_form(family, name):
    shape, prompt = model(FAMILIES[family]), 71
    for decoded in (0, 14):
        context = prompt + decoded
        expected = kv.cache_bytes(shape, name, context, users=2, value_bytes=FP32)
        assert kv.held(filled(tiny(family), name, prompt, decoded)) == expected, context


@pytest.mark.parametrize("context", [1, 31, 32, 33, 63, 64, 65, 96])
@pytest.mark.parametrize("name", ["int4", "int2", "int2-per-token", "int8:5"])
def test_a_quantized_cache_at_the_borders_of_its_groups(name, context):
    for prompt in {1, context}:  # however the tokens came
        cache = filled(tiny("llama-gqa"), name, prompt, context - prompt, rows=1)
        assert kv.held(cache) == kv.cache_bytes(model(FAMILIES["llama-gqa"]), name, context, value_bytes=FP32)


def test_scores_of_an_evicting_cache_are_counted_too():
    net, shape = tiny("llama-gqa", "eager"), model(FAMILIES["llama-gqa"])
    expected = kv.cache_bytes(shape, "heavy:20+8", 74, users=2, value_bytes=FP32)
    assert kv.held(filled(net, "heavy:20+8", 71, 3)) == expected
    assert expected.device == 2 * 28 * shape.kv_values(1) * FP32 + 3 * 2 * 2 * 28 * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_naive_cache_is_the_budget_of_serving(family):
    shape = model(FAMILIES[family])
    setup = ServeSetup(shape, users=2, context=73, kv="fp32")
    assert budget.serve(setup).held["kv_cache"] == kv.cache_bytes(shape, "concat", 73, 2, FP32).device
    assert kv.held(filled(tiny(family), "concat", 71, 2)).device == budget.serve(setup).held["kv_cache"]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_dynamic_cache_holds_the_same_while_it_decodes(family):
    cache = kv.transformers_cache(tiny(family), "dynamic")
    kv.greedy(tiny(family), ragged((71, 71)).ids, 3, cache)
    assert kv.held(cache) == kv.cache_bytes(model(FAMILIES[family]), "concat", 73, 2, FP32)


def test_of_a_model_with_windows_only_the_other_layers_follow_the_kind():
    for family, windowed in LAYERS_OF_A_WINDOW.items():
        cache = filled(tiny(family), "int4", 71, 2)
        assert [at for at, layer in enumerate(cache.layers) if layer.is_sliding] == windowed
        assert all(cache.layers[at].keys.shape[2] == WINDOW for at in windowed)


def test_mla_keeps_one_latent_and_no_heads():
    attention = model(FAMILIES["deepseek-mla"]).layers[0].attention
    layer = filled(tiny("deepseek-mla"), "concat", 10, 0, rows=1).layers[0]
    latent, expanded = kv.widths_of(attention), kv.widths_of(attention, expanded=True)
    assert (layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) == (1, 24, 8)
    assert (latent.values, expanded.values) == (24 + 8, 4 * (8 + 8 + 12))
    v3 = model("deepseek-v3").layers[0].attention
    assert (kv.widths_of(v3).values, kv.widths_of(v3, expanded=True).values) == (576, 40_960)


def test_a_prompt_read_in_one_piece_leaves_nothing_of_itself_behind_a_window():
    """Where Transformers' own layer keeps a view of the last tokens, and with it the whole prompt."""
    ours, theirs = (
        kv.cache_of(tiny("mistral-window"), "dynamic"),
        kv.transformers_cache(tiny("mistral-window"), "dynamic"),
    )
    for cache in (ours, theirs):
        kv.greedy(tiny("mistral-window"), ragged((71,)).ids, 1, cache)
    per_token = model(FAMILIES["mistral-window"]).kv_values(1) * FP32
    assert (kv.held(ours).device, kv.held(theirs).device) == (WINDOW * per_token, 71 * per_token)


def test_a_storage_that_two_layers_share_is_counted_once():
    cache = filled(tiny("llama-gqa"), "concat", 10, 0)
    before = kv.held(cache).device
    cache.layers[1].keys = cache.layers[0].keys[:, :, :1]
    assert kv.held(cache).device == before - before // 6


def test_published_sizes():
    llama = model("llama-2-70b")
    assert kv.cache_bytes(llama, "concat", 2048, users=128).device == 80 * 2**30
    full, two_bits = (kv.cache_bytes(model("llama-2-7b"), name, 4096).device for name in ("concat", "int2"))
    assert full == 2 * 2**30
    assert full / two_bits == pytest.approx(16 / (3 + 13 * 32 / 4096), rel=1e-6)  # 3 bits a value, a tail in 16


@pytest.mark.parametrize(
    "numbers", [{"context": 0}, {"context": 2.0}, {"context": 10, "users": 0}, {"context": 10, "value_bytes": True}]
)
def test_bad_counts(numbers):
    with pytest.raises(WorkbookError, match="a whole number from 1 up"):
        kv.cache_bytes(model("tiny-llama"), "dynamic", **numbers)


def test_more_than_a_static_cache_can_hold_has_no_size():
    with pytest.raises(WorkbookError, match="91 tokens in a static cache of 90"):
        kv.cache_bytes(model("tiny-llama"), "static:90", 91)


def test_torch_is_not_needed():
    import subprocess
    import sys

    code = "from helpers.techniques import kv_cache as kv; kv.plan_of('int4'); kv.cache_bytes; kv.phases; import sys;"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
