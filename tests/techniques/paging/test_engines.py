"""Transformers' paged engine beside ours, and vLLM's pool arithmetic against its logs."""

import pytest

from helpers.catalog import WorkbookError, model
from helpers.techniques import paging
from tests.techniques.kv_cache.models import tiny
from tests.techniques.paging.test_engine import requests

GIB = 2**30
LLAMA = paging.VllmPool(*(round(gib * GIB) for gib in (79.22, 14.96, 1.79, 1.26)))


@pytest.mark.parametrize("family", ["llama-gqa", "qwen3-head-dim"])
def test_transformers_engine_gives_the_same_tokens(family):
    net, asked = tiny(family), requests(shared=20)
    ours = [answer.tokens for answer in paging.Engine(net, 64, 8).run(asked)]
    assert paging.transformers_batch(net, asked, blocks=64, block_size=8, batch_tokens=128) == ours


def test_logged_pools_within_one_percent():
    rows = paging.published()
    assert len(rows) == 5
    for row in rows:
        assert row.source
        if row.computed is None:
            assert "does not say" in row.remark
        else:
            assert abs(row.error) < 0.01, row


def test_llama_3_8b_on_an_h100():
    assert LLAMA.kv_cache_bytes / GIB == pytest.approx(53.29, abs=0.005)
    assert LLAMA.blocks(model("llama-3-8b")) == int(LLAMA.kv_cache_bytes / (2 * GIB / 1024))
    assert LLAMA.users(model("llama-3-8b"), 8192) == LLAMA.blocks(model("llama-3-8b")) // 512 == 53


def test_a_block_over_ranks():
    shape = model("llama-2-70b")
    assert paging.block_bytes(model("llama-2-7b")) == 8 * 2**20
    assert [paging.block_bytes(shape, ranks=ranks) / 2**20 for ranks in (1, 4, 8, 16)] == [5, 1.25, 0.625, 0.625]
    assert paging.block_bytes(shape, 32, value_bytes=1) == paging.block_bytes(shape)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paging.VllmPool(GIB, 0, 0, 0, gpu_memory_utilization=90), "gpu_memory_utilization is 90"),
        (lambda: paging.VllmPool(GIB, 0, 0, 0, block_size=0), "block_size is 0"),
        (lambda: paging.VllmPool(GIB, -1, 0, 0), "weight_bytes is -1"),
        (lambda: paging.VllmPool(GIB, GIB, 0, 0).kv_cache_bytes, "1.00 GiB are taken\n  expected: under 0.90 GiB"),
        (lambda: LLAMA.users(model("llama-3-8b"), 0), "context is 0"),
        (lambda: paging.block_bytes(model("llama-2-70b"), ranks=3), "8 KV heads, which 3 ranks cannot share evenly"),
        (lambda: paging.block_bytes(model("deepseek-v3")), "with a latent or a window"),
        (lambda: paging.transformers_batch(tiny("llama-gqa"), [], blocks=0), "blocks is 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(WorkbookError, match=message):
        call()
