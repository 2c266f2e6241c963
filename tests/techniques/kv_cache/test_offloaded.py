"""The offloaded cache: what crosses the link, what stays on the device, and that a host copy is a copy."""

import torch

from helpers.catalog import model
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import FAMILIES, ragged, tiny

PROMPT, NEW, ROWS, FP32 = 20, 5, 2, 4


def decoded(family="llama-gqa", **numbers):
    cache = kv.cache_of(tiny(family), "offloaded", **numbers)
    kv.greedy(tiny(family), ragged((PROMPT,) * ROWS).ids, NEW + 1, cache)
    return cache


def test_every_token_goes_out_once_and_comes_back_for_each_later_one():
    a_token = ROWS * model(FAMILIES["llama-gqa"]).kv_values(1) * FP32
    link = decoded().link
    assert link.out_bytes == (PROMPT + NEW) * a_token
    next_first_layer = (PROMPT + NEW) * a_token // 3  # fetched already for a token that nobody asked for
    assert link.back_bytes == sum(PROMPT + step for step in range(NEW)) * a_token + next_first_layer


def test_two_layers_on_the_device_at_most(monkeypatch):
    on_device, handed_over = [], []
    update = kv.OffloadedCache.update

    def watched(cache, keys, values, layer_idx, *args, **kwargs):
        found = update(cache, keys, values, layer_idx, *args, **kwargs)
        on_device.append([at for at, layer in enumerate(cache.layers) if layer.fetched])
        handed_over.append(layer_idx)
        return found

    monkeypatch.setattr(kv.OffloadedCache, "update", watched)
    decoded()
    assert on_device[:2] == [[], []]  # the prompt: what comes next has no past
    assert all(here == [(at + 1) % 3] for here, at in zip(on_device[2:], handed_over[2:], strict=True))


def test_only_layers_without_a_window_leave_and_the_others_are_not_waited_for():
    cache = decoded("gemma3-hybrid")
    assert list(cache.turns) == [5]
    assert kv.held(cache).host == cache.layers[5].host[0].nbytes * 2
    assert all(isinstance(layer, kv.WindowLayer) for at, layer in enumerate(cache.layers) if at != 5)
    assert decoded("mistral-window").link.back_bytes == 0


def test_the_host_keeps_its_own_copy():
    layer = kv.OffloadedLayer(step=4, link=kv.Link())
    keys = torch.randn(1, 2, 3, 4)
    first = keys.clone()
    layer.update(keys, keys)
    keys.zero_()  # the model goes on to use that memory
    found, _ = layer.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    assert torch.equal(found[:, :, :3], first)


def test_fetched_for_one_token_and_several_came():
    layer, keys = kv.OffloadedLayer(step=4, link=kv.Link()), torch.randn(1, 2, 12, 4)
    layer.update(keys[:, :, :5], keys[:, :, :5])
    layer.fetch(1, keys.device)
    found, _ = layer.update(keys[:, :, 5:], keys[:, :, 5:])
    assert torch.equal(found, keys)
    assert layer.host[0].shape[2] == 12
