"""The shipped model is good enough to teach with, and breaks where theory says it does."""

import copy

import pytest
import torch
from torch import nn
from transformers import Cache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from helpers.small_lm import load, perplexity, plant, recall
from helpers.techniques.quantization.grids import Grid

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    return load().model


@pytest.fixture(scope="module")
def whole(model):
    return perplexity(model)


def rounded(model, grid):
    """A copy whose linear layers, lm_head aside, hold rounded weights."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for linear in made.model.modules():
            if isinstance(linear, nn.Linear):
                linear.weight.copy_(grid.round(linear.weight))
    return made


def test_recall_at_every_distance(model):
    """192 questions at each: one in fifty may be missed."""
    scored = recall(model, distances=(10, 20, 50, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1000), documents=12)
    assert min(asked.rate for asked in scored.by_distance) >= 0.98, str(scored)


@pytest.mark.all
def test_two_bits_per_tensor_destroy_it(model, whole):
    broken = rounded(model, Grid(bits=2, group="tensor"))
    assert perplexity(broken) > 10 * whole
    assert recall(broken).total < 0.3


def test_three_bits_per_group_are_seen_and_bearable(model, whole):
    ratio = perplexity(rounded(model, Grid(bits=3, group=64))) / whole
    assert 1.005 < ratio < 1.25


def test_four_bits_per_group_hardly_show(model, whole):
    rough, fine = Grid(bits=3, group=64), Grid(bits=4, group=64)
    assert perplexity(rounded(model, fine)) - whole < 0.5 * (perplexity(rounded(model, rough)) - whole)
    assert recall(rounded(model, fine)).total > 0.98


@pytest.mark.parametrize("window", [128, pytest.param(512, marks=pytest.mark.all)])
def test_a_window_forgets_what_lies_before_it(model, window):
    layers = model.config.num_hidden_layers
    scored = recall(
        model,
        distances=(50, 100, 250, 500, 1000),
        cache=lambda: Cache(layers=[DynamicSlidingWindowLayer(window) for _ in range(layers)]),
    )
    for asked in scored.by_distance:
        if asked.distance < window - 16:
            assert asked.rate > 0.95
        elif asked.distance > window:
            assert asked.rate < 0.3


class RoundedKeys(DynamicLayer):
    """Keys rounded as they come: one scale per token and head, `bits` bits."""

    bits = 2

    def update(self, keys, values, *args, **kwargs):
        grid = Grid(bits=self.bits, group="row")
        return super().update(grid.round(keys.flatten(0, 2)).view_as(keys), values, *args, **kwargs)


class EightBitKeys(RoundedKeys):
    bits = 8


@pytest.mark.all
def test_two_bit_keys_per_token_lose_facts(model):
    def through(layer):
        return recall(model, cache=lambda: Cache(layers=[layer() for _ in range(model.config.num_hidden_layers)]))

    kept = through(EightBitKeys)
    assert kept.total >= 0.98
    assert through(RoundedKeys).total < kept.total - 0.02


def test_planted_outliers_change_nothing_but_activations(model, whole):
    planted = plant(model)
    assert perplexity(planted) == pytest.approx(whole, rel=1e-4)
    ids = torch.arange(4, 200)[None]
    with torch.no_grad():
        torch.testing.assert_close(planted(ids).logits, model(ids).logits, atol=1e-4, rtol=0)
