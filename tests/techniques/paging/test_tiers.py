"""A tier on the host: nothing that was computed is computed again, and what comes back is what went."""

from __future__ import annotations

import pytest
import torch

from helpers.catalog import ServeSetup, device
from helpers.memory.layer_work import weights_met
from helpers.techniques import paging
from tests.techniques.kv_cache.models import tiny


def talks(turns=3, conversations=6, seed=3):
    """Turn by turn in rotation: each begins with all that was said before."""
    random = torch.Generator().manual_seed(seed)
    said = [torch.randint(1, 60, (12,), generator=random).tolist() for _ in range(conversations)]
    asked = []
    for _ in range(turns):
        for at in range(conversations):
            said[at] = said[at] + torch.randint(1, 60, (9,), generator=random).tolist()
            asked.append((list(said[at]), 5))
    return asked


def run(blocks, tier, asked=None, **options):
    net = tiny("llama-gqa")
    engine = paging.Engine(net, blocks, block_size=4, max_running=2, tier=tier, **options)
    answers = engine.run(asked or talks())
    return engine, [answer.tokens for answer in answers], sum(answer.prefix_tokens for answer in answers)


def test_a_small_pool_with_a_tier_finds_what_a_large_pool_finds_with_the_same_tokens():
    _, expected, all_found = run(400, tier=False)
    _, same, fewer = run(24, tier=False)
    engine, tokens, found = run(24, tier=True)
    assert tokens == same == expected
    assert found == all_found > fewer
    assert all_found - fewer <= engine.prefix.loaded <= all_found


def test_after_all_are_done_every_block_can_be_taken_again():
    engine, *_ = run(24, tier=True)
    assert engine.manager.tables == {}
    assert engine.manager.available == 24


def test_a_block_on_the_host_has_the_bytes_that_it_had_in_the_pool():
    engine, *_ = run(24, tier=True)
    assert engine.prefix.bytes == len(engine.prefix.stored) * engine.pool.bytes // 24


def test_what_is_damaged_on_the_host_shows_in_the_tokens(monkeypatch):
    _, expected, _ = run(400, tier=False)
    put = paging.KVPool.put
    monkeypatch.setattr(
        paging.KVPool, "put", lambda pool, block, contents: put(pool, block, [(-k, -v) for k, v in contents])
    )
    _, tokens, _ = run(24, tier=True)
    assert tokens != expected


def test_at_the_break_even_a_token_arrives_while_its_matrix_products_are_computed():
    setup, flops = ServeSetup("llama-3.1-70b"), 8 * device("h100").flops_per_s("bf16")
    rate = paging.break_even_bytes_per_s(setup.cache_bytes(1), setup.model.parameters, flops)
    layer_by_layer = sum(2 * weights_met(layer) for layer in setup.model.layers) / flops
    assert setup.cache_bytes(1) / rate == pytest.approx(layer_by_layer, rel=0.04)  # embedding and head beside them
