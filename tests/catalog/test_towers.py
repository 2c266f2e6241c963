"""Multimodal configs: the language model is found, and what stands beside it is counted."""

import subprocess
import sys

import pytest

from helpers.catalog import ServeSetup, WorkbookError, model
from helpers.memory import budget

FAMILIES = (
    "gemma3",
    "llama4",
    "mistral3",
    "mllama",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
)
SIGLIP = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896}
GEMMA_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    },
    "vision_config": {**SIGLIP, "vision_use_head": False},
}
MISTRAL_SMALL = {  # mistralai/Mistral-Small-3.1-24B-Instruct-2503: 24,011,361,280 parameters
    "model_type": "mistral3",
    "multimodal_projector_bias": False,
    "spatial_merge_size": 2,
    "text_config": {
        "model_type": "mistral",
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "sliding_window": None,
    },
    "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14},
}


LLAMA_11B = {  # meta-llama/Llama-3.2-11B-Vision-Instruct: its index says 21,340,441,670 bytes in 16 bits
    "model_type": "mllama",
    "text_config": {
        "model_type": "mllama_text_model",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 40,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
        "tie_word_embeddings": False,
    },
    "vision_config": {"image_size": 560, "vision_output_dim": 7680},
}


# Towers that are counted on the model that Transformers builds
COUNTED = ("glm4v", "glm4v_moe", "kimi_k25", "llava", "smolvlm")


@pytest.mark.parametrize("family", [*FAMILIES, *COUNTED])
def test_a_multimodal_model_is_what_transformers_builds(family):
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(family)
    with torch.device("meta"):
        net = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    shape = model(config)
    assert shape.parameters + shape.parameters_beside == sum(one.numel() for one in net.parameters())


@pytest.mark.parametrize(
    ("config", "published"), [(GEMMA_27B, 27_432_406_640), (MISTRAL_SMALL, 24_011_361_280), (LLAMA_11B, 10_670_220_835)]
)
def test_published_counts(config, published):
    shape = model(config)
    assert shape.parameters + shape.parameters_beside == published


def test_what_is_served_holds_its_towers_and_says_so():
    setup, text = ServeSetup(GEMMA_27B, context=131072), model(GEMMA_27B["text_config"])
    served, alone = budget.serve(setup), budget.serve(ServeSetup(text, context=131072))
    assert served.held["parameters"] - alone.held["parameters"] == 2 * 423_060_336
    assert served.held["kv_cache"] / 2**30 == pytest.approx(10.41, abs=0.005)  # 52 of 62 layers keep 1,024 tokens
    assert budget.decode_bytes(setup) == budget.decode_bytes(ServeSetup(text, context=131072))
    assert setup.shipped_told == ("Its vision tower and projector, 423,060,336 parameters, are counted in 16 bits.",)


def test_a_tower_that_nobody_can_count_is_told():
    """Transformers knows no such family; the language model is answered."""
    shape = model({**MISTRAL_SMALL, "model_type": "nobody_vl"})
    assert (shape.parameters, shape.parameters_beside) == (23_572_403_200, 0)
    assert "are not counted" in ServeSetup(shape).shipped_told[0]


def test_the_outer_config_says_how_embeddings_are_tied_and_what_the_checkpoint_ships_in():
    quantized = {"quant_method": "fp8", "modules_to_not_convert": ["vision_tower"]}
    shape = model({**MISTRAL_SMALL, "tie_word_embeddings": True, "quantization_config": quantized})
    assert shape.parameters == 23_572_403_200 - 131072 * 5120
    assert ServeSetup(shape).weights == "fp8-e4m3"


def test_older_configs_with_the_decoder_s_keys_beside():
    keys = {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
    keys |= {"num_key_value_heads": 4, "vocab_size": 152064, "vision_config": {"hidden_size": 1280}}
    shape = model({"model_type": "qwen2_5_vl", **keys})  # Qwen/Qwen2.5-VL-7B-Instruct: 8,292,166,656
    assert shape.parameters + shape.parameters_beside == 8_292_166_656


def test_a_text_config_that_is_none():
    with pytest.raises(WorkbookError, match="text_config is 'llama'"):
        model({"model_type": "llava", "text_config": "llama"})


def test_no_torch_for_a_language_model_and_the_usual_towers():
    code = f"import sys; from helpers.catalog import model; model({GEMMA_27B!r}); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "False"


def test_layers_that_attend_to_an_image_keep_nothing_of_a_token():
    """32 layers of 8 heads of 128 in K and V; of an image 4 tiles of 1,601 patches in each of the 8 others."""
    setup = ServeSetup(LLAMA_11B, users=2, context=1000)
    assert setup.cache_bytes() == 1000 * 32 * 2 * 8 * 128 * 2
    assert budget.serve(setup).held["kv_cache"] == 2 * setup.cache_bytes()
    image = 8 * 4 * 1601 * 2 * 8 * 128 * 2 / 2**20
    assert f"An image adds {image:.0f} MiB of keys and values in 8 layers" in " ".join(setup.shipped_told)


def test_its_forward_over_text_is_the_trace_s():
    """Layers that attend to an image are passed over where there is none; their weights are there."""
    from helpers.memory import trace

    text = {
        **LLAMA_11B["text_config"],
        "num_hidden_layers": 5,
        "cross_attention_layers": [3],
        "vocab_size": 4096,
        "pad_token_id": 0,
    }
    setup = ServeSetup(text, users=2, context=512, prefill_tokens=512)
    said, traced = budget.serve(setup), trace.serve(setup)
    assert said.peak_bytes == pytest.approx(traced.peak_allocated_bytes, rel=5e-3)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_engines_that_keep_what_is_not_known_of_an_image_are_refused(engine):
    from helpers.catalog.engines import require_served

    with pytest.raises(WorkbookError, match="attend to images"):
        require_served(engine, ServeSetup(LLAMA_11B))
