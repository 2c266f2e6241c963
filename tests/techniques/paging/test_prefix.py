"""The prefix cache against a count without hashes: what is found, what is kept, what is evicted."""

import random

import pytest

from helpers.techniques.paging import BlockManager, PrefixCache, chat, waste_of


def filled(*prompts, blocks=64, block_size=4, **options):
    manager = BlockManager(blocks, block_size)
    cache = PrefixCache(manager, **options)
    for name, prompt in enumerate(prompts):
        found = cache.adopt(name, prompt)
        manager.append(name, len(prompt) - found)
        cache.insert(name, prompt)
    return manager, cache


@pytest.mark.parametrize("hash_function", [None, lambda parent, tokens: 0, lambda parent, tokens: tokens[0] % 2])
def test_found_is_the_longest_common_prefix_in_blocks(hash_function):
    """Whatever the hashes: tokens decide."""
    draw = random.Random(0)
    prompts = [tuple(draw.randrange(2) for _ in range(draw.randrange(1, 30))) for _ in range(80)]
    options = {} if hash_function is None else {"hash_function": hash_function}
    manager, cache = filled(blocks=800, **options)
    expected = 0
    for name, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:name]:
            same = next(
                (at for at, (a, b) in enumerate(zip(earlier, prompt, strict=False)) if a != b),
                min(len(earlier), len(prompt)),
            )
            longest = max(longest, min(same, len(prompt) - 1) // 4 * 4)
        assert cache.adopt(name, prompt) == longest, prompt
        manager.append(name, len(prompt) - longest)
        cache.insert(name, prompt)
        expected += longest
    assert (cache.hits.found, cache.hits.asked) == (expected, sum(map(len, prompts)))
    assert expected > 150


def test_equal_blocks_after_different_beginnings_are_not_shared():
    manager, cache = filled([1, 1, 1, 1, 5, 5, 5, 5, 9], [2, 2, 2, 2, 5, 5, 5, 5, 9])
    assert cache.hits.found == 0
    assert not set(manager.tables[0]) & set(manager.tables[1])
    assert max(map(len, cache.buckets.values())) == 1  # the hash of a block depends on the one before


def test_one_token_stays_to_be_computed():
    manager, cache = filled([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8])
    assert cache.hits.found == 4
    assert manager.tables[1][0] == manager.tables[0][0] != manager.tables[1][1]


def test_blocks_outlive_their_sequence_until_they_are_needed():
    manager, cache = filled([1] * 9, blocks=4)
    manager.release(0)
    assert (len(manager.free), manager.available) == (2, 4)
    manager.append("long", 12)  # three blocks: the second of the chain has to go, the first stays
    assert [entry.block for entry in cache.find([1] * 9)] == [0]
    manager.append("longer", 4)
    assert (cache.find([1] * 9), manager.available) == ([], 0)


def test_the_least_recently_used_goes_first():
    manager, cache = filled([1] * 5, [2] * 5, [3] * 5, blocks=8)
    for name in range(3):
        manager.release(name)
    cache.adopt("again", [1] * 5)
    manager.release("again")
    assert cache.evict(1) == 1
    assert [bool(cache.find([token] * 5)) for token in (1, 2, 3)] == [True, False, True]


def test_what_is_in_use_is_not_evicted():
    _, cache = filled([1] * 9, [1] * 5 + [2] * 4)
    assert (cache.unused(), cache.evict(5)) == (0, 0)


def test_a_parent_that_only_its_child_needs_is_not_counted_as_unused():
    """Two computed the same first block; the first one's was kept, and only the second one's second block is in use."""
    manager = BlockManager(8, 4)
    cache = PrefixCache(manager)
    for name in "ab":
        manager.append(name, 8)
    cache.insert("a", [1, 1, 1, 1])
    cache.insert("b", [1, 1, 1, 1, 2, 2, 2, 2])
    manager.release("a")
    assert (cache.unused(), cache.evict(2), manager.available) == (0, 0, 5)


@pytest.mark.parametrize("block_size", [pytest.param(1, marks=pytest.mark.all), 16, 256])
def test_hits_and_saved_blocks_on_the_chat_trace(block_size):
    """All requests at once and nothing evicted: what is found follows from the lengths alone, and so do the blocks."""
    trace = chat(30, seed=3)
    usage = waste_of(trace, "prefix", block_size, users=30)
    first, *others = [len(request.prompt) for request in trace.requests]
    shared = 256 // block_size * block_size
    assert usage.hits.asked == first + sum(others)
    assert usage.hits.found == shared * len(others)
    paged = waste_of(trace, "paged", block_size, users=30)
    assert paged.steps == usage.steps
    present = [sum(step < request.new_tokens for request in trace.requests) for step in range(usage.steps)]
    saved = sum(max(0, count - 1) for count in present) * shared  # slots that sharing spares, over all steps
    assert paged.reserved - usage.reserved == saved
