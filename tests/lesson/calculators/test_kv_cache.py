"""The KV cache calculator: worked values, products that are their lines, answers that fit and do not one further."""

import re
from dataclasses import replace
from math import prod

import pytest

from helpers.catalog import MODELS, ServeSetup, WorkbookError, model
from helpers.lesson.calculators import kv_cache, kv_cache_answer
from helpers.lesson.calculators.kv_cache import CACHES
from helpers.lesson.calculators.kv_layers import all_heads_values
from helpers.lesson.drawing.marks import Dot, Line
from helpers.memory import budget
from helpers.memory.fit import reserve
from helpers.memory.serve.rank_weights import rank_read_bytes, rank_weight_bytes
from helpers.techniques.kv_cache import cache_bytes, plan_of

CALCULATOR = kv_cache()
GIB, H100 = 2**30, "h100-80gb"
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}
# Bytes of one user's 10,000 tokens on a rank, by hand.
WORKED = [
    ("gpt2", 1000, "bf16", None, 1, 1000 * 2 * 12 * 12 * 64 * 2),
    ("llama-2-70b", 10_000, "bf16", None, 1, 10_000 * 2 * 80 * 8 * 128 * 2),
    ("llama-2-70b", 10_000, "fp8-e4m3", None, 1, 10_000 * 2 * 80 * 8 * 128),
    ("llama-2-70b", 10_000, "bf16", None, 4, 10_000 * 2 * 80 * 2 * 128 * 2),
    ("qwen2.5-7b", 10_000, "bf16", None, 4, 10_000 * 2 * 28 * 1 * 128 * 2),
    ("gemma-2-9b", 10_000, "bf16", None, 1, (10_000 + 4096) * 2 * 21 * 8 * 256 * 2),
    ("mistral-7b", 10_000, "bf16", None, 2, 4096 * 2 * 32 * 4 * 128 * 2),
    ("deepseek-v3", 10_000, "bf16", None, 8, 10_000 * 61 * 576 * 2),
    ("llama-3-8b", 10_000, "bf16", "window:1024+4", 1, 1028 * 2 * 32 * 8 * 128 * 2),
    ("gemma-2-9b", 10_000, "bf16", "window:5000+0", 1, (5000 + 4096) * 2 * 21 * 8 * 256 * 2),
    # 311 groups of 32 tokens are packed, 48 tokens are not; 4 B for 32 codes.
    ("llama-3-8b", 10_000, "bf16", "int4", 1, (9952 * 5 // 8 * 2048 + 48 * 2048 * 2) * 32),
    ("llama-3-8b", 10_000, "fp16", "int2-per-token", 2, (9952 * 3 // 8 * 1024 + 48 * 1024 * 2) * 32),
]


@pytest.mark.parametrize(("name", "context", "kv", "cache", "ranks", "expected"), WORKED)
def test_values_worked_by_hand(name, context, kv, cache, ranks, expected):
    answer = kv_cache_answer(ServeSetup(name, kv=kv, users=3, context=context), H100, cache, ranks)
    assert answer.a_user_bytes == expected
    assert answer.parts["kv_cache"] == 3 * expected
    assert answer.users_that_fit == max(0, answer.room_bytes // expected)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_the_budget_s_own_and_every_cache_the_closed_form_s(name):
    context = min(5000, model(name).max_positions)
    for kv in ("fp32", "bf16", "fp8-e4m3"):
        setup = ServeSetup(name, kv=kv, users=7, context=context)
        answer = kv_cache_answer(setup, H100)
        assert answer.parts == budget.serve(setup).held
        assert answer.read_bytes == budget.decode_bytes(setup)
        assert answer.figures["kv_bytes_per_token"] == budget.serve(setup).kv_bytes_per_token
    for cache in ("int8", "int4:64", "int2-per-token", "window:1000+4"):
        answer = kv_cache_answer(setup, cache=cache)
        assert answer.parts["kv_cache"] == cache_bytes(setup.model, cache, context, 7, value_bytes=1).total


def test_the_floor_by_hand():
    answer = kv_cache_answer(ServeSetup("llama-3-8b", users=16), H100)
    read = 2 * (8_030_261_248 - (128256 - 16) * 4096) + 16 * 2048 * 131072
    assert answer.read_bytes == read
    assert answer.seconds_per_step == pytest.approx(read / 3.35e12)
    assert answer.figures["tokens_per_s"] == pytest.approx(16 * answer.figures["tokens_per_s_each"])
    two = kv_cache_answer(ServeSetup("llama-3-8b", users=16), H100, tensor_parallel=2)
    assert two.parts["parameters"] == rank_weight_bytes(two.setup, 2)
    assert two.read_bytes == rank_read_bytes(two.setup, 2) + two.parts["kv_cache"]
    assert 0.5 < two.seconds_per_step / answer.seconds_per_step < 0.501  # the norms are whole
    assert kv_cache_answer(two.setup).seconds_per_step is None


def test_every_product_in_the_text_is_its_line():
    for name in MODELS:
        for cache in (None, "int4", "window:1024+4"):
            setup = ServeSetup(name, users=5, context=min(9000, model(name).max_positions))
            answer = kv_cache_answer(setup, H100, cache, tensor_parallel=2)
            lines = [line for line in answer.formula if " layers × " in line]
            assert lines
            assert max(map(len, answer.formula)) <= 95  # what JupyterLab shows without a break
            for line in lines:
                size, unit, said = re.match(r".{13}\s*([\d.]+) (\w+)   (.*)", line).groups()
                said = said.replace("(512 + 64)", "576").replace(",", "")
                factors = [
                    float(number) / (8 if "bits" in word else 1)
                    for word in said.split(" × ")
                    for number in [re.match(r"[\d.]+", word)[0]]
                ]
                assert prod(factors) == pytest.approx(float(size) * UNITS[unit], rel=5e-3), line


def test_all_heads_are_those_of_the_queries():
    assert all_heads_values(model("llama-2-70b")) == 2 * 80 * 64 * 128
    assert all_heads_values(model("llama-2-7b")) == model("llama-2-7b").kv_values(1)
    assert all_heads_values(model("deepseek-v3")) == 61 * 128 * (192 + 128)
    assert all_heads_values(model("mistral-7b")) == 32 * 2 * 32 * 128  # its window left out
    answer = kv_cache_answer(ServeSetup("llama-2-70b", users=128), tensor_parallel=4)
    assert answer.all_heads_bytes == 640 * GIB // 4


def test_users_and_context_that_fit_are_the_last_that_do():
    for cache in (None, "int4"):
        answer = kv_cache_answer(ServeSetup("llama-3-8b", users=16), H100, cache)
        for change, fits in (
            ({"users": answer.users_that_fit}, True),
            ({"users": answer.users_that_fit + 1}, False),
            ({"context": answer.longest_context}, True),
            ({"context": answer.longest_context + 32}, False),
        ):
            other = kv_cache_answer(replace(answer.setup, **change), H100, cache)
            kept = reserve(other.gpu).size_bytes
            assert (other.parts.total + kept <= other.capacity_bytes) == fits == other.holds(other.parts.total)
            assert ("Tight" in other.sentence) == (not fits)


def test_more_is_never_less():
    base = ServeSetup("llama-3-8b", users=8, context=8192)
    for cache in (None, "int8", "window:1024+4"):
        for field in ("users", "context"):
            grown = [
                kv_cache_answer(replace(base, **{field: getattr(base, field) * by}), H100, cache) for by in (1, 2, 4)
            ]
            for what in ("parts.total", "read_bytes", "seconds_per_step"):
                series = [one.parts.total if "." in what else getattr(one, what) for one in grown]
                assert series == sorted(series)
            assert [one.users_that_fit for one in grown] == sorted((one.users_that_fit for one in grown), reverse=True)
            rates = [one.figures["tokens_per_s"] for one in grown]
            assert rates == sorted(rates, reverse=field == "context")
    sizes = [kv_cache_answer(base, H100, tensor_parallel=ranks).parts.total for ranks in (1, 2, 4, 8)]
    assert sizes == sorted(sizes, reverse=True)


def test_where_nothing_grows_any_context_fits_and_positions_end():
    windowed = kv_cache_answer(ServeSetup("mistral-7b", context=8192), H100)
    assert re.search(r"context fits\s+any   .*: the windows hold no more", "\n".join(windowed.formula))
    assert re.search(r"a token\s+0 B .* which replaces another", "\n".join(windowed.formula))
    small = kv_cache_answer(ServeSetup("gpt2", context=512), H100)
    assert small.longest_context == 1024
    assert re.search(r"context fits\s+1,024   .*: all positions that it has", "\n".join(small.formula))
    crowded = kv_cache_answer(ServeSetup("mistral-7b", users=1000, context=8192), H100)
    assert 0 < crowded.longest_context < 4096
    assert "any" not in next(line for line in crowded.formula if line.startswith("context fits"))
    assert "made for 8,192" in "\n".join(kv_cache_answer(ServeSetup("llama-3-8b"), H100).formula)


def test_quantized_says_what_it_does_not_save():
    def said(context=8192, kv="bf16", cache="int4", name="llama-3-8b"):
        return kv_cache_answer(ServeSetup(name, kv=kv, context=context), cache=cache)

    assert "int4 is 3.17× smaller than bf16, not 4×." in said().sentence
    kept = said(cache="window:1024+4")
    assert kept.bits_per_value == 16
    assert "× 1,028 tokens kept\n" in str(kept)
    assert said().bits_per_value == pytest.approx((8160 * 5 + 32 * 16) / 8192)
    assert "5.04 bits   codes of 4, 4 B for 32 of them; in bf16: newest 32 tokens" in str(said())
    assert "int8 is larger than fp8-e4m3 here" in said(kv="fp8-e4m3", cache="int8").sentence
    assert "int4 has rounded nothing yet" in said(context=63).sentence
    assert "rounded nothing" not in said(context=64).sentence
    assert "smaller than bf16, not" not in said(cache=None).sentence
    assert "in bf16: newest 32 tokens, windows" in str(said(name="gemma-2-9b"))


SENTENCES = [
    ({"model": "llama-3-8b"}, {}, "8 KV heads for 32 query heads make this cache 4× smaller"),
    ({"model": "llama-2-7b"}, {}, "Every head has keys and values of its own."),
    ({"model": "gemma-3-1b", "context": 32768}, {}, "1 KV head for 4 query heads and windows in 22 of 26 layers make"),
    ({"model": "gemma-3-1b", "context": 512}, {}, "1 KV head for 4 query heads make this cache 4× smaller"),
    ({"model": "phi-3-mini-4k", "context": 4096}, {}, "Windows in 32 of 32 layers make this cache 2× smaller"),
    ({"model": "deepseek-v3"}, {}, "The latent is 71.1× smaller than keys and values of all 128 heads."),
    ({"model": "deepseek-v3"}, {"tensor_parallel": 2}, "The latent is whole on every rank"),
    ({"model": "qwen2.5-1.5b"}, {"tensor_parallel": 4}, "2 KV heads on 4 ranks: each is held 2 times."),
    ({"model": "gemma-3-1b"}, {"tensor_parallel": 4}, "One KV head on 4 ranks: each is held 4 times."),
    ({"model": "llama-3-8b"}, {"cache": "window:1024+4"}, "Of 2,048 tokens the last 1,024 and the first 4 are kept"),
    ({"model": "llama-3-70b"}, {"gpu": H100}, "the weights alone are"),
    (
        {"model": "llama-2-7b", "users": 128},
        {"gpu": H100},
        "65 of the 128 users would fit; all would with up to 1,054 tokens.",
    ),
    ({"model": "llama-2-7b", "context": 200_000}, {"gpu": H100}, "one user fits; it would with up to 134,949 tokens."),
    ({"model": "llama-2-7b", "users": 64}, {"gpu": H100}, "are the end."),
    ({"model": "llama-2-7b"}, {}, "Weights and cache need 13.55 GiB"),
]


@pytest.mark.parametrize(("setup", "given", "told"), SENTENCES)
def test_the_sentence_says_what_is_so(setup, given, told):
    assert told in kv_cache_answer(ServeSetup(**setup), **given).sentence


def test_the_sentence_does_not_say_what_is_not_so():
    plain = kv_cache_answer(ServeSetup("llama-3-8b", context=1028), H100, "window:1024+4", 8).sentence
    for words in ("forgotten", "each is held", "whole on every rank", "are the end", "Does not"):
        assert words not in plain


def test_the_rate_that_no_number_of_users_exceeds():
    answer = kv_cache_answer(ServeSetup("llama-2-7b", users=64), H100)
    most = 3.35e12 / answer.a_user_bytes
    assert f"{most:,.0f} tokens/s in all are the end" in answer.sentence
    many = kv_cache_answer(replace(answer.setup, users=2**20), H100)
    assert 0.99 * most < many.figures["tokens_per_s"] < most


def test_curves_are_the_bytes_and_the_chosen_one_passes_through_the_ring():
    answer = kv_cache_answer(ServeSetup("gemma-2-9b", users=4, context=8192), H100, "int4")
    assert [curve.name for curve in answer.curves] == ["all heads, bf16", "own attention, bf16", "own attention, int4"]
    points = [dict(curve.points) for curve in answer.curves]
    assert points[0][8192] == answer.all_heads_bytes
    assert points[1][8192] == budget.serve(answer.setup).held["kv_cache"]
    assert points[2][8192] == answer.parts["kv_cache"]
    contexts = answer.cards[1]
    (here,) = (mark for mark in contexts.marks if isinstance(mark, Dot))
    chosen = [mark for mark in contexts.marks if isinstance(mark, Line) and mark.kind == "curve"][-1]
    assert (here.x, here.y) in chosen.points
    assert 'class="room"' in answer.svg
    plain = kv_cache_answer(ServeSetup("llama-2-7b", context=100))
    assert [curve.name for curve in plain.curves] == ["own attention, bf16"]  # all heads are its own
    assert 'class="room"' not in plain.svg
    assert len(kv_cache_answer(ServeSetup("gpt2", context=1024)).curves[0].points) == 4


def test_the_controls_say_what_the_function_is_given():
    for cache in CACHES:
        kv, kind = ("bf16", cache) if plan_like(cache) else (cache, None)
        chosen = CALCULATOR.answer(cache=cache)
        assert str(chosen) == str(kv_cache_answer(ServeSetup("llama-3-8b", kv=kv, users=32, context=8192), H100, kind))
    assert CALCULATOR.answer(model="gpt2").setup.context == 1024  # all its positions
    assert kv_cache(cache="int2-per-token", users=3).answer().cache.plan == plan_of("int2-per-token")


def plan_like(cache):
    return cache.startswith(("int", "window"))


BAD = [
    ({"model": "lama-3-8b"}, {}, "did you mean 'llama"),
    ({"model": "llama-3-8b", "kv": "nf4"}, {}, "unknown KV cache format"),
    ({"model": "llama-3-8b", "users": 0}, {}, "users is 0"),
    ({"model": "gpt2", "context": 2048}, {}, "position for 1,024 tokens"),
    ({"model": "llama-3-8b"}, {"gpu": "h1000"}, "unknown device 'h1000'"),
    ({"model": "llama-3-8b"}, {"cache": "int5"}, "unknown KV cache 'int5'"),
    ({"model": "llama-3-8b"}, {"cache": "bf16"}, "unknown KV cache 'bf16'"),
    ({"model": "llama-3-8b"}, {"cache": "window:0"}, "window of a window cache is 0"),
    ({"model": "llama-3-8b"}, {"cache": "static:4096"}, "the static cache reserves"),
    ({"model": "llama-3-8b"}, {"cache": "offloaded"}, "the offloaded cache reserves"),
    ({"model": "llama-3-8b"}, {"tensor_parallel": 3}, "pass tensor_parallel=2"),
    ({"model": "llama-3-8b"}, {"tensor_parallel": 0}, "tensor_parallel is 0"),
]


@pytest.mark.parametrize(("setup", "given", "told"), BAD)
def test_bad_input(setup, given, told):
    with pytest.raises(WorkbookError, match=told):
        kv_cache_answer(ServeSetup(**setup), **given)
