"""Random small configs: the closed form and Transformers agree on every tensor."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.catalog.models import model

QUICK = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
SMALL = st.integers(1, 40)


@st.composite
def grouped(draw, family, **more):
    """A config with grouped-query heads and a head_dim of its own."""
    kv_heads, group = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    heads = kv_heads * group
    return {
        "model_type": family,
        "hidden_size": heads * 2 * draw(SMALL),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * draw(SMALL),
        "intermediate_size": draw(SMALL),
        "num_hidden_layers": draw(st.integers(1, 4)),
        "vocab_size": draw(st.integers(8, 99)),
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **{key: draw(strategy) for key, strategy in more.items()},
    }


@st.composite
def gpt2(draw):
    heads = draw(st.integers(1, 8))
    return {
        "model_type": "gpt2",
        "n_embd": heads * draw(SMALL),
        "n_head": heads,
        "n_layer": draw(st.integers(1, 4)),
        "n_inner": draw(st.none() | SMALL),
        "n_positions": draw(SMALL),
        "vocab_size": draw(SMALL),
        "tie_word_embeddings": draw(st.booleans()),
        "bos_token_id": None,
        "eos_token_id": None,
    }


EXPERTS = {"num_experts": st.integers(8, 12), "moe_intermediate_size": SMALL, "decoder_sparse_step": st.integers(1, 3)}
ROUTED = {"num_local_experts": st.integers(4, 8), "num_experts_per_tok": st.integers(1, 4)}
ANY = st.one_of(
    grouped("llama", attention_bias=st.booleans(), mlp_bias=st.booleans()),
    grouped("qwen2"),
    grouped("qwen3", attention_bias=st.booleans()),
    grouped("qwen3_moe", **EXPERTS),
    grouped("gemma2"),
    grouped("gemma3_text", sliding_window_pattern=st.integers(1, 5), attention_bias=st.booleans()),
    grouped("phi3", sliding_window=st.none() | SMALL),
    grouped("gpt_oss", attention_bias=st.booleans(), **ROUTED),
    grouped("mixtral", num_local_experts=st.integers(2, 6)),
    gpt2(),
)


@QUICK
@given(config=ANY)
def test_random_shapes_equal_transformers(config, on_meta, assert_same_tensors):
    assert_same_tensors(model(config), on_meta(config))


@QUICK
@given(config=ANY, context=st.integers(1, 10_000))
def test_the_cache_never_shrinks_and_active_never_exceeds_total(config, context):
    shape = model(config)
    assert 0 <= shape.kv_values(context) - shape.kv_values(context - 1) == shape.kv_values_per_token_at(context)
    assert shape.active_parameters <= shape.parameters
    assert sum(group.weights for group in shape.linears()) < shape.parameters
