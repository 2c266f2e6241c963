"""Formats of a KV cache: bytes by hand, by llama.cpp's own lines, and what cannot be combined."""

import pytest

from helpers.catalog import ServeSetup, WorkbookError, device, model
from helpers.catalog.cache_formats import KV_FORMATS, cache_format, kv_name
from helpers.catalog.engines import require_card, require_served
from helpers.lesson import calculators
from helpers.memory import budget
from helpers.memory.plan.goal import ServeGoal


@pytest.mark.parametrize(
    ("name", "kv", "context", "mib"),
    [
        # Qwen2.5-32B: 64 layers x 2 x 8 heads x 128 x 32,768 values, 34 bytes for 32
        ("Qwen/Qwen2.5-32B", "q8_0", 32768, 4352),
        ("Qwen/Qwen2.5-32B", "q4_0", 32768, 2304),  # 18 bytes for 32
        ("Qwen/Qwen2.5-32B", "q5_1", 32768, 3072),  # 24
        ("Qwen/Qwen2.5-32B", "q5_0", 32768, 2816),  # 22
        ("Qwen/Qwen2.5-32B", "q4_1", 32768, 2560),  # 20
        ("Qwen/Qwen2.5-32B", "nvfp4", 32768, 2304),  # 9 bytes for 16
        ("Qwen/Qwen2.5-32B", "int8-per-head", 32768, 4224),  # 132 bytes for 128
        ("Qwen/Qwen2.5-32B", "int4-per-head", 32768, 2176),  # 68
        ("deepseek-v3", "q8_0", 32768, 61 * 576 * 32768 * 34 / 32 / 2**20),  # 1,166.6 MiB
    ],
)
def test_bytes_of_a_cache(name, kv, context, mib):
    assert budget.serve(ServeSetup(name, kv=kv, context=context)).held["kv_cache"] == mib * 2**20
    answer = calculators.kv_cache_answer(ServeSetup(name, kv=kv, context=context))
    assert answer.parts["kv_cache"] == mib * 2**20


def test_the_latent_of_deepseek_in_q8_0():
    held = budget.serve(ServeSetup("deepseek-v3", kv="q8_0", context=32768)).held["kv_cache"]
    assert held / 2**20 == pytest.approx(1166.6, abs=0.05)


@pytest.mark.parametrize(
    ("name", "kv", "phrase"),
    [
        ("heads of 80", "q8_0", "caches 80 values"),
        ("deepseek-v3", "int8", "a latent without heads"),
        ("llama-3-8b", "q6_k", "unknown KV cache format 'q6_k'"),
        ("llama-3-8b", "nf4", "unknown KV cache format 'nf4'"),
        ("llama-3-8b", None, "unknown KV cache format None"),
    ],
)
def test_what_cannot_be_combined_is_refused(name, kv, phrase):
    shape = model({**model("llama-2-7b").config, "head_dim": 80} if name == "heads of 80" else name)
    with pytest.raises(WorkbookError) as refused:
        ServeSetup(shape, kv=kv)
    assert phrase in refused.value.what
    with pytest.raises(WorkbookError):
        ServeGoal(shape, users=1, context=1024, latency_s=1, kv=(kv,))


def test_short_names_are_the_formats_of_engines():
    assert [kv_name(name) for name in ("int8", "INT4", "Q8_0")] == ["int8-per-head", "int4-per-head", "q8_0"]
    assert ServeSetup("llama-3-8b", kv="int8").kv == "int8-per-head"
    assert ServeGoal("llama-3-8b", users=1, context=1024, latency_s=1, kv=("int8", "int8-per-head")).kv == (
        "int8-per-head",
    )


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_every_door_counts_the_same(kv):
    setup = ServeSetup("llama-3-8b", kv=kv, users=3, context=5000)
    bits = cache_format(kv, setup.model).bits_per_value
    held = budget.serve(setup).held["kv_cache"]
    assert held == 3 * 5000 * 32 * 2 * 8 * 128 * bits / 8
    assert calculators.kv_cache_answer(setup).parts["kv_cache"] == held


def test_a_rounded_cache_keeps_its_newest_tokens_in_a_plain_format():
    with pytest.raises(WorkbookError, match="int4 cache over one in q8_0"):
        calculators.kv_cache_answer(ServeSetup("llama-3-8b", kv="q8_0"), cache="int4")
    windowed = calculators.kv_cache_answer(ServeSetup("llama-3-8b", kv="q8_0", context=8192), cache="window:1024+4")
    assert windowed.parts["kv_cache"] == 1028 * 32 * 2 * 8 * 34 * 4


@pytest.mark.parametrize(
    ("engine", "able", "unable"),
    [
        ("vllm", ("bf16", "fp8-e4m3", "nvfp4", "int8"), ("q8_0", "iq4_nl")),
        ("sglang", ("bf16", "fp8-e5m2"), ("q8_0", "int8")),
        ("llama.cpp", ("fp16", "q8_0", "q5_1", "q4_0", "iq4_nl"), ("fp8-e4m3", "nvfp4", "int8")),
    ],
)
def test_every_engine_has_formats_of_its_own(engine, able, unable):
    for kv in able:
        require_served(engine, ServeSetup("llama-3-8b", kv=kv))
    for kv in unable:
        with pytest.raises(WorkbookError, match=f"{engine} has no KV cache in"):
            require_served(engine, ServeSetup("llama-3-8b", kv=kv))


@pytest.mark.parametrize(
    ("engine", "card", "phrase"),
    [
        ("vllm", "p40", "6.1"),
        ("sglang", "v100", "7.0"),
        ("sglang", "mi300x", "what sglang takes"),
        ("sglang", "m4-max", "what sglang takes"),
    ],
)
def test_engines_say_on_which_cards_they_do_not_run(engine, card, phrase):
    require_card(engine, device("t4"))
    with pytest.raises(WorkbookError) as refused:
        require_card(engine, device(card))
    assert phrase in refused.value.what
