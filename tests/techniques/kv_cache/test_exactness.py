"""Caches that lose nothing: the tokens and logits of decoding without a cache, for every attention type."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import FAMILIES, generated, ragged, tiny

NEW = 9
BATCH = ragged()
EXACT = ["concat", "dynamic", "dynamic:5", "static:64", "window:64", "window:60+4", "int8:100", "offloaded:16"]
ENGINES = ["dynamic", "static"]


@pytest.fixture(scope="module")
def without_cache():
    """Greedy decoding by recomputation, once per family."""
    found = {}

    def decoded(family):
        if family not in found:
            found[family] = kv.greedy(tiny(family), BATCH.ids, NEW, attention_mask=BATCH.attention_mask)
        return found[family]

    return decoded


def assert_same(found, expected):
    assert torch.equal(found.tokens, expected.tokens)
    assert (found.logits - expected.logits).abs().max() < 1e-4


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_ragged_batch_decodes_as_without_a_cache(family, name, without_cache):
    model = tiny(family)
    cache = kv.cache_of(model, name, attention_mask=BATCH.attention_mask)
    assert_same(kv.greedy(model, BATCH.ids, NEW, cache, BATCH.attention_mask), without_cache(family))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_itself_runs_on_it(family, name, without_cache):
    model = tiny(family)
    cache = kv.cache_of(model, name, attention_mask=BATCH.attention_mask)
    assert torch.equal(generated(model, BATCH, cache, NEW), without_cache(family).tokens)
    assert cache.get_seq_length() == BATCH.ids.shape[1] + NEW - 1  # the last token was never read


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_caches_beside(family, name, without_cache):
    model = tiny(family)
    cache = kv.transformers_cache(model, name, max_tokens=64)
    assert torch.equal(generated(model, BATCH, cache, NEW), without_cache(family).tokens)


def test_an_evicting_cache_with_room_for_all_is_exact():
    model = tiny("llama-gqa", "eager")
    cache = kv.cache_of(model, "heavy:32+32")
    expected = kv.greedy(model, BATCH.ids, NEW, attention_mask=BATCH.attention_mask)
    assert_same(kv.greedy(model, BATCH.ids, NEW, cache, BATCH.attention_mask), expected)


@pytest.mark.parametrize("name", ["concat", "dynamic:8", "static:64", "int8:100", "offloaded:8"])
@pytest.mark.parametrize("family", ["llama-gqa", "gemma3-hybrid"])
def test_a_prompt_in_pieces_is_a_prompt(family, name):
    model, ids, cache = tiny(family), BATCH.ids[:1], kv.cache_of(tiny(family), name)
    with torch.no_grad():
        pieces = [model(input_ids=piece, past_key_values=cache).logits for piece in ids.split([20, 1, 1, 17, 2], 1)]
        assert (torch.cat(pieces, 1) - model(input_ids=ids, use_cache=False).logits).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["concat", "dynamic", "static:64", "window:8+2", "int4:8", "offloaded"])
def test_a_cache_that_was_reset_is_empty(name):
    model = tiny("llama-gqa")
    cache = kv.cache_of(model, name)
    first = kv.greedy(model, BATCH.ids[:1], NEW, cache)
    cache.reset()
    assert kv.held(cache).total == 0
    assert torch.equal(kv.greedy(model, BATCH.ids[:1], NEW, cache).logits, first.logits)


def test_what_generate_asks_and_a_cache_cannot_do_is_refused():
    model, cache = tiny("llama-gqa"), kv.cache_of(tiny("llama-gqa"), "int4")
    with pytest.raises(WorkbookError, match="cannot reorder"):
        model.generate(BATCH.ids[:1], past_key_values=cache, num_beams=2, max_new_tokens=4, pad_token_id=0)


def test_another_batch_in_the_same_cache_is_refused():
    model, cache = tiny("llama-gqa"), kv.cache_of(tiny("llama-gqa"), "dynamic")
    kv.greedy(model, BATCH.ids, 1, cache)
    with pytest.raises(WorkbookError, match="1 sequences for a cache of 3"), torch.no_grad():
        model(input_ids=BATCH.ids[:1], past_key_values=cache)


def test_padding_of_another_batch_is_refused():
    model = tiny("llama-gqa")
    cache = kv.cache_of(model, "window:8", attention_mask=BATCH.attention_mask[:1])
    with pytest.raises(WorkbookError, match="3 sequences for a cache of 1"):
        kv.greedy(model, BATCH.ids, 1, cache)


def test_gradients_through_a_cache_are_refused():
    with pytest.raises(WorkbookError, match="no_grad"):
        tiny("llama-gqa")(input_ids=BATCH.ids, past_key_values=kv.cache_of(tiny("llama-gqa"), "dynamic"))
