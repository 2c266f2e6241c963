"""The causes that chapter 12 and its companion name, each beside its control."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DynamicCache, LlamaForCausalLM, QuantizedCache
from transformers.cache_utils import Cache

from helpers import small_lm
from helpers.course import notebook as nb
from helpers.lesson import service
from helpers.small_lm import scores
from helpers.small_lm.language import recall_documents
from helpers.techniques import kv_cache as kv
from tests.house.tree import ROOT

DISTANCES = (100, 500)


@cache
def sources(under: str = "") -> dict[str, str]:
    (path,) = (ROOT / "notebooks" / under).glob("12_*.ipynb")
    return {cell.id: cell.source for cell in nb.read(path).cells}


@cache
def network() -> Any:
    return small_lm.load().model


@cache
def defined() -> dict[str, Any]:
    """What the chapter's cell on formats defines, from its own text."""
    exec(sources()["fp8-layer"], names := {"torch": torch, "kv": kv, "Cache": Cache, "network": network()})
    return names


def recall(net, store, values_too: bool = True) -> float:
    """With keys, and values, stored so; `store` sees the tokens that come together."""
    layer = defined()["Rounded"]

    class KeysAlone(layer):
        def append(self, keys, values):
            self.store, whole = (lambda each: store(each) if each is keys else each), self.store
            found = super().append(keys, values)
            self.store = whole
            return found

    made = layer if values_too else KeysAlone
    return small_lm.recall(net, DISTANCES, lambda: Cache(layers=[made(store) for _ in net.model.layers])).total


def along_tokens(store, keys):
    """`store` for blocks of 16 tokens of one channel; what fills none stays as it came."""
    whole = keys.shape[2] // 16 * 16
    turned = keys[:, :, :whole].transpose(2, 3).contiguous()
    return torch.cat([store(turned).transpose(2, 3) if whole else keys[:, :, :0], keys[:, :, whole:]], 2)


def test_planting_channels_changes_no_prediction():
    documents = torch.tensor([each.ids for each in small_lm.language.held_out_documents(2, 512)])
    with torch.no_grad():
        one, other = (net(documents).logits for net in (network(), kv.plant_key_outliers(network(), factor=30)))
    assert torch.equal(one.argmax(-1), other.argmax(-1))


def test_nvfp4_forgets_because_neighbours_share_the_scale_of_a_large_channel():
    planted, store = kv.plant_key_outliers(network(), factor=30), defined()["nvfp4"]
    assert recall(network(), store) > 0.99
    assert recall(planted, store) < 0.9
    assert recall(planted, partial(along_tokens, store)) > 0.98  # as many bits, and no neighbour
    assert recall(planted, store, values_too=False) < 0.9  # it is the keys


def test_nvfp4_rounds_the_neighbours_away_and_not_the_large_channels():
    planted, store = kv.plant_key_outliers(network(), factor=100), defined()["nvfp4"]
    large = torch.zeros(32, dtype=torch.bool)
    large[[13, 29]] = True
    assert recall(planted, lambda keys: torch.where(large, store(keys), keys), values_too=False) > 0.98
    assert recall(planted, lambda keys: torch.where(large, keys, store(keys)), values_too=False) < 0.2
    apart = recall(planted, lambda keys: torch.where(large, keys, store(keys.masked_fill(large, 0))), values_too=False)
    assert apart > 0.98  # the neighbours alone have a scale


def test_which_channels_are_large_decides_as_well():
    assert recall(kv.plant_key_outliers(network(), factor=30, pairs=(0,)), defined()["nvfp4"]) < 0.1


def test_fp8_forgets_only_what_is_cut():
    planted, fp8 = kv.plant_key_outliers(network(), factor=100), defined()["fp8"]
    assert recall(planted, fp8) < 1
    assert recall(planted, lambda each: 8 * fp8(each / 8)) == 1  # a scale
    assert recall(kv.plant_key_outliers(network(), factor=30), fp8) == 1  # one key of a hundred is cut


def test_what_a_window_gets_right_behind_it_is_luck():
    (text,) = scores.tokenized_texts(network(), recall_documents(1000, 4), None)
    answers, facts = list(text.answers), [position - 1000 for position in text.answers]
    exchanged = text.ids.clone()
    exchanged[:, facts] = exchanged[:, facts].roll(1, 1)
    with torch.no_grad():
        said = {
            name: [
                torch.stack(
                    [*scores._decoded(network(), replace(text, ids=ids), kv.cache_of(network(), name))], 1
                ).argmax(-1)
                for ids in (text.ids, exchanged)
            ]
            for name in ("window:256", "concat")
        }
    assert torch.equal(*said["window:256"])
    assert 0 < (said["window:256"][0] == text.ids[:, answers]).float().mean() < 0.1
    assert not torch.equal(*said["concat"])


def test_what_more_cards_win_is_the_room_of_weights():
    narrow, wide = service.launch(), service.launch(cards=16)
    assert narrow.user_bytes == wide.user_bytes
    won = (narrow.weight_bytes - wide.weight_bytes) // wide.user_bytes
    assert wide.users - narrow.users == pytest.approx(won, abs=1)
    assert service.launch(cards=4).user_bytes == 2 * narrow.user_bytes


def perplexity(net, name: str, texts: torch.Tensor) -> float:
    cache, losses = kv.cache_of(net, name), []
    with torch.no_grad():
        logits = net(texts[:, :400], past_key_values=cache, use_cache=True).logits[:, -1]
        for at in range(400, 440):
            losses.append(torch.nn.functional.cross_entropy(logits, texts[:, at]))
            logits = net(texts[:, at : at + 1], past_key_values=cache, use_cache=True).logits[:, -1]
    return float(torch.stack(losses).mean().exp())


def test_an_idle_head_breaks_when_its_token_leaves_and_not_for_its_place_in_the_text():
    names = {"torch": torch, "math": math, "AutoConfig": AutoConfig, "LlamaForCausalLM": LlamaForCausalLM}
    exec(sources("deeper")["12d-idle"], names)
    texts = torch.tensor([each.ids for each in small_lm.language.held_out_documents(2, 512)])
    planted, silent = (names["with_idle_head"](network(), gain=gain) for gain in (3.0, 0.0))
    whole = perplexity(network(), "concat", texts)
    assert perplexity(planted, "concat", texts) == pytest.approx(whole, rel=0.01)
    plain = perplexity(network(), "window:256", texts)
    assert perplexity(planted, "window:256", texts) > 3 * plain
    assert perplexity(planted, "window:256+1", texts) == pytest.approx(plain, rel=0.02)
    assert perplexity(silent, "window:256", texts) == pytest.approx(plain, rel=0.02)  # a head without an output
    moved = torch.cat([texts[:, :1].clone().fill_(5), texts[:, 1:]], 1)  # another first token, which the head ignores
    assert perplexity(planted, "window:256+1", moved) > 3 * plain


def test_a_cut_of_the_context_halves_what_both_keepers_of_a_head_hold():
    wide = service.launch(cards=16)
    assert wide.user_blocks * wide.pages.block_tokens == service.SETUP.context
    assert wide.blocks // (wide.user_blocks // 2) > 2 * service.launch().users


def test_transformers_generates_with_its_fp8_cache_of_half_the_bytes():
    ids = torch.randint(10, 416, (1, 64), generator=torch.Generator().manual_seed(0))
    caches = QuantizedCache("fp8", network().config), DynamicCache(config=network().config)
    texts = [network().generate(ids, max_new_tokens=8, do_sample=False, past_key_values=each) for each in caches]
    assert [each.shape for each in texts] == [(1, 72), (1, 72)]
    held = [kv.held(each).total for each in caches]
    assert 0.25 <= held[0] / held[1] < 0.26  # of FP32
