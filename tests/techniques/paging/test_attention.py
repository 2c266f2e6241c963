"""Attention over a block table, both ways, against SDPA over each row's own keys and values."""

import pytest
import torch
import torch.nn.functional as F

from helpers.techniques.paging import BlockTables, block_by_block, gathered

BLOCK, DIM, VALUE_DIM = 4, 8, 6
BOTH = pytest.mark.parametrize("attend", [gathered, block_by_block])


def scattered(lengths, key_heads, seed=0):
    """Keys and values of each row, and a pool that has them in blocks in no order, NaN-free noise everywhere else."""
    random = torch.Generator().manual_seed(seed)
    rows = [
        (torch.randn(n, key_heads, DIM, generator=random), torch.randn(n, key_heads, VALUE_DIM, generator=random))
        for n in lengths
    ]
    counts = [-(-n // BLOCK) for n in lengths]
    order = torch.randperm(sum(counts) + 3, generator=random).tolist()
    pools = [1e4 * torch.randn(len(order), BLOCK, key_heads, dim, generator=random) for dim in (DIM, VALUE_DIM)]
    tables = torch.zeros(len(lengths), max(counts), dtype=torch.long)
    for row, (states, count) in enumerate(zip(rows, counts, strict=True)):
        for at in range(count):
            block = tables[row, at] = order.pop()
            for pool, state in zip(pools, states, strict=True):
                piece = state[at * BLOCK : (at + 1) * BLOCK]
                pool[block, : len(piece)] = piece
    return rows, pools, BlockTables(tables, torch.tensor(lengths), BLOCK)


def expected(query, rows, window):
    out = []
    for q, (k, v) in zip(query, rows, strict=True):
        new, tokens = q.shape[1], len(k)
        own, keys = torch.arange(tokens - new, tokens)[:, None], torch.arange(tokens)
        seen = (keys <= own) & (keys > own - (window or tokens))
        k, v = (state.transpose(0, 1).repeat_interleave(len(q) // state.shape[1], 0) for state in (k, v))
        out.append(F.scaled_dot_product_attention(q, k, v, seen, scale=0.3))
    return torch.stack(out)


@BOTH
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize(("lengths", "new"), [((9, 1, 4, 17), 1), ((12,), 12), ((13,), 5), ((7, 16), 6)])
@pytest.mark.parametrize("window", [None, 5])
def test_as_sdpa_on_each_row(attend, key_heads, lengths, new, window):
    rows, (keys, values), where = scattered(lengths, key_heads)
    query = torch.randn(len(lengths), 4, new, DIM, generator=torch.Generator().manual_seed(1))
    found = attend(query, keys, values, where, 0.3, window)
    torch.testing.assert_close(found, expected(query, rows, window), atol=1e-5, rtol=1e-5)


@BOTH
def test_blocks_behind_a_row_are_never_looked_at(attend):
    _, (keys, values), where = scattered((9, 3), 2)
    query = torch.randn(2, 4, 1, DIM)
    before = attend(query, keys, values, where, 0.3)
    where.tables[1, 1:] = where.tables[0, 1]  # another's block, and in the last block slots that nobody filled
    keys[where.tables[1, 0], 3:] = 1e6
    torch.testing.assert_close(attend(query, keys, values, where, 0.3), before)


def test_slots_are_block_times_size_plus_place():
    where = BlockTables(torch.tensor([[5, 2, 7], [1, 0, 0]]), torch.tensor([9, 3]), BLOCK)
    assert where.slots(2).tolist() == [[2 * 4 + 3, 7 * 4], [4 + 1, 4 + 2]]
    assert where.positions(2).tolist() == [[7, 8], [1, 2]]


def test_online_softmax_survives_large_scores():
    _, (keys, values), where = scattered((9, 17), 2)
    query = 1e3 * torch.randn(2, 4, 1, DIM, generator=torch.Generator().manual_seed(1))
    found = block_by_block(query, keys, values, where, 1.0)
    torch.testing.assert_close(found, gathered(query, keys, values, where, 1.0))
    assert found.isfinite().all()
