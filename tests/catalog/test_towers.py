"""Multimodal configs: the language model is found, and what stands beside it is counted."""

import subprocess
import sys

import pytest

from helpers.catalog import ServeSetup, WorkbookError, model
from helpers.memory import budget

FAMILIES = ("gemma3", "llama4", "mistral3", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
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


@pytest.mark.parametrize(("config", "published"), [(GEMMA_27B, 27_432_406_640), (MISTRAL_SMALL, 24_011_361_280)])
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
