"""One answer for a cache, by whichever door it is asked: serve, the KV calculator, the planner."""

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog import ServeSetup
from helpers.lesson.calculators.kv_layers import RankCache
from helpers.memory import budget
from helpers.memory.serve.rank_weights import rank_shape
from helpers.techniques.kv_cache.sizes import cache_bytes

NAMES = ("llama-3-8b", "mistral-7b", "gemma-2-9b", "gemma-3-27b", "deepseek-v3", "gpt-oss-20b", "llama-4-scout")
NAMES += ("qwen3-next", "qwen3.6:27b", "qwen3.5:35b-a3b", "gpt2", "phi-3-mini-4k", "glm-4.5-air")


@settings(max_examples=200, deadline=None)
@given(
    st.builds(
        ServeSetup,
        st.sampled_from(NAMES),
        kv=st.sampled_from(("bf16", "fp16", "fp32", "fp8-e4m3")),
        users=st.integers(1, 64),
        context=st.integers(1, 1024) | st.just(1),
        drafts=st.integers(0, 3),
    ),
    st.sampled_from((1, 2)),
)
def test_every_door_holds_the_same_cache(setup, ranks):
    held = budget.serve(setup).held["kv_cache"]
    assert held == setup.users * setup.cache_bytes()
    assert held == RankCache.of(setup).total(setup.context, setup.users)
    if setup.model.heads % ranks == 0:
        shape = rank_shape(setup.model, ranks)
        assert setup.cache_bytes(model=shape) == RankCache.of(setup, None, ranks).total(setup.context)
    if not setup.drafts:
        width = {"fp32": 4, "fp8-e4m3": 1}.get(setup.kv, 2)
        assert held == cache_bytes(setup.model, "concat", setup.context, setup.users, width).total


def test_long_windows_are_bounded_by_every_door():
    setup = ServeSetup("gemma-3-27b", context=131072)
    assert budget.serve(setup).held["kv_cache"] == RankCache.of(setup).total(131072) == 11_173_625_856
