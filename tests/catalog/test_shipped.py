"""The format of a checkpoint: by name, by `quantization_config`, and refused where that is not understood."""

import pytest

from helpers.catalog import ServeSetup, WorkbookError, model
from helpers.catalog.models import MODELS
from helpers.memory.closed_form.weights import weight_bytes

LLAMA = dict(model("llama-3-8b").config)  # of 8,030,261,248 parameters, of which 1,050,939,392 are embedding and head
# Qwen/Qwen3-235B-A22B-Instruct-2507-FP8, whose index says 236,424,433,664 B: 220.19 GiB
QWEN = {
    **model("qwen3-30b-a3b").config,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "moe_intermediate_size": 1536,
}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def gptq(**changed):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, **changed}


# A model or a config with its `quantization_config`, the format, and GiB: by the bits of a value and its scales
SHIPPED = [
    ("openai/gpt-oss-120b", None, "mxfp4", 60.8),  # its model card, arXiv:2508.10925, table 1
    ("gpt-oss-20b", None, "mxfp4", 12.8),
    ("deepseek-ai/DeepSeek-V3", None, "fp8-e4m3", 627),  # its index, less the extra head of 14 B parameters
    ("deepseek-ai/DeepSeek-R1", None, "fp8-e4m3", 627),
    ("llama-3-8b", None, "bf16", 14.96),
    (QWEN, FP8, "fp8-e4m3", 220),
    (LLAMA, FP8 | {"modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "norm"]}, "fp8-e4m3", 8.46),
    (LLAMA, {"quant_method": "awq", "bits": 4, "group_size": 128}, "awq-int4", 5.33),
    (LLAMA, {"quant_method": "awq", "bits": 4, "group_size": 64}, "int4-g64", 5.46),
    (LLAMA, gptq(), "gptq-int4", 5.34),
    (LLAMA, gptq(bits=8), "gptq-int8", 8.61),
    (LLAMA, FOUR_BITS, "nf4", 5.61),
    (LLAMA, {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-dq", 5.31),
    (LLAMA, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8.46),
    (LLAMA, FOUR_BITS | {"llm_int8_skip_modules": ["lm_head", "down_proj"]}, "nf4", 8.13),
]


@pytest.mark.parametrize(("spec", "quantized", "weights", "gib"), SHIPPED)
def test_a_checkpoint_is_counted_as_it_ships(spec, quantized, weights, gib):
    spec = {**spec, "quantization_config": quantized} if quantized else spec
    setup = ServeSetup(spec)
    assert (setup.weights, setup.as_shipped) == (weights, True)
    assert weight_bytes(setup) / 2**30 == pytest.approx(gib, rel=0.002)
    plain = ServeSetup(spec, weights="bf16")  # what is said explicitly wins
    assert weight_bytes(plain) == 2 * plain.model.parameters
    assert (setup.weights_told == plain.weights_told) == (weights == "bf16")


@pytest.mark.parametrize(
    ("quantized", "reason"),
    [
        ({"quant_method": "quip"}, "'quip'"),
        ({"bits": 4}, "bits 4"),
        (gptq(group_size=-1), "group_size -1"),
        (gptq(bits=5), "bits 5"),
        (FP8 | {"fmt": "e3m4"}, "fmt e3m4"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
        ({"quant_method": ["awq"]}, "quant_method"),
        ("awq", "'awq'"),
        (FOUR_BITS | {"llm_int8_skip_modules": "lm_head"}, "llm_int8_skip_modules"),
        (FP8 | {"modules_to_not_convert": ["model.layers.3.mlp.down_proj"]}, "down_proj in 16 bits in 1 of 32 layers"),
    ],
)
def test_what_is_not_understood_is_refused_unless_a_format_is_said(quantized, reason):
    config = {**LLAMA, "quantization_config": quantized}
    with pytest.raises(WorkbookError) as refused:
        ServeSetup(config)
    assert reason in refused.value.what
    assert "--weights" in refused.value.do
    assert ServeSetup(config, weights="int4-g128").weights_told == "in int4-g128"


def test_a_layer_left_out_everywhere_is_left_out_by_its_name():
    paths = [f"model.layers.{layer}.self_attn" for layer in range(32)]
    config = {**LLAMA, "quantization_config": FP8 | {"modules_to_not_convert": paths}}
    assert "attention" in ServeSetup(config).skipped


def test_every_model_of_the_catalogue_ships_in_a_format_that_is_known():
    quantized = {name for name in MODELS if ServeSetup(name, context=1).weights != "bf16"}
    assert quantized == {"deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"}
