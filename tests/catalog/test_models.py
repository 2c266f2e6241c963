"""Every catalogue model equals the Transformers model built on meta, and the figures people publish."""

import json
from pathlib import Path

import pytest

from helpers.catalog import by_transformers, models
from helpers.catalog.models import MODELS, from_config, model

# The totals shown on each model's page (safetensors metadata). Where the page shows another one: DeepSeek-V3 is
# without its MTP layer; Qwen3-0.6B's file also stores the tied head (751,632,384); Gemma 3's text models are what
# is left of 12,187,325,040 and 27,432,406,640 without the vision tower (test_new_families.py builds both); GPT-OSS
# is by its model card (20.91 and 116.83 billion), and exactly as Transformers builds it: its file is in MXFP4.
PUBLISHED = {
    "gpt2": 124_439_808,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gemma-3-12b-text": 11_766_034_176,
    "gemma-3-27b-text": 27_009_346_304,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "opt-13b": 12_853_473_280,
}
FEW_LAYERS = {"num_hidden_layers": 5}
# Configs whose value leaves the ordinary path of a family: the closed form must follow Transformers on each.
VARIANTS = [
    ("gpt2", {"n_inner": 100, "tie_word_embeddings": False}),
    ("opt", {"word_embed_proj_dim": 512}),
    ("opt", {"do_layer_norm_before": False}),
    ("opt", {"enable_bias": False}),
    ("opt", {"layer_norm_elementwise_affine": False}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 96}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("mistral", {"num_key_value_heads": 4, "sliding_window": None}),
    ("mixtral", {"num_local_experts": 4, "head_dim": 64}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [3], "head_dim": 128}),
    ("gemma2", {"attention_bias": True, "tie_word_embeddings": False}),
    ("gemma3_text", {"attention_bias": True, "tie_word_embeddings": False}),
    ("gemma3_text", {"sliding_window_pattern": 2, "num_key_value_heads": 1, "head_dim": 64}),
    ("phi3", {"num_key_value_heads": 8, "sliding_window": 2047, "tie_word_embeddings": True}),
    ("phi3", {"head_dim": 64, "intermediate_size": 100}),
    ("gpt_oss", {"attention_bias": False, "num_local_experts": 6, "tie_word_embeddings": True}),
    ("gpt_oss", {"head_dim": 32, "num_key_value_heads": 64, "sliding_window": 7, "intermediate_size": 96}),
    ("deepseek_v3", {"q_lora_rank": None, "n_shared_experts": 2, "attention_bias": True}),
    ("deepseek_v3", {"first_k_dense_replace": 0, "num_key_value_heads": None}),
    ("smollm3", {"no_rope_layers": [1, 0, 0, 1, 1], "attention_bias": True, "mlp_bias": True}),
    ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, "n_shared_experts": 2, "head_dim": 128}),
    ("llama4_text", {"moe_layers": [1], "attention_bias": True}),
    ("llama4_text", {"interleave_moe_layer_step": 2, "no_rope_layers": []}),
]


def test_kimi_k2_is_deepseeks_code_under_another_name():
    """Of its config on the hub: 1,026,408,232,448 parameters."""
    sizes = {"hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64}
    sizes |= {"n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840, "kv_lora_rank": 512}
    shape = from_config({"model_type": "kimi_k2", **sizes})
    assert (shape.family, shape.config["model_type"]) == ("deepseek_v3", "deepseek_v3")
    assert 1.02e12 < shape.parameters < 1.03e12
    assert 32e9 < shape.active_parameters < 33e9


def weights_of_linears(shape):
    return sum(group.weights for group in shape.linears())


def rows_of_linears(shape):
    return sum(group.count * group.linear.outputs for group in shape.linears())


@pytest.mark.parametrize("name", MODELS)
def test_catalogue_model_equals_transformers(name, on_meta, assert_same_tensors):
    shape = model(name)
    assert_same_tensors(shape, on_meta(dict(shape.config)))
    assert shape.parameters == PUBLISHED.get(name, shape.parameters)


def test_every_model_but_our_own_has_a_published_count():
    assert set(MODELS) - set(PUBLISHED) == {name for name in MODELS if name.startswith("tiny-")}


@pytest.mark.parametrize("family", sorted(set(models.FAMILIES) - {"mllama_text_model"}))  # its own test is in towers
def test_missing_keys_take_the_defaults_of_transformers(family, on_meta, assert_same_tensors):
    from transformers import AutoConfig

    full = AutoConfig.for_model(family, **FEW_LAYERS)
    sizes = {key: getattr(full, key) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    assert_same_tensors(from_config({"model_type": family, **sizes}), on_meta(full))
    assert_same_tensors(model(full), on_meta(full))


@pytest.mark.parametrize(("family", "changes"), VARIANTS)
def test_unusual_values_follow_transformers(family, changes, on_meta, assert_same_tensors):
    from transformers import AutoConfig

    live = AutoConfig.for_model(family, **FEW_LAYERS, **changes)
    shape = model(live)
    assert_same_tensors(shape, on_meta(live))
    counted = by_transformers.count_on_meta(live.to_dict(), family, "meta")
    assert weights_of_linears(counted) == weights_of_linears(shape)
    if not shape.layers[0].attention.mla:
        assert counted.kv_values(10_000) == shape.kv_values(10_000)


# As a config.json on the hub has them: keys given, keys left out, nothing worked out beforehand.
SMALL = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "intermediate_size": 8}
WINDOWED = [
    ("qwen2", {"num_key_value_heads": None}, [None] * 5),
    ("qwen2", {"num_key_value_heads": 4, "sliding_window": 7, "max_window_layers": 0}, [None] * 5),
    ("qwen2", {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 7}, [None] * 5),
    (
        "qwen3",
        {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3},
        [None, None, None, 7, 7],
    ),
    ("qwen3_moe", {"num_key_value_heads": 4, "sliding_window": 7}, [None] * 5),
    ("qwen3_moe", {"num_key_value_heads": 4, "use_sliding_window": True, "sliding_window": 7}, [7] * 5),
    ("gemma2", {"num_key_value_heads": 4, "sliding_window": 7}, [7, None, 7, None, 7]),
    ("gemma3_text", {"num_key_value_heads": 4, "num_hidden_layers": 7}, [4096] * 5 + [None, 4096]),
    (
        "gemma3_text",
        {"num_key_value_heads": 4, "sliding_window_pattern": 2, "sliding_window": 7},
        [7, None, 7, None, 7],
    ),
    (
        "gemma3_text",
        {"num_key_value_heads": 4, "layer_types": ["full_attention"] * 4 + ["sliding_attention"]},
        [None] * 4 + [4096],
    ),
    ("gpt_oss", {"num_key_value_heads": 4}, [128, None, 128, None, 128]),
    ("phi3", {"num_key_value_heads": 4}, [None] * 5),
    ("phi3", {"sliding_window": 2047}, [2047] * 5),
    ("mistral", {"num_key_value_heads": 4}, [4096] * 5),
]


@pytest.mark.parametrize(("family", "keys", "windows"), WINDOWED)
def test_windows_come_from_the_keys_as_transformers_reads_them(family, keys, windows):
    config = {"model_type": family, **SMALL, **keys}
    shape, counted = model(config), by_transformers.count_on_meta(config, family, "meta")
    assert [layer.attention.window for layer in shape.layers] == windows
    assert [layer.attention.window for layer in counted.layers] == windows
    assert counted.kv_values(10_000) == shape.kv_values(10_000)


def one_of_each_family():
    """The catalogue's names: those that are not their family's smallest are left to `make test-all`."""
    families = {}
    for name in sorted(MODELS, key=lambda name: model(name).parameters):
        families.setdefault(model(name).family, name)
    return [name if name in families.values() else pytest.param(name, marks=pytest.mark.all) for name in MODELS]


@pytest.mark.parametrize("name", one_of_each_family())
def test_linears_and_kv_equal_what_transformers_holds(name):
    """The count on meta asks nn.Linear modules, stacked experts and Transformers' own cache."""
    shape = model(name)
    counted = by_transformers.count_on_meta(dict(shape.config), name, "meta")
    assert weights_of_linears(counted) == weights_of_linears(shape)
    if shape.family != "gpt_oss":  # its experts lie transposed there; test_new_families.py counts their biases
        assert rows_of_linears(counted) == rows_of_linears(shape)
    assert counted.tied == shape.tied
    if name != "deepseek-v3":  # its latent is not one K and one V
        for context in (1, 4096, 4097, 100_000):
            assert counted.kv_values(context) == shape.kv_values(context)


def test_deepseek_caches_one_latent_as_transformers_does(on_meta):
    import torch

    shape = model("deepseek-v3")
    net = on_meta({**shape.config, "num_hidden_layers": 1})
    with torch.no_grad():
        tokens = torch.zeros((1, 3), dtype=torch.long, device="meta")
        layer = net(input_ids=tokens, use_cache=True).past_key_values.layers[0]
    held = layer.keys.numel() + layer.values.numel()
    assert held == shape.layers[0].attention.kv_values(3) == 3 * 576


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_source_and_date(name):
    entry = json.loads((Path(models.__file__).parent / "data" / "models.json").read_text())["models"][name]
    assert ("this workbook" if name.startswith("tiny-") else "config.json") in entry["source"]
    assert len(entry["date"].split("-")) == 3


def test_kv_of_the_published_cases():
    gib = 2**30
    assert model("qwen3-30b-a3b").kv_values(262_144) * 2 / gib == 24.0
    assert model("llama-2-70b").kv_values(2048) * 128 * 2 / gib == 80.0
    assert round(model("llama-3-8b").parameters * 2 / gib, 2) == 14.96


def test_windows_bound_the_cache_and_stop_its_growth():
    mistral, gemma = model("mistral-7b"), model("gemma-2-9b")
    per_token = 32 * 2 * 8 * 128
    assert mistral.kv_values(4095) == 4095 * per_token
    assert mistral.kv_values(10**6) == mistral.kv_values(4096) == 4096 * per_token
    assert [mistral.kv_values_per_token_at(c) for c in (1, 4096, 4097)] == [per_token, per_token, 0]
    full_layers = gemma.kv_values_per_token_at(8192)
    assert gemma.kv_values_per_token_at(4096) == 2 * full_layers == 42 * 2 * 8 * 256
    assert [layer.attention.window for layer in gemma.layers[:4]] == [4096, None, 4096, None]


def test_kinds_and_active_parameters():
    kinds = {name: model(name).layers[-1].attention.kind for name in MODELS}
    assert {kinds[n] for n in ("gpt2", "llama-2-7b", "opt-13b", "phi-3-mini-4k")} == {"mha"}
    assert {kinds[n] for n in ("llama-3-8b", "qwen3-30b-a3b", "gemma-2-9b", "phi-4", "gpt-oss-20b")} == {"gqa"}
    assert kinds["deepseek-v3"] == "mla"
    assert model({**model("llama-2-7b").config, "num_key_value_heads": 1}).layers[0].attention.kind == "mqa"
    assert [model(n).is_dense_decoder for n in ("llama-2-7b", "mixtral-8x7b", "deepseek-v3")] == [True, False, False]
    # Mixtral's "13B active", Qwen3's "3.3B", DeepSeek-V3's "37B", by their model cards.
    billions = [round(model(n).active_parameters / 1e9, 1) for n in ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")]
    assert billions == [12.9, 3.4, 37.6]
    assert model("llama-3-8b").active_parameters == model("llama-3-8b").parameters


def test_a_family_without_closed_form_is_counted(on_meta):
    from transformers import AutoConfig

    live = AutoConfig.for_model("olmo2", num_hidden_layers=3)
    shape = model(live)
    assert shape.parameters == sum(p.numel() for p in on_meta(live).parameters())
    assert sum(shape.parameters_by_part.values()) == shape.parameters
    assert shape.kv_values(10) == 3 * 2 * 32 * 128 * 10
    assert not shape.is_dense_decoder


def test_a_quantized_checkpoint_has_the_same_shape():
    config = {**model("llama-3-8b").config, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert model(config).parameters == PUBLISHED["llama-3-8b"]


@pytest.mark.parametrize("wrap", [str, Path, lambda path: path.parent])
def test_a_config_is_read_from_a_path(tmp_path, wrap):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(dict(model("llama-3-8b").config)), encoding="utf-8-sig")
    shape = model(wrap(file))
    assert (shape.parameters, shape.name) == (PUBLISHED["llama-3-8b"], "my-llama")


def test_names_ignore_case_and_shapes_pass_through():
    shape = model("Llama-2-7B")
    assert shape == model("llama-2-7b") == model(shape)
    assert hash(shape) == hash(model("llama-2-7b"))
    assert repr(shape) == "<llama-2-7b: llama, 6,738,415,616 parameters, 32 layers>"


def test_a_recurrent_state_is_no_key_and_no_value():
    shape = from_config(
        {"model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 16}
    )
    assert (shape.parameters, shape.active_parameters) == (79_674_391_296, 3_874_929_408)
    assert shape.kv_values(1024) == 1024 * 12 * 2 * 2 * 256  # of 12 layers with attention
