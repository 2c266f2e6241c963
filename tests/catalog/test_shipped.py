"""The format of a checkpoint: by name, by `quantization_config`, and refused where that is not understood."""

import json

import pytest

from helpers.catalog import ServeSetup, WorkbookError, model
from helpers.catalog.models import MODELS
from helpers.catalog.unquantized import is_left_out, spelled
from helpers.memory.serve.weights import is_quantized, weight_bytes

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


KIMI = {  # moonshotai/Kimi-K2-Thinking, whose index says 594 GB: routed experts in 4 bits, all else in BF16
    **model("deepseek-v3").config,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
}
KIMI_LEAVES = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


def gptq(**changed):
    return {"quant_method": "gptq", "bits": 4, "group_size": 128, **changed}


def compressed(ignore=("lm_head",), targets=("Linear",), **weights):
    """As llm-compressor writes it into config.json."""
    group = {"targets": list(targets), "weights": weights, "input_activations": None}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": list(ignore)}


def modelopt(algorithm, *ignore):
    return {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head", *ignore]}


def torchao(kind, **data):
    config = {"_type": kind, "_version": 1, "_data": data}
    return {"quant_method": "torchao", "quant_type": {"default": config}, "modules_to_not_convert": None}


FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


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
    # Of 6,979,321,856 values in linear layers, of (1,024 x 2 + 4,096 x 3 + 14,336 x 2) x 32 rows; the rest has 2.10 GB
    (LLAMA, compressed(**FLOAT8), "fp8-e4m3", 8.46),
    (LLAMA, compressed(num_bits=8, type="int", strategy="channel", symmetric=True), "w8a8", 8.46),
    (LLAMA, compressed(**INT4, symmetric=True), "w4a16-g128", 5.309),
    (LLAMA, compressed(**INT4, symmetric=False), "int4-g128", 5.335),
    (LLAMA, compressed(**FLOAT4), "nvfp4", 5.614),  # nvidia/Llama-3.1-8B-Instruct-NVFP4: 6.03 GB
    (LLAMA, compressed(["lm_head", r"re:model\.layers\.(0|31)\..*"], **FLOAT8), "fp8-e4m3", 8.863),
    (LLAMA, compressed(targets=[r"re:.*mlp\..*_proj"], **FLOAT8), "fp8-e4m3", 9.708),
    (KIMI, compressed(KIMI_LEAVES, **{**INT4, "group_size": 32}, symmetric=True), "w4a16-g32", 594.2e9 / 2**30),
    (LLAMA, modelopt("NVFP4"), "nvfp4", 5.614),
    (LLAMA, modelopt("FP8", "model.layers.*.self_attn*"), "fp8-e4m3", 9.708),
    (LLAMA, modelopt("NVFP4", "model.layers.0*", "model.layers.31.mlp.down_proj"), "nvfp4", 5.984),
    (LLAMA, torchao("Int4WeightOnlyConfig", group_size=128), "torchao-int4-g128", 5.411),
    (LLAMA, torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8-e4m3", 8.46),
    (LLAMA, {"quant_method": "torchao", "quant_type": "int8_weight_only"}, "w8a8", 8.46),
    (LLAMA, gptq(dynamic={r"-:model\.layers\.0\..*": {}}), "gptq-int4", 5.64),
    (LLAMA, {**gptq(quant_method="auto-round"), "extra_config": {"lm_head": {"bits": 16}}}, "int4-g128", 5.335),
    (LLAMA, FP8 | {"modules_to_not_convert": ["model.layers.3.mlp.down_proj"]}, "fp8-e4m3", 8.512),
]


@pytest.mark.parametrize(("spec", "quantized", "weights", "gib"), SHIPPED)
def test_a_checkpoint_is_counted_as_it_ships(spec, quantized, weights, gib):
    spec = {**spec, "quantization_config": quantized} if quantized else spec
    setup = ServeSetup(spec)
    assert (setup.weights, setup.as_shipped) == (weights, True)
    assert weight_bytes(setup) / 2**30 == pytest.approx(gib, rel=0.002)
    plain = ServeSetup(spec, weights="bf16")  # what is said explicitly wins
    assert weight_bytes(plain) == 2 * plain.model.parameters
    assert plain.weights_told == ("in bf16" if weights == "bf16" else f"in bf16, not in {weights} as shipped")
    assert setup.weights_told == ("in bf16" if weights == "bf16" else f"in {weights}, as shipped")


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
        (compressed(num_bits=3.5, type="int", group_size=128), "'compressed-tensors'"),
        (compressed(num_bits=[4], type="float"), "'compressed-tensors'"),
        ({**compressed(**FLOAT8), "config_groups": {"a": {"weights": FLOAT8}, "b": {"weights": FLOAT4}}}, "compressed"),
        (compressed(["re:("], **FLOAT8), "'(' that is no regular expression"),
        (modelopt("MIXED_PRECISION"), "quant_algo MIXED_PRECISION"),
        (torchao("ModuleFqnToConfig"), "ModuleFqnToConfig"),
        (torchao("Int8DynamicActivationIntxWeightConfig"), "Int8DynamicActivationIntxWeightConfig"),
        (gptq(modules_in_block_to_quantize=7), "modules_in_block_to_quantize that is 7"),
        (gptq(dynamic={"+:.*down_proj": {"bits": 8}}), "'gptq'"),
    ],
)
def test_what_is_not_understood_is_refused_unless_a_format_is_said(quantized, reason):
    config = {**LLAMA, "quantization_config": quantized}
    with pytest.raises(WorkbookError) as refused:
        ServeSetup(config)
    assert reason in refused.value.what
    assert "--weights" in refused.value.do
    assert ServeSetup(config, weights="int4-g128").weights_told == "in int4-g128"


def test_what_the_checkpoint_leaves_out_is_left_out_by_the_checkpoint_s_format_alone():
    paths = [f"model.layers.{layer}.self_attn" for layer in range(32)]
    config = {**LLAMA, "quantization_config": FP8 | {"modules_to_not_convert": paths}}
    setup = ServeSetup(config)
    assert setup.skipped == ("shipped",)
    assert [one.linear.name for one in setup.model.linears() if one.linear.kept] == [f"{x}_proj" for x in "qkvo"]
    of_attention = sum(one.weights for one in setup.model.linears() if one.part == "attention")
    scales = 2 * 32 * 32 + 2 * 8 * 32  # of blocks of 128 x 128 in q, o, k and v
    assert weight_bytes(setup) - weight_bytes(ServeSetup(config, weights="fp8-e4m3")) == of_attention - 4 * scales * 32


@pytest.mark.parametrize(
    ("pattern", "path", "out"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("model.layers.1", "model.layers.11.mlp.up_proj", False),
        ("model.layers.*.mlp.gate", "model.layers.1.mlp.gate_proj", False),
        ("language_model.model.layers.1.mlp.down_proj", "model.layers.1.mlp.down_proj", True),
        ("model.layers.1.self_attn.qkv_proj", "model.layers.1.self_attn.k_proj", True),
        ("model.layers.*.self_attn", "model.layers.1.self_attn.o_proj", True),
        ("re:.*q_proj", "model.layers.1.self_attn.qkv_proj", True),
        ("-:model.layers.1", "model.layers.1.self_attn.qkv_proj", True),
    ],
)
def test_patterns_of_all_tools(pattern, path, out):
    assert is_left_out(spelled(path), (pattern,)) is out


def test_every_model_of_the_catalogue_ships_in_a_format_that_is_known():
    quantized = {name for name in MODELS if ServeSetup(name, context=1).weights != "bf16"}
    assert quantized == {"deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"}


def test_shared_experts_have_a_name_of_their_own():
    config = {**KIMI, "quantization_config": compressed(["re:.*shared_experts.*"], **FLOAT8)}
    kept = sum(one.weights for one in ServeSetup(config).model.linears() if one.linear.kept)
    assert kept == 60 * 3 * 7168 * 2048  # 60 layers have experts, each one that is shared


def test_gptq_may_name_what_alone_it_quantizes():
    named = [["self_attn.q_proj", "self_attn.k_proj"], ["mlp.up_proj"]]
    config = {**LLAMA, "quantization_config": gptq(modules_in_block_to_quantize=named)}
    linears = ServeSetup(config).model.linears()
    quantized = [one.linear.name for one in linears if not one.linear.kept and one.part != "lm_head"]
    assert quantized == ["q_proj", "k_proj", "up_proj"]


def test_mxfp4_of_another_tool_is_in_all_linear_layers():
    """OpenAI's own leaves all but the experts out without a word."""
    quantized = compressed([], num_bits=4, type="float", group_size=32)
    setup = ServeSetup({**QWEN, "quantization_config": quantized})
    assert (setup.weights, setup.skipped) == ("mxfp4", ("shipped",))
    assert is_quantized(setup, next(one for one in setup.model.linears() if one.part == "attention"))


def test_an_older_checkpoint_of_modelopt_says_its_format_in_a_file_beside(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    assert ServeSetup(str(tmp_path)).weights == "fp8-e4m3"
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(WorkbookError, match="holds a JSON list"):
        ServeSetup(str(tmp_path))
