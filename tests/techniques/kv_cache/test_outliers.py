"""Channels of the keys: none stand out in the small model; planted, they break keys with a scale per token."""

import functools

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.small_lm import held_out_documents, load, recall
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import ragged, tiny


@pytest.fixture(scope="module")
def small():
    return load().model


@pytest.fixture(scope="module")
def planted(small):
    return kv.plant_key_outliers(small, factor=10)


def ids():
    return torch.tensor([held_out_documents(1, 256)[0].ids])


def test_planting_changes_the_keys_and_not_the_function(small, planted):
    with torch.no_grad():
        assert (small(ids()).logits - planted(ids()).logits).abs().max() < 1e-3
    before, after = (kv.key_channels(model, ids(), 1) for model in (small, planted))
    chosen = torch.zeros_like(before, dtype=torch.bool)
    chosen[:, [13, 13 + 16]] = True
    assert torch.allclose(after[chosen], 10 * before[chosen], rtol=1e-3)
    assert torch.allclose(after[~chosen], before[~chosen], rtol=1e-3)
    assert kv.outlier_ratio(before) < 4 < kv.outlier_ratio(after)


def test_half_a_rotary_pair_would_change_the_function(small):
    """Why both channels of a pair: the rotation mixes them."""
    import copy

    broken = copy.deepcopy(small)
    with torch.no_grad():
        broken.model.layers[1].self_attn.k_proj.weight[13] *= 10
        for head in range(6):
            broken.model.layers[1].self_attn.q_proj.weight[head * 32 + 13] /= 10
        assert (small(ids()).logits - broken(ids()).logits).abs().max() > 0.1


def test_recall_at_two_bits_needs_a_scale_per_channel(planted):
    """Seen, 64 questions: 100 % per channel, 17 % per token."""
    rates = {
        name: recall(planted, distances=(500,), cache=functools.partial(kv.cache_of, planted, name)).total
        for name in ("int2", "int2-per-token")
    }
    assert rates["int2"] > 0.95
    assert rates["int2-per-token"] < 0.5


def test_recall_of_what_left_the_window_is_gone(small):
    """Seen: 100 % at 100 words, 0 % at 500."""
    found = recall(small, distances=(100, 500), cache=functools.partial(kv.cache_of, small, "window:256+4"))
    assert found[100] > 0.95
    assert found[500] < 0.1


def test_magnitudes_are_means_over_the_cached_keys():
    model, batch = tiny("llama-gqa"), ragged((12, 12)).ids
    cache = kv.cache_of(model, "concat")
    kv.greedy(model, batch, 1, cache)
    expected = sum(abs(cache.layers[2].keys[row, :, at]) for row in range(2) for at in range(12)) / 24
    assert torch.allclose(kv.key_channels(model, batch, 2), expected)


@pytest.mark.parametrize("layer", [3, -1, True, "0"])
def test_a_layer_that_is_not_there(layer):
    with pytest.raises(WorkbookError, match="a whole number from 0 to 2"):
        kv.key_channels(tiny("llama-gqa"), ragged((5,)).ids, layer)


@pytest.mark.parametrize(
    ("family", "numbers", "said"),
    [
        ("gpt2-mha", {}, "Llama-shaped"),
        ("qwen3-head-dim", {}, "norm"),
        ("llama-gqa", {"factor": 0}, "factor is 0"),
        ("llama-gqa", {"pairs": (4,)}, "below 4"),
        ("llama-gqa", {"pairs": ()}, "below 4"),
    ],
)
def test_where_nothing_can_be_planted(family, numbers, said):
    with pytest.raises(WorkbookError) as error:
        kv.plant_key_outliers(tiny(family), **{"pairs": (1,), **numbers})
    assert said in str(error.value)
