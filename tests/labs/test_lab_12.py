"""What lab 12 says in words is what its code does: targets, and sizes of real caches."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import Cache

from helpers.catalog import model
from helpers.memory.measure import capped
from helpers.techniques import kv_cache as kv
from tests.labs.common import checks_passed, lab_path, printed, source

LAB = lab_path("12")


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "kv-bytes-widths", ["21,474,836,480"]),
        ("q1", "kv-bytes-ranks", ["21,474,836,480"]),
        ("q2", "slots-memory", ["18,432"]),
        ("q3", "ring-held", ["65,536"]),
        ("q3", "ring-copied", ["16,384"]),
        ("q4", "sizes", ["58,880", "66,560", "512,000"]),
        ("q4", "lean-recall-known", ["98 %"]),
        ("q4", "lean-recall-drawn", ["90 %"]),
        ("q5", "thrifty-recall", ["95 %", "90 %"]),
        ("q6", "fit-longest", ["306"]),
    ],
)
def test_the_figures_of_a_target_are_printed(lab, question, check, figures):
    text = source(lab, question)
    assert [figure for figure in figures if figure not in text or figure not in printed(lab, check)] == []


def test_the_bytes_of_one_rank_are_those_of_the_catalogue(names):
    for name in ("llama-2-7b", "llama-2-70b", "qwen3-32b", "deepseek-v3"):
        found = names["kv_bytes"](dict(model(name).config), [3000, 70], 1)
        assert found == sum(kv.cache_bytes(model(name), "concat", n).total for n in (3000, 70)), name


def test_the_bytes_of_windows_are_those_of_a_real_cache(names):
    own = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = AutoConfig.for_model("gemma2", **own, sliding_window=16, vocab_size=99, intermediate_size=32)
    cache = kv.cache_of(type("M", (), {"config": config}), "concat")
    for layer in cache.layers:
        layer.update(*torch.zeros(2, 1, 2, 50, 8, dtype=torch.bfloat16))
    assert names["kv_bytes"](config.to_dict(), [50], 1) == kv.held(cache).total


def test_transformers_keeps_no_cache_for_layers_that_share():
    text = AutoConfig.for_model("gemma3n_text", num_hidden_layers=10, num_kv_shared_layers=4)
    kinds = [type(layer).__name__ for layer in DynamicCache(config=text).layers]
    assert len(kinds) - kinds.count("DummyLayer") == 6


def test_fresh_memory_is_nan_where_it_says_so(names):
    assert names["filled_with_nan"](lambda: torch.empty(3)).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


def test_packed_codes_come_back_in_as_few_bytes_as_can_be(names):
    for bits in (1, 2, 3, 5, 8):
        codes = torch.randint(2**bits, (7, 31), generator=torch.Generator().manual_seed(bits))
        flat = names["packed"](codes, bits)
        assert flat.nbytes == -(-codes.numel() * bits // 8)
        assert torch.equal(names["unpacked"](flat, bits, codes.numel()).view(7, 31).long(), codes)


class OneBit(kv.KVLayer):
    """The first piece of a text, its keys or its values, in one bit: a mean, and the mean size of what differs."""

    def __init__(self, of_keys):
        super().__init__()
        self.of_keys = of_keys

    def append(self, keys, values):
        if self.seen:
            self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
            return self.keys, self.values
        self.keys, self.values = keys.clone(), values.sign() * values.abs().mean(3, keepdim=True)
        if self.of_keys:
            old = keys[:, :, : keys.shape[2] // 32 * 32].unflatten(2, (-1, 32))
            middle = old.mean(3, keepdim=True)
            size = (old - middle).abs().mean(3, keepdim=True)
            old = (middle + size * (old - middle).sign()).flatten(2, 3)
            self.keys[:, :, : old.shape[2]], self.values = old, values
        return keys, values


def test_one_bit_of_a_value_is_enough_and_of_a_key_is_not(names):
    def score(of_keys):
        return names["recalled"](names["network"], lambda: Cache([OneBit(of_keys) for _ in range(4)])).total

    assert score(of_keys=False) == 1
    assert 0.35 < score(of_keys=True) < 0.6


def test_the_cap_has_room_for_twice_the_workspace(names):
    requests = names["draw_requests"](random.Random(3), [900, 700, 1200, 800])
    longest = [one._replace(ids=torch.ones(1, 60, dtype=torch.long)) for one in requests]
    with capped(1, holding=[names["network"]]) as meter:
        names["serve"](names["network"], longest, 8_000_000, 6)
    workspace_bytes = meter.peak_bytes - names["NETWORK_BYTES"] - 3600 * 2048
    assert 0 < workspace_bytes < names["WORKSPACE_BYTES"] / 2


def wrong_words(names, model, layer, seed):
    """Of 64 words, those that a cache of such layers forgets."""
    answered, mistaken = names["answered"], names["mistaken"]
    return sum(len(mistaken(answered(model, layer, distance, seed)[0], distance, seed)) for distance in (250, 1000))


def test_no_target_is_out_of_reach_by_chance(names):
    """What the check may draw is far enough from its target for another machine's rounding: of 64 six may be wrong."""
    for seed, room in [(0, 192), (1, 240)]:
        assert wrong_words(names, names["network"], lambda room=room: names["Thrifty"](room), seed) <= 1
        assert wrong_words(names, names["PLANTED"], names["Lean"], seed) <= seed


def test_documents_number_0_are_those_of_recall(names):
    found = names["recalled"](names["network"], lambda: Cache([names["Thrifty"](96) for _ in range(4)]))
    forgotten = wrong_words(names, names["network"], lambda: names["Thrifty"](96), 0)
    assert 0 < forgotten == round((1 - found.total) * 64)


# Rings that hold the right bytes at the wrong positions, by words of their docstrings.
MISPLACED = ("would have in order", "position of its neighbour", "Sinks are overwritten", "the second oldest")


@pytest.mark.slow
def test_a_ring_is_paid_nothing_where_tokens_have_wrong_positions():
    assert checks_passed(LAB, MISPLACED) == {words: set() for words in MISPLACED}


# Bytes where no tensor is, by words of docstrings: what is paid all the same.
ELSEWHERE = {
    "for show: each token is in a text": {"slots-positions", "slots-states"},
    "Packed as it should be, and all as it came": set(),
    "A fourth bit for each key": {"lean-exact"},
}


@pytest.mark.slow
@pytest.mark.parametrize("words", ELSEWHERE)
def test_what_is_kept_in_texts_or_bytes_is_not_paid_as_memory(words):
    assert checks_passed(LAB, [words]) == {words: ELSEWHERE[words]}
