"""One rank's cache by kinds of layers: the longest context, by trying all of them, and what a token adds."""

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup
from helpers.lesson.calculators.kv_layers import RankCache

CACHED = [
    ("llama-3-8b", None),
    ("llama-3-8b", "int4"),
    ("llama-3-8b", "int2:100"),
    ("llama-3-8b", "int8:0"),
    ("gemma-3-1b", "int4"),
    ("gemma-3-1b", None),
    ("gpt2", "int2"),
    ("gpt2", "int4:2000"),
]


@pytest.mark.parametrize(("name", "cache"), CACHED)
def test_the_longest_context_fits_and_no_longer_one_does(name, cache):
    held, users = RankCache.of(ServeSetup(name, context=100), cache), 3
    most = min(700, held.most_tokens)
    sizes = [0] + [held.total(context, users) for context in range(1, most + 1)]
    held = replace(held, most_tokens=most)
    for room in [0, 1, *sizes[1::23], *(size - 1 for size in sizes[1::17]), sizes[-1], 2 * max(sizes)]:
        assert held.longest(room, users) == max(at for at, size in enumerate(sizes) if size <= room)


@pytest.mark.parametrize("context", [20, 63, 64, 8192, 8200])
def test_a_token_of_a_quantized_cache_is_one_of_its_last_whole_group(context):
    held = RankCache.of(ServeSetup("llama-3-8b", context=context), "int4")
    assert held.per_token(context) == (131072 if context < 64 else 32 * 2048 * 5 / 8)


def test_equal_layers_are_counted_together_and_windows_apart():
    held = RankCache.of(ServeSetup("gemma-3-1b"), None, 4)
    assert sorted((kind.count, kind.window(held.plan)) for kind in held.kinds if kind.window(held.plan)) == [(22, 512)]
    assert [kind.count for kind in held.kinds if kind.window(held.plan) is None] == [4]
    assert held.grows
    bounded = RankCache.of(ServeSetup("gemma-3-1b"), "window:400+4")
    assert sorted((kind.count, kind.window(bounded.plan)) for kind in bounded.kinds) == [(4, 404), (22, 400)]
    assert not bounded.grows
