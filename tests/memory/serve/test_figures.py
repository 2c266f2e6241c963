"""Figures of a replica that people quote, by hand, and what holds for every one of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import MODELS, ServeSetup, model
from helpers.catalog.cache_formats import KV_FORMATS
from helpers.catalog.serve_setup import WEIGHT_FORMATS
from helpers.memory import budget
from helpers.memory.breakdown import GIB
from tests.memory.configs import variant

N = model("llama-2-7b").parameters
WORDS, WIDTH, FFN = 32_000, 4096, 11_008
serve_setups = st.builds(
    ServeSetup,
    model=st.sampled_from(MODELS),
    weights=st.sampled_from(WEIGHT_FORMATS),
    kv=st.sampled_from([name for name in KV_FORMATS if "per-head" not in name]),  # of which a latent has none
    users=st.integers(1, 100),
    context=st.integers(1, 900),
)
quick = settings(max_examples=60)


def served(name, **choices):
    return budget.serve(ServeSetup(name, **choices))


def test_serving_figures_that_people_quote():
    assert round(served("llama-3-8b").held["parameters"] / GIB, 2) == 14.96
    assert served("qwen3-30b-a3b", context=262_144).held["kv_cache"] == 24 * GIB
    assert served("llama-2-70b", users=128, context=2048).held["kv_cache"] == 80 * GIB


# Bytes of KV that one more token costs in BF16, by hand: layers x 2 (K and V) x KV heads x head_dim x 2 bytes.
PER_TOKEN = [
    ("llama-2-7b", 1000, 32 * 2 * 32 * 128 * 2),  # K and V
    ("llama-3-8b", 1000, 32 * 2 * 8 * 128 * 2),  # grouped-query: 8 KV heads, not 32
    ("qwen3-30b-a3b", 1000, 48 * 2 * 4 * 128 * 2),  # head_dim is 128, hidden / heads is 64
    ("gemma-2-9b", 1000, 42 * 2 * 8 * 256 * 2),
    ("gemma-2-9b", 5000, 21 * 2 * 8 * 256 * 2),  # behind the window only the other half of the layers grows
    ("mistral-7b", 4096, 32 * 2 * 8 * 128 * 2),
    ("mistral-7b", 4097, 0),  # the window is full
    ("deepseek-v3", 1000, 61 * (512 + 64) * 2),  # MLA: one latent and one rotary key, no K and V
]


@pytest.mark.parametrize(("name", "context", "bytes_per_token"), PER_TOKEN)
def test_a_token_of_kv_cache_by_hand(name, context, bytes_per_token):
    assert served(name, context=context).kv_bytes_per_token == bytes_per_token
    full = [served("mistral-7b", context=context).held["kv_cache"] for context in (4096, 8192)]
    assert full == [4096 * 32 * 2 * 8 * 128 * 2] * 2  # behind the window the cache stops


def test_swiglu_has_three_matrices_and_an_untied_model_a_second_embedding():
    tied = variant("llama-2-7b", tie_word_embeddings=True)
    assert served("llama-2-7b").peak_bytes - served(tied, context=2048).peak_bytes == 2 * WORDS * WIDTH
    parts = model("llama-2-7b").parameters_by_part
    assert parts["mlp"] == 32 * 3 * WIDTH * FFN
    assert sum(parts.values()) == N


def test_4_bit_weights_carry_their_scales_and_only_linear_layers_shrink():
    linear = 32 * (4 * WIDTH * WIDTH + 3 * WIDTH * FFN)
    kept = N - linear
    nf4 = served("llama-2-7b", weights="nf4").held["parameters"]
    levels = 32 * 7 * 16 * 4  # FP32, beside each weight
    assert nf4 == linear // 2 + 4 * linear // 64 + levels + 2 * kept  # half a byte, and an FP32 scale per 64 weights


READ = [  # of one user: model, tokens, values of weights, K and V of each layer
    ("llama-3-8b", 2048, 8_030_261_248 - 128_255 * 4096, 32 * 8 * 128),  # of the untied table one row
    ("llama-3.2-1b", 1, 1_235_814_400, 16 * 8 * 64),  # tied: the head reads the whole table
    ("gpt2", 1, 124_439_808 - 1024 * 768, 12 * 768),  # learned positions are looked up too
    ("mixtral-8x7b", 1, 46_702_792_704 - 31_999 * 4096 - 32 * 6 * 3 * 4096 * 14336, 32 * 8 * 128),  # two of 8 experts
]


@pytest.mark.parametrize(("name", "context", "weights", "kv"), READ)
def test_bytes_that_a_decode_step_reads(name, context, weights, kv):
    assert budget.decode_bytes(ServeSetup(name, users=1, context=context)) == 2 * weights + 2 * 2 * kv * context


def test_more_users_share_the_weights_and_add_their_own_cache():
    one, many = (ServeSetup("llama-3-8b", users=users, context=2048) for users in (1, 64))
    kv = budget.serve(one).held["kv_cache"]
    assert budget.decode_bytes(many) == budget.decode_bytes(one) + 63 * (kv + 2 * 4096)
    one, eight = (budget.decode_bytes(ServeSetup("mixtral-8x7b", users=users, context=1)) for users in (1, 8))
    assert eight > 3 * one


def test_a_decode_step_never_reads_more_than_there_is():
    for users in (1, 10**6):
        setup = ServeSetup("llama-3-8b", users=users, context=128)
        assert budget.decode_bytes(setup) <= budget.serve(setup).peak_bytes
    nf4 = budget.decode_bytes(ServeSetup("llama-3-8b", weights="nf4"))
    assert nf4 < 0.4 * budget.decode_bytes(ServeSetup("llama-3-8b"))


@quick
@given(serve_setups, st.integers(1, 50), st.integers(1, 100))
def test_serving_grows_with_users_and_context(setup, users, context):
    here = budget.serve(setup)
    assert here.peak_bytes == sum(here.parts.values())
    assert all(type(size) is int for size in (*here.parts.values(), here.kv_bytes_per_token))
    more_users = budget.serve(replace(setup, users=setup.users + users))
    longer = budget.serve(replace(setup, context=setup.context + context))
    assert more_users.held["kv_cache"] * setup.users == here.held["kv_cache"] * more_users.setup.users
    assert longer.held["kv_cache"] >= here.held["kv_cache"] > 0
    assert here.held.total <= here.peak_bytes <= more_users.peak_bytes
    assert all(moment.total >= here.held["parameters"] for moment in here.moments)


@quick
@given(serve_setups, st.sampled_from(["nf4", "int8"]))
def test_quantized_weights_are_smaller_than_16_bit(setup, quantized):
    small, large = (budget.serve(replace(setup, weights=name)) for name in (quantized, "bf16"))
    assert small.parts["parameters"] < large.parts["parameters"]
