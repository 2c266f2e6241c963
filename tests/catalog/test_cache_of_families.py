"""K and V of windowed and hybrid models: the closed form against the cache that Transformers fills."""

import pytest

from helpers.catalog.models import model

WINDOW, PIECE = 128, 90
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 50,
    "max_position_embeddings": 8192,
    "sliding_window": WINDOW,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
# The family, its own keys, and the layers of the seven that keep every token.
FAMILIES = [
    ("gemma3_text", {"head_dim": 16}, [5]),
    ("gemma3_text", {"head_dim": 16, "sliding_window_pattern": 3}, [2, 5]),
    ("gemma2", {"head_dim": 16}, [1, 3, 5]),
    ("gpt_oss", {"head_dim": 16, **EXPERTS}, [1, 3, 5]),
    ("phi3", {}, []),
    ("phi3", {"sliding_window": None}, [0, 1, 2, 3, 4, 5, 6]),
    ("mistral", {}, []),
    ("qwen3", {"head_dim": 16, "use_sliding_window": True, "max_window_layers": 4}, [0, 1, 2, 3]),
]


@pytest.fixture(scope="module")
def fill():
    """Runs a tiny model over pieces of these many tokens, one after another; returns the layers of its cache."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    def run(config, pieces):
        torch.manual_seed(0)
        net = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16).eval()
        cache, tokens = DynamicCache(config=net.config), torch.randint(0, 50, (1, sum(pieces)))
        with torch.no_grad():
            for ids in tokens.split(pieces, dim=1):
                net(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache.layers

    return run


def prompt_and_one(context):
    """A prompt in pieces smaller than the window, and one decoded token."""
    return [PIECE] * ((context - 1) // PIECE) + [(context - 1) % PIECE, 1]


def held(layer):
    """Values that the storages behind one layer's K and V hold: what the memory really pays for."""
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in (layer.keys, layer.values))


@pytest.mark.parametrize("context", [100, 300, pytest.param(5000, marks=pytest.mark.all)])
@pytest.mark.parametrize(("family", "keys", "full"), FAMILIES)
def test_kv_values_are_what_the_cache_holds_while_it_decodes(fill, family, keys, full, context):
    config = {"model_type": family, **TINY, **keys}
    shape, layers = model(config), fill(config, prompt_and_one(context))
    assert [at for at, layer in enumerate(shape.layers) if layer.attention.window is None] == full
    assert [layer.attention.kv_values(context) for layer in shape.layers] == [held(layer) for layer in layers]
    assert shape.kv_values(context) == sum(map(held, layers))


def test_the_slice_is_one_token_shorter_than_the_window_and_its_storage_is_not(fill):
    config = {"model_type": "gemma3_text", **TINY, "head_dim": 16}
    windowed, full = fill(config, prompt_and_one(300))[4:6]
    per_token = model(config).layers[0].attention.kv_values_per_token
    assert (windowed.keys.shape[-2], full.keys.shape[-2]) == (WINDOW - 1, 300)
    assert held(windowed) == WINDOW * per_token


def test_a_prefill_in_one_piece_keeps_the_whole_prompt_until_the_next_token(fill):
    config = {"model_type": "gemma3_text", **TINY, "head_dim": 16}
    per_token = model(config).layers[0].attention.kv_values_per_token
    windowed = fill(config, [300])[4]
    assert (windowed.keys.shape[-2], held(windowed)) == (WINDOW - 1, 300 * per_token)
