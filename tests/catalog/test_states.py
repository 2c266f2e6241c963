"""What hybrids keep of a sequence: states beside K and V, as llama.cpp prints them and Transformers holds them."""

from types import SimpleNamespace

import pytest

from helpers.catalog import ServeSetup, by_transformers, model
from helpers.catalog.errors import WorkbookError
from helpers.catalog.layers import LLAMA_CPP, VLLM
from helpers.memory import budget
from helpers.memory.serve.engines.llamacpp import LlamaCpp
from helpers.memory.serve.rank_weights import rank_shape

MIB = 2**20
# llama.cpp's lines "llama_memory_recurrent: size" and "llama_kv_cache: size" (F16), in MiB as printed:
# lmstudio-bug-tracker#1862 (M4 Max), and logs of Qwen3.5-27B, 35B-A3B and 9B in other public issues
RECURRENT = [
    ("Qwen/Qwen3.6-27B", 4, 0, 598.5),
    ("Qwen/Qwen3.5-27B", 1, 0, 149.62),
    ("Qwen/Qwen3.5-27B", 1, 2, 448.88),  # two drafts: three copies
    ("Qwen/Qwen3.5-35B-A3B", 4, 0, 251.25),
    ("Qwen/Qwen3.5-9B", 4, 0, 201.0),
]
KEYS_AND_VALUES = [("Qwen/Qwen3.6-27B", 262144, 16384), ("Qwen/Qwen3.5-27B", 8192, 512), ("qwen3.5:9b", 135168, 4224)]
TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 50,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
    "pad_token_id": None,
}


@pytest.mark.parametrize(("name", "sequences", "drafts", "mib"), RECURRENT)
def test_states_are_what_llama_cpp_prints(name, sequences, drafts, mib):
    states = model(name).cache_bytes("fp16", 1, drafts=drafts, rule=LLAMA_CPP) - 2 * model(name).kv_values(1)
    assert sequences * states / MIB == pytest.approx(mib, abs=0.0051)


@pytest.mark.parametrize(("name", "sequences", "drafts", "mib"), RECURRENT)
def test_the_engine_s_answer_is_the_same(name, sequences, drafts, mib):
    served = LlamaCpp(ServeSetup(name, users=sequences, context=4096, drafts=drafts))
    assert served.state_bytes / MIB == pytest.approx(mib, abs=0.0051)
    assert served.parts["kv_cache"] == served.kv_bytes + served.state_bytes
    assert sum(layers for _, layers in served.cells) == len(served.setup.model.layers) // 4  # every fourth has K and V


@pytest.mark.parametrize(("name", "cells", "mib"), KEYS_AND_VALUES)
def test_keys_and_values_are_those_of_the_layers_with_attention(name, cells, mib):
    assert 2 * model(name).kv_values(cells) / MIB == mib


def test_qwen3_next_adds_24_kib_a_token():
    shape = model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert shape.cache_bytes("bf16", 1001) - shape.cache_bytes("bf16", 1000) == 24 * 1024
    # 36 layers: 32 heads x 128 x 128 in FP32, and 8,192 channels, of which vLLM keeps 3 inputs and Transformers 4
    assert shape.state_bytes(VLLM) == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert shape.state_bytes() == 36 * (32 * 128 * 128 * 4 + 8192 * 4 * 2)


def held(cache):
    """Bytes of all that Transformers' cache holds."""
    total = 0
    for layer in cache.layers:
        tensors = [getattr(layer, "keys", None), getattr(layer, "values", None)]
        for states in (getattr(layer, "conv_states", None), getattr(layer, "recurrent_states", None)):
            tensors += (states or {}).values()
        total += sum(one.untyped_storage().nbytes() for one in tensors if one is not None)
    return total


@pytest.mark.parametrize("tokens", [2, 9])
def test_a_cache_holds_what_transformers_holds(tokens):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {"model_type": "qwen3_5_text", "intermediate_size": 8, **TINY}
    net = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16).eval()
    with torch.no_grad():
        cache = net(input_ids=torch.zeros((1, tokens), dtype=torch.long), use_cache=True).past_key_values
        cache = net(input_ids=torch.zeros((1, 1), dtype=torch.long), past_key_values=cache).past_key_values
    assert model(config).cache_bytes("bf16", tokens + 1) == held(cache)


# Families that Transformers alone knows: K and V of a token, then the state and the convolution's channels of a layer
COUNTED = [
    ("kimi_linear", {}, 6 * 576, (32 * 128 * 128, 3 * 4096), 21),  # six of 27 layers have a latent
    ("nemotron_h", {}, None, (128 * 64 * 128, 128 * 64 + 2 * 8 * 128), None),  # Mamba-2
    ("bamba", {"attn_layer_indices": [9, 18, 27]}, 3 * 2 * 8 * 128, (128 * 64 * 256, 8192 + 2 * 256), 29),
    ("falcon_h1", {}, 32 * 2 * 8 * 128, (128 * 8 * 256, 1024 + 2 * 256), 32),  # attention and Mamba-2 side by side
]


@pytest.mark.parametrize(("family", "keys", "a_token", "state", "layers"), COUNTED)
def test_recurrent_families_that_transformers_builds(family, keys, a_token, state, layers):
    from transformers import AutoConfig

    shape = model(AutoConfig.for_model(family, **keys))
    states = [layer.attention.state for layer in shape.layers if layer.attention.state]
    assert {(one.values, one.channels, one.kernel) for one in states} == {(*state, 4)}
    assert layers in (None, len(states))
    assert a_token in (None, shape.kv_values(1))
    assert ServeSetup(shape, users=3).cache_bytes() == shape.cache_bytes("bf16", 2048)


def test_a_sparse_attention_keeps_its_indexer_s_keys():
    """DeepSeek-V3.2: vLLM's FP8 layout has 656 + 132 B a token and layer; in BF16 576 + 128 values."""
    shape = model("deepseek-ai/DeepSeek-V3.2-Exp")
    assert shape.cache_bytes("fp8-e4m3", 100) == 100 * 61 * (656 + 132)
    assert shape.cache_bytes("bf16", 100) == 100 * 61 * 2 * (576 + 128)
    assert budget.serve(ServeSetup(shape, kv="fp8-e4m3")).kv_bytes_per_token == 61 * 788


def test_a_latent_that_transformers_alone_knows():
    """GLM-4.7-Flash: 47 layers of 512 + 64 values, as its cache holds them after a forward."""
    from transformers import AutoConfig

    assert model(AutoConfig.for_model("glm4_moe_lite")).kv_values(10) == 10 * 47 * 576


def test_layers_that_read_another_layer_s_cache_keep_none():
    """Gemma-3n: of 35 layers the last 15 share."""
    from transformers import AutoConfig

    shape = model(AutoConfig.for_model("gemma3n_text"))
    assert shape.kv_values(1) == 20 * 2 * 2 * 256


def test_a_cache_of_another_kind_is_refused():
    from transformers import AutoConfig

    with pytest.raises(WorkbookError, match="'minimax' is not known"):
        model(AutoConfig.for_model("minimax", num_hidden_layers=2)).kv_values(1)


def test_drafts_are_a_whole_number():
    assert ServeSetup("qwen3.5:9b", drafts=2).cache_bytes() > ServeSetup("qwen3.5:9b").cache_bytes()
    with pytest.raises(WorkbookError, match="drafts is -1"):
        ServeSetup("qwen3.5:9b", drafts=-1)


def test_ranks_divide_the_heads_of_states_and_convolutions():
    whole = model("qwen3-next")
    assert [rank_shape(whole, ranks).state_bytes() * ranks for ranks in (1, 2, 8)] == [whole.state_bytes()] * 3
    with pytest.raises(WorkbookError, match="cannot share evenly"):
        rank_shape(whole, 3)


def test_a_state_in_another_type_is_not_guessed():
    import torch

    half = SimpleNamespace(recurrent_states={0: torch.zeros(2, dtype=torch.bfloat16)}, conv_states={})
    with pytest.raises(ValueError, match="another kind"):
        by_transformers._state(half)
