"""Eviction by attention score, against a loop in plain Python."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import ragged, tiny


def test_the_newest_and_the_most_attended_stay_for_each_head():
    layer, random = kv.EvictingLayer(heavy=3, recent=2), torch.Generator().manual_seed(0)
    drawn = [{}, {}]  # of each key head: what each of its tokens drew
    for at in range(12):
        keys = torch.full((1, 2, 1, 4), float(at))
        held, _ = layer.update(keys, -keys)
        weights = torch.rand(1, 4, 1, held.shape[2], generator=random) ** 4 * (
            at + 1
        )  # two query heads share a key head
        layer.saw(weights)
        for head, scores in enumerate(drawn):
            for slot, token in enumerate(held[0, head, :, 0].long().tolist()):
                scores[token] = scores.get(token, 0) + float(weights[0, 2 * head : 2 * head + 2, 0, slot].sum())
            newest = sorted(scores)[-2:]
            heavy = sorted((token for token in scores if token not in newest), key=scores.get)[-3:]
            drawn[head] = {token: scores[token] for token in heavy + newest}
            assert layer.keys[0, head, :, 0].tolist() == sorted(drawn[head])
            assert torch.equal(layer.values, -layer.keys)
    assert set(drawn[0]) != set(drawn[1])


def test_the_prompt_is_cut_to_size_and_stays_so():
    model = tiny("llama-gqa", "eager")
    cache = kv.cache_of(model, "heavy:6+4")
    kv.greedy(model, ragged((30, 30)).ids, 8, cache)
    assert {layer.keys.shape[2] for layer in cache.layers} == {10}
    assert cache.get_seq_length() == 37


def test_two_caches_of_one_model_do_not_see_each_other():
    model, ids = tiny("llama-gqa", "eager"), ragged((30,)).ids
    first = kv.cache_of(model, "heavy:6+4")
    expected = kv.greedy(model, ids, 6, kv.cache_of(model, "heavy:6+4")).logits
    kv.greedy(model, ids.flip(1), 3, kv.cache_of(model, "heavy:2+2"))
    assert torch.equal(kv.greedy(model, ids, 6, first).logits, expected)


def test_no_scores_no_eviction():
    with pytest.raises(WorkbookError, match="set_attn_implementation"):
        kv.cache_of(tiny("llama-gqa"), "heavy:6+4")
    model = tiny("llama-gqa", "eager")
    cache = kv.cache_of(model, "heavy:6+4")
    other = tiny("llama-mqa")  # its attention shows nothing
    other_cache = type(cache)(layers=cache.layers)
    with pytest.raises(WorkbookError, match="sees no attention weights"):
        kv.greedy(other, ragged((10,)).ids, 3, other_cache)
