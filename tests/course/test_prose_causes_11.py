"""The causes that chapter 11 and its companion name, each beside its control."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers.models.llama.modeling_llama import eager_attention_forward

from helpers.catalog.hardware import AttentionCall, AttentionKernel, cuda_of
from helpers.course import notebook as nb
from helpers.memory import measure
from helpers.memory.meter import Meter
from helpers.small_lm import load
from helpers.techniques import attention
from helpers.techniques.attention import Causal, Full, Window, counts
from tests.course import prose_numbers_11 as numbers
from tests.house.tree import ROOT


@cache
def sources() -> dict[str, str]:
    (path,) = (ROOT / "notebooks").glob("11_*.ipynb")
    return {cell.id: cell.source for cell in nb.read(path).cells}


def defined(*cells: str) -> dict[str, Any]:
    """What cells of the chapter define, from their own text."""
    names = {"torch": torch, "scaled_dot_product_attention": scaled_dot_product_attention}
    for cell in cells:
        exec(sources()[cell], names)
    return names


CHAPTER = defined("11-tiled", "tiled-found", "11-linear", "11-indexed")


def beside(way, *given: torch.Tensor, **options) -> int:
    """Peak bytes beside what is given and what comes out."""
    meter = Meter()
    meter.adopt(given, "inputs")
    with torch.no_grad(), meter:
        output = way(*given, **options)
    return meter.peak_bytes - sum(one.nbytes for one in (*given, output))


@pytest.mark.parametrize("tokens", [1, 100, 128, 300])
def test_tiles_give_what_the_formula_gives_whatever_the_length(tokens):
    qkv = torch.randn(3, 2, tokens, 128, generator=torch.Generator().manual_seed(0))
    expected = CHAPTER["eager_attention"](*qkv)
    for way in (CHAPTER["tiled"], CHAPTER["sdpa"]):
        torch.testing.assert_close(way(*qkv), expected, atol=1e-5, rtol=1e-4)


def test_the_length_is_not_in_what_tiles_need_and_the_size_of_a_tile_is():
    short, long = torch.randn(3, 8, 512, 128), torch.randn(3, 8, 1024, 128)
    assert beside(CHAPTER["tiled"], *short) == beside(CHAPTER["tiled"], *long)
    assert beside(CHAPTER["tiled"], *long, tile=64) < 0.6 * beside(CHAPTER["tiled"], *long)
    assert beside(CHAPTER["eager_attention"], *long) == 4 * beside(CHAPTER["eager_attention"], *short)


def test_without_the_largest_score_exponentials_overflow():
    scores = 50 * torch.randn(4096, generator=torch.Generator().manual_seed(0))
    assert scores.exp().sum().isinf()
    assert (scores - scores.max()).exp().sum().isfinite()


def test_pieces_cut_the_queries_and_tiles_both():
    """A sixteenth would take keys in pieces as well."""
    sizes = [counts.Call(8_192, keys=keys, heads=8, kv_heads=1).matrix_bytes for keys in (32_768, 8_192)]
    assert [numbers.PROMPT.matrix_bytes // size for size in sizes] == [4, 16]


def test_both_ways_do_the_same_flops_and_with_endless_bandwidth_tiles_would_win_by_the_diagonal_alone():
    q, k, v = torch.randn(3, 1, 4, 512, 64)
    found = []
    for way in (lambda: attention.naive(q, k, v, Full()), lambda: attention.tiled(q, k, v, Full())):
        with measure.Traffic() as traffic:
            way()
        found.append(traffic.flops)
    assert found[0] == found[1]
    products = 4 * 8 * 128 * 32_768**2 / numbers.FLOPS
    gains = [max(products, numbers.matrix_s(32_768) / faster) / numbers.tiled_s(32_768) for faster in (1, 1000)]
    assert gains == pytest.approx([9.2, 2.0], rel=0.01)


def test_flops_for_a_byte_do_not_depend_on_the_length_and_those_of_tiles_do():
    eager, tiled = (
        [work.flops / work.bytes for work in works]
        for works in (
            [counts.sum_of(dict(list(counts.naive(call).items())[1:5])) for call in calls()],
            [counts.once(call) for call in calls()],
        )
    )
    assert eager[1] == pytest.approx(eager[0], rel=0.05)
    assert tiled[1] > 3 * tiled[0]


def calls() -> list[counts.Call]:
    return [counts.Call(tokens, heads=8, kv_heads=1) for tokens in (8_192, 32_768)]


def test_eager_attention_of_transformers_takes_more_in_bf16_because_its_softmax_is_in_fp32():
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = torch.randn(1, 8, 256, 128), *torch.randn(2, 1, 1, 256, 128)
        given = [one.to(dtype) for one in (q, k, v, torch.zeros(1, 1, 256, 256))]
        module = SimpleNamespace(num_key_value_groups=8, training=False)
        way = lambda *qkvm: eager_attention_forward(module, *qkvm, scaling=128**-0.5)[0]  # noqa: E731, B023
        times[dtype] = beside(way, *given) / (8 * 256**2 * given[0].element_size())
    assert times[torch.float32] < 2.3 < 4 < times[torch.bfloat16]


def decoded(group: int, people: int = 2) -> float:
    """What eager attention of Transformers makes for one query of each, over keys and values of one head."""
    q, (k, v) = torch.randn(people, group, 1, 128), torch.randn(2, people, 1, 4096, 128)
    module = SimpleNamespace(num_key_value_groups=group, training=False)
    return beside(lambda *qkv: eager_attention_forward(module, *qkv, None, scaling=1.0)[0], q, k, v) / (2 * k.nbytes)


def test_eager_attention_repeats_keys_and_values_where_heads_share_them():
    assert decoded(8) > 3.9  # one of the two at a time, eight times
    assert decoded(1) < 0.2
    assert decoded(8, people=1) < 0.2  # a single KV head of a single sequence is expanded without a copy


def test_the_log_sum_exp_gives_the_weights_without_a_second_softmax():
    q, k, v = torch.randn(3, 1, 1, 64, 32, generator=torch.Generator().manual_seed(0))
    _, log_sum_exp = attention.tiled(q, k, v, Full())
    scores = q @ k.mT / 32**0.5
    torch.testing.assert_close((scores - log_sum_exp[..., None]).exp(), scores.softmax(-1))


def test_tiles_follow_windows_by_whole_tiles_and_smaller_tiles_come_nearer_to_the_pairs():
    shares = [
        sum(1 for _ in Window(512).tiles(4_096, 4_096, side, side))
        / sum(1 for _ in Causal().tiles(4_096, 4_096, side, side))
        for side in (16, 128)
    ]
    pairs = numbers.pairs(Window(512)) / numbers.pairs(Causal())
    assert pairs < shares[0] < pairs + 0.01 < shares[1]


def kept(**options) -> int:
    """Of matrices with a float for each pair, how many a call keeps for its backward pass."""
    sizes: dict[int, int] = {}

    def pack(tensor):
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    q, k, v = (one.requires_grad_() for one in torch.randn(3, 1, 1, 512, 64))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scaled_dot_product_attention(q, k, v, **options)
    return sum(size >= 512**2 * 4 for size in sizes.values())


def test_a_mask_tensor_is_kept_as_numbers_and_the_same_rule_as_a_flag_is_not():
    rule = torch.ones(512, 512, dtype=torch.bool).tril()
    assert kept(is_causal=True) == 0
    assert kept(attn_mask=rule) == 1


def test_a_call_that_no_kernel_takes_gets_the_formula():
    q, k, v = torch.randn(3, 1, 2, 64, 32)
    assert attention.which_backend(q, k, v, is_causal=True) == "flash"
    assert attention.which_backend(q, k, v, is_causal=True, dropout_p=0.1) == "math"
    a100, shared = cuda_of("a100"), {"heads": 32, "kv_heads": 8}
    assert a100.attention_kernel(AttentionCall("bf16", 128, masked=True, **shared)) == AttentionKernel.FORMULA
    for call in (AttentionCall("bf16", 128, causal=True, **shared), AttentionCall("bf16", 128, masked=True)):
        assert a100.attention_kernel(call) != AttentionKernel.FORMULA


class Watch(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":
            self.masked, self.heads = kwargs["attn_mask"] is not None, args[1].shape[1]
        return func(*args, **kwargs or {})


def test_padding_makes_a_mask_and_repeats_keys_and_equal_lengths_do_not():
    ids, found = torch.ones(2, 32, dtype=torch.long), []
    for pads in (0, 10):
        given = torch.ones_like(ids)
        given[0, :pads] = 0
        with torch.no_grad(), Watch() as watch:
            load().model(input_ids=ids, attention_mask=given, use_cache=False)
        found.append((watch.masked, watch.heads))
    assert found == [(False, 2), (True, 6)]


TABLE = normalize(torch.randn(512, 128, generator=torch.Generator().manual_seed(0)), dim=-1)


def right(way, keys: torch.Tensor, values: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    """Of each key of `asked`, whether the value that was stored last with it is the nearest."""
    nothing = torch.zeros_like(asked)
    q, k = torch.cat([torch.zeros_like(keys), asked]), torch.cat([keys, nothing])
    answers = way(q, k, torch.cat([TABLE[values], nothing]))[-len(asked) :]
    return (answers @ TABLE.T).argmax(-1).eq(values[-len(asked) :]).float()


def drawn(count: int, common: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    keys = normalize(torch.randn(count, 128, generator=generator) + common, dim=-1)
    return keys, torch.randint(512, (count,), generator=generator)


def softmax(q, k, v, later: float = 0.0):
    """`later` is added to a score for each position: what a model's positions may do."""
    scores = 40 * q @ k.mT + later * torch.arange(len(k))
    return scores.masked_fill(torch.ones(len(q), len(k)).triu(1).bool(), -torch.inf).softmax(-1) @ v


def test_the_delta_rule_replaces_a_value_because_it_takes_off_what_the_key_recalls():
    linear, delta = CHAPTER["linear_attention"], CHAPTER["gated_delta_rule"]
    keys, old = drawn(64)
    stored, values = torch.cat([keys, keys]), torch.cat([old, old.flip(0)])
    found = {name: right(way, stored, values, keys).mean().item() for name, way in
             {"linear": linear, "delta": delta, "softmax": softmax}.items()}  # fmt: skip
    assert found["delta"] > 0.95
    assert max(found["linear"], found["softmax"]) < 0.7
    assert right(lambda *qkv: softmax(*qkv, later=0.2), stored, values, keys).mean() > 0.95  # positions decide


def slowly(*qkv: torch.Tensor) -> torch.Tensor:
    return CHAPTER["gated_delta_rule"](*qkv, rate=0.2)


def test_the_delta_rule_forgets_the_first_pairs_where_it_writes_in_full():
    keys, values = drawn(256)
    in_full, a_fifth = (right(way, keys, values, keys) for way in (CHAPTER["gated_delta_rule"], slowly))
    assert in_full[-64:].mean() > 0.95
    assert in_full[:64].mean() < 0.4
    assert a_fifth[:64].mean() > 0.9


def test_which_state_knows_more_depends_on_the_rate_and_on_whether_keys_resemble_each_other():
    ways = {"sum": CHAPTER["linear_attention"], "full": CHAPTER["gated_delta_rule"], "fifth": slowly}
    apart, alike = (
        {name: right(way, *drawn(256, common), drawn(256, common)[0]).mean().item() for name, way in ways.items()}
        for common in (0.0, 0.6)
    )
    assert apart["full"] < 0.8 < 0.95 < min(apart["sum"], apart["fifth"])
    assert 5 * alike["sum"] < alike["fifth"]
    assert alike["full"] < alike["fifth"]


def test_softmax_recalls_all_pairs_with_sharp_scores_and_hardly_any_with_flat_ones():
    keys, values = drawn(512)
    assert right(softmax, keys, values, keys).mean() == 1
    assert right(lambda q, k, v: softmax(q / 400, k, v), keys, values, keys).mean() < 0.1


def test_a_decay_prefers_new_values_to_old_ones_and_fades_everything():
    def fading(q, k, v):
        state, outputs = torch.zeros(128, 128), []
        for query, key, value in zip(q, k, v, strict=True):
            state = 0.99 * state + torch.outer(key, value)
            outputs.append(query @ state)
        return torch.stack(outputs)

    keys, old = drawn(64)
    stored, values = torch.cat([keys, keys]), torch.cat([old, old.flip(0)])
    assert right(fading, stored, values, keys).mean() > 0.95
    keys, values = drawn(512)
    assert right(fading, keys, values, keys)[:128].mean() < 0.5


def test_an_indexer_recalls_as_long_as_its_narrow_keys_choose_the_right_ones():
    keys, values = drawn(512)
    narrow = torch.randn(128, 16, generator=torch.Generator().manual_seed(2))
    ways = {
        "narrow": lambda q, k, v: CHAPTER["indexed_attention"](q, k, v, q @ narrow, k @ narrow),
        "two narrow ones that do not match": lambda q, k, v: CHAPTER["indexed_attention"](
            q, k, v, q @ narrow, k @ narrow.flip(0)
        ),
    }
    found = [right(way, keys, values, keys).mean().item() for way in ways.values()]
    assert found[0] > 0.98
    assert found[1] < 0.5
