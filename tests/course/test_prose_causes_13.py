"""The causes that chapter 13 names, each beside its control."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace
from functools import cache
from itertools import takewhile
from statistics import mean, pstdev
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from helpers import small_lm
from helpers.catalog import ServeSetup, model
from helpers.catalog.engines import engine
from helpers.course import notebook as nb
from helpers.lesson import service
from helpers.memory.layer_work import attention_flops, weights_met
from helpers.memory.serve.engines.pages import pages_of
from helpers.memory.serve.engines.vllm import launch
from helpers.techniques import paging
from tests.course import prose_numbers_13 as numbers
from tests.house.tree import ROOT


@cache
def cells(folder: str = "notebooks") -> dict[str, str]:
    (path,) = (ROOT / folder).glob("13_*.ipynb")
    return {cell.id: cell.source for cell in nb.read(path).cells}


def pools() -> dict[str, Any]:
    """Both pools of the chapter, from its own text."""
    names: dict[str, Any] = {"deque": deque, "Counter": Counter, "takewhile": takewhile}
    for cell in ("13-pool", "13-shared"):
        exec(cells()[cell], names)
    return names


def attend(*arguments):
    exec(cells("notebooks/deeper")["13d-attend"], names := {"torch": torch})
    return names["attend"](*arguments)


def test_long_answers_count_more_because_they_run_for_more_steps():
    expected = mean(numbers.PROMPTS) + (mean(numbers.ANSWERS) + 1) / 2
    alike = [prompt + at for prompt in numbers.PROMPTS for at in range(1, round(mean(numbers.ANSWERS)) + 1)]
    assert mean(numbers.HELD) > 1.025 * expected
    assert mean(alike) == pytest.approx(expected, rel=0.001)


def test_any_free_block_serves_any_text_and_in_one_piece_the_same_free_slots_do_not():
    """Forty texts of two blocks come, and every second goes. Then one asks for all that is free."""
    pool = pools()["Pool"](blocks=80, size=4)
    for text in range(40):
        pool.append(text, 8)
    for text in range(0, 40, 2):
        pool.release(text)
    longest_hole = max(map(len, "".join("x" if block in pool.free else " " for block in range(80)).split()))
    assert longest_hole == 2
    pool.append("long", 40 * 4)
    assert len(pool.tables["long"]) == 40


def test_a_crowd_is_steady_because_its_texts_do_not_go_together():
    rng = random.Random(0)
    apart = [sum(rng.choice(numbers.HELD) for _ in range(200)) for _ in range(300)]
    together = [200 * rng.choice(numbers.HELD) for _ in range(300)]
    assert pstdev(apart) / mean(apart) < 0.02
    assert pstdev(together) / mean(together) > 0.15


def test_the_pool_does_not_depend_on_the_longest_text_but_on_the_largest_step():
    pools_by_context = {service.launch(replace(service.SETUP, context=one)).pool_bytes for one in (2048, 8192, 32768)}
    assert len(pools_by_context) == 1
    small_step = service.launch(replace(service.SETUP, prefill_tokens=2048))
    assert small_step.pool_bytes > max(pools_by_context)


@pytest.mark.parametrize("size", [16, 784])
def test_the_chapter_s_pool_finds_what_the_package_s_prefix_cache_finds(size):
    pool = pools()["SharedPool"](blocks=20_000, size=size)
    manager = paging.BlockManager(20_000, size)
    prefix = paging.PrefixCache(manager)
    for name, request in enumerate(numbers.CHAT.requests[:60]):
        found = prefix.adopt(name, request.prompt)
        manager.append(name, len(request.prompt) - found)
        prefix.insert(name, request.prompt)
        assert pool.admit(name, request.prompt) == found


def test_a_free_block_is_known_until_it_is_taken_and_no_longer():
    pool, prompt = pools()["SharedPool"](blocks=8, size=4), tuple(range(16))
    pool.admit("a", prompt)
    pool.release("a")
    assert len(pool.free) == 8
    pool.admit("b", tuple(range(100, 116)))
    assert pool.admit("c", prompt) == 12  # the last token is computed, and so its block
    for name in "bc":
        pool.release(name)
    pool.admit("d", tuple(range(200, 232)))  # takes all eight
    pool.release("d")
    assert pool.admit("e", prompt) == 0


def test_equal_tokens_behind_another_have_other_keys_from_the_second_layer_on():
    network = small_lm.load().model
    ids = torch.randint(10, 400, (1, 33), generator=torch.Generator().manual_seed(0))
    other = ids.clone()
    other[0, 0] += 1  # as many tokens, at the same positions
    kept = []
    for text in (ids, other):
        caches = DynamicCache()
        with torch.no_grad():
            network(text, past_key_values=caches)
        kept.append([layer.keys[:, :, 16:] for layer in caches.layers])
    same = [torch.allclose(one, two, atol=1e-6) for one, two in zip(*kept, strict=True)]
    assert same == [True, False, False, False]


def test_full_blocks_can_change_places_because_positions_are_in_the_keys_and_not_in_the_place():
    torch.manual_seed(0)
    query, (keys, values) = torch.randn(4, 8), torch.randn(2, 6, 4, 4, 8)
    table, swapped, with_last = [3, 0, 5, 1], [0, 3, 5, 1], [3, 1, 5, 0]
    whole = attend(query, keys, values, table, 14)
    torch.testing.assert_close(attend(query, keys, values, swapped, 14), whole)
    assert not torch.allclose(attend(query, keys, values, with_last, 14), whole, atol=1e-3)  # the last is not full

    def by_place(order):
        """A bias by the distance in the table, as ALiBi's by the distance in the text."""
        k, v = (pool[order].flatten(0, 1)[:14] for pool in (keys, values))
        scores = torch.einsum("hd,shd->hs", query, k) / 8**0.5 + 0.3 * torch.arange(14)
        return torch.einsum("hs,shd->hd", scores.softmax(-1), v)

    assert not torch.allclose(by_place(swapped), by_place(table), atol=1e-3)


def test_a_block_of_a_hybrid_has_as_many_tokens_as_fill_a_state():
    shape = numbers.HYBRID
    tokens = pages_of(shape, "bf16", 16).block_tokens
    assert 4096 * (tokens - 16) < numbers.STATE_BYTES <= 4096 * tokens
    assert pages_of(shape, "fp8-e4m3", 16).block_tokens == pytest.approx(2 * tokens, abs=16)
    assert pages_of(model("llama-3.1-70b"), "bf16", 16).block_tokens == 16  # without a state


@pytest.mark.parametrize(("tokens", "more"), [(8192, 5), (32_768, 27)])
def test_attention_makes_computing_dearer_than_two_flops_a_weight_in_long_texts(tokens, more):
    layers = service.SETUP.model.layers
    flops = sum(2 * tokens * weights_met(layer) + attention_flops(layer.attention, tokens) for layer in layers)
    assert round(100 * (flops / (2 * tokens * numbers.WEIGHTS) - 1)) == more


def test_fp8_halves_the_rate_that_a_tier_needs():
    halved = replace(service.SETUP, kv="fp8-e4m3")
    rates = [
        paging.break_even_bytes_per_s(one.cache_bytes(1), numbers.WEIGHTS, 1e15) for one in (service.SETUP, halved)
    ]
    assert rates[0] == 2 * rates[1]


def test_grouped_heads_and_a_wide_model_make_swapping_quicker_than_computing():
    """Of the ratio 22 against 1.3, an eighth of the heads is a factor of 8, and the wider model the rest."""
    wide, narrow = (again / swapped for swapped, again in (numbers.swapped_ms(*one) for one in numbers.SWAPPED))
    assert 20 < wide < 25
    assert 1 < narrow < 1.5
    assert 2.5 < wide / 8 < 3  # with a key and a value for each of its 64 heads
    attentions = [model(name).layers[0].attention for name, _ in numbers.SWAPPED]
    assert [one.heads // one.kv_heads for one in attentions] == [8, 1]


@pytest.mark.parametrize(("people", "least", "most"), [(757, 0.4, 0.55), (735, 0, 0.001)])
def test_a_pool_that_fits_on_average_is_too_small_at_every_second_moment(people, least, most):
    rng, blocks = random.Random(0), [-(-tokens // 16) for tokens in numbers.HELD]
    too_full = [sum(rng.choices(blocks, k=people)) > numbers.START.blocks for _ in range(1500)]
    assert least <= mean(too_full) <= most


def test_a_running_text_holds_a_quarter_of_its_blocks_with_windows_whatever_is_counted_for_it():
    """Behind a window of 1,024 tokens, in blocks of 16, 65 blocks are the most that a token sees a part of."""
    seen = max(end // 16 - max(0, end - 1023) // 16 + 1 for end in range(8192))
    assert seen == 65
    assert 0.24 < (512 + 6 * seen) / (7 * 512) < 0.26


def test_the_log_counts_nothing_saved_when_the_largest_step_is_as_long_as_the_text():
    def blocks(step, context=8192):
        setup = ServeSetup("gemma-3-27b", users=1, context=context, prefill_tokens=step)
        return launch(setup, engine("vllm", "0.19"), "h100").user_blocks / (7 * -(-context // 16))

    assert blocks(8192) > 1
    assert blocks(2048) < 0.5
    assert blocks(8192, context=65_536) < 0.3
