"""What is particular to Gemma 3, Phi-3 and GPT-OSS: towers left out, fused matrices, sinks, biased experts."""

import pytest

from helpers.catalog import MODELS, TrainSetup, WorkbookError, model
from helpers.catalog.split import Split
from helpers.memory import budget
from helpers.memory.step.ranks import tensor_parts

# As the hub has them: a text_config keeps only what differs from Transformers' defaults, heads included.
TOWER = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
    "vision_use_head": False,
}
TEXT_12B = {
    "model_type": "gemma3_text",
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "sliding_window": 1024,
}
TEXT_27B = {
    "model_type": "gemma3_text",
    "hidden_size": 5376,
    "intermediate_size": 21504,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "sliding_window": 1024,
}
TEXT_4B = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
}
WHOLE = [(TEXT_4B, 4_300_079_472), (TEXT_12B, 12_187_325_040), (TEXT_27B, 27_432_406_640)]


@pytest.mark.parametrize(("text", "published"), WHOLE)
def test_gemma3_is_its_text_model_its_tower_and_a_projector(text, published):
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model("gemma3", text_config=dict(text), vision_config=dict(TOWER))
    with torch.device("meta"):
        net = AutoModelForImageTextToText.from_config(config)
    beside = sum(
        parameter.numel()
        for path, parameter in net.named_parameters()
        if "vision_tower" in path or "multi_modal_projector" in path
    )
    assert model(text).parameters + beside == published


@pytest.mark.parametrize(("name", "text"), [("gemma-3-12b-text", TEXT_12B), ("gemma-3-27b-text", TEXT_27B)])
def test_the_catalogue_has_gemma3_as_its_sparse_text_config_means_it(name, text):
    # The same layers, tensors and windows: what the hub leaves out is what the catalogue spells out.
    assert model(name).layers == model(text).layers
    assert list(model(name).tensors()) == list(model(text).tensors())
    assert model(name).kv_values(100_000) == model(text).kv_values(100_000)


OSS = dict(model("gpt-oss-20b").config)
BAD = [
    (TEXT_4B, {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
    (TEXT_4B, {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    (TEXT_4B, {"num_attention_heads": 7}, "not a multiple of 7 heads"),
    (TEXT_4B, {"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
    (OSS, {"layer_types": ["chunked_attention"] * 24}, "layer_types holds 'chunked_attention'"),
    (OSS, {"num_experts_per_tok": 33}, "num_experts_per_tok is 33"),
    (OSS, {"sliding_window": -1}, "sliding_window is -1"),
    (dict(model("phi-4").config), {"num_key_value_heads": 7}, "num_key_value_heads is 7"),
    (dict(model("phi-4").config), {"hidden_size": 5121}, "hidden_size is 5121, not a multiple of 40 heads"),
]


@pytest.mark.parametrize(("config", "change", "phrase"), BAD)
def test_a_bad_value_is_told_by_its_key(config, change, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        model({**config, **change})
    assert model(config).parameters > 0


def test_gemma3_keeps_every_token_in_one_layer_of_six():
    shape = model("gemma-3-27b-text")
    windows = [layer.attention.window for layer in shape.layers]
    assert windows == [None if at % 6 == 5 else 1024 for at in range(62)]
    # In BF16 at 131,072 tokens: 10.4 GiB, where 62 full layers would hold 62 GiB.
    assert shape.kv_values(131_072) == (10 * 131_072 + 52 * 1024) * 2 * 16 * 128
    assert round(shape.kv_values(131_072) * 2 / 2**30, 1) == 10.4


def test_phi3_fuses_what_llama_keeps_apart():
    layer = model("phi-4").layers[0]
    shapes = {linear.name: (linear.inputs, linear.outputs) for linear in layer.attention.linears + layer.mlp.linears}
    assert shapes == {
        "qkv_proj": (5120, (40 + 2 * 10) * 128),
        "o_proj": (5120, 5120),
        "gate_up_proj": (5120, 2 * 17920),
        "down_proj": (17920, 5120),
    }
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    apart = model({"model_type": "llama", "vocab_size": 100352, **{key: model("phi-4").config[key] for key in keys}})
    assert apart.parameters == model("phi-4").parameters
    weights, fused_weights = (sum(group.weights for group in shape.linears()) for shape in (apart, model("phi-4")))
    assert weights == fused_weights


@pytest.mark.parametrize(
    ("name", "active", "mlp", "attention"), [("gpt-oss-20b", 3.61, 19.12, 0.64), ("gpt-oss-120b", 5.13, 114.71, 0.96)]
)
def test_gpt_oss_by_the_table_of_its_model_card(name, active, mlp, attention):
    shape = model(name)
    parts = {part: round(count / 1e9, 2) for part, count in shape.parameters_by_part.items()}
    assert (parts["mlp"], parts["attention"]) == (mlp, attention)
    assert parts["embedding"] + parts["lm_head"] == 1.16
    # The card counts the head as active, and the embedding not.
    assert round((shape.active_parameters - shape.parameters_by_part["embedding"]) / 1e9, 2) == active


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_gpt_oss_has_an_output_row_for_each_bias_of_a_projection(name, on_meta):
    named = on_meta(dict(model(name).config)).named_parameters()
    biases = sum(p.numel() for path, p in named if path.endswith("bias") and "router" not in path)
    inside = [group for group in model(name).linears() if group.part != "lm_head"]
    assert sum(group.count * group.linear.outputs for group in inside) == biases


def test_gpt_oss_has_a_sink_per_head_in_every_layer(on_meta):
    named = on_meta(dict(model("gpt-oss-20b").config)).named_parameters()
    sinks = [tuple(p.shape) for path, p in named if path.endswith("sinks")]
    attentions = [layer.attention for layer in model("gpt-oss-20b").layers]
    assert sinks == [(attention.heads,) for attention in attentions if attention.sinks]
    assert all(
        attention.parameters == sum(linear.parameters for linear in attention.linears) + 64 for attention in attentions
    )


WITHOUT_PLAN = [name for name in MODELS if model(name).family not in tensor_parts.FAMILIES]


@pytest.mark.parametrize("name", WITHOUT_PLAN)
def test_a_model_that_is_not_columns_and_rows_is_given_no_peak_under_tensor_parallelism(name):
    with pytest.raises(WorkbookError) as refused:
        budget.train(TrainSetup(name, "bf16", sequence=512, split=Split(tensor=8)))
    assert name in refused.value.what
    assert f"--model {name} --tensor-parallel 8" in refused.value.do
