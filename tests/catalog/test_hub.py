"""Names of the hub: their shapes by the counts of their pages, tuned ones as their base, quantized ones refused."""

import json
from pathlib import Path

import pytest

from helpers.catalog import ServeSetup, TrainSetup, hub, model
from helpers.catalog.errors import WorkbookError
from helpers.catalog.families import FAMILIES
from helpers.catalog.towers import FLAT
from helpers.cli import main

# The router's biases that correct an expert's score are no parameters in Transformers: 384 x 60 of them in Kimi-K2,
# 256 x 62 in MiniMax-M2. Of the others the page's count differs in the fifth digit or later from what Transformers
# builds of the config; nobody has found where.
NEAR = {"zai-org/GLM-4.5", "zai-org/GLM-4.6", "moonshotai/Kimi-K2", "moonshotai/Kimi-K2-Thinking"}
NEAR |= {"moonshotai/Kimi-Linear-48B-A3B", "MiniMaxAI/MiniMax-M2", "Qwen/Qwen3-VL-32B", "Qwen/Qwen3.5-27B"}
NEAR |= {"Qwen/Qwen3.6-27B", "Qwen/Qwen3.5-4B", "ibm-granite/granite-4.0-h-small"}
NEAR |= {
    "tiiuae/Falcon-H1-7B",
    "CohereLabs/c4ai-command-r7b-12-2024",
    "tencent/Hunyuan-7B",
    "LGAI-EXAONE/EXAONE-4.0-32B",
}


def _lanes():
    """Families that Transformers alone knows are built, which takes a second each."""
    for name, entry in hub.known().items():
        config = entry.get("config", {})
        slow = "text_config" not in config and config.get("model_type", "llama") not in (*FAMILIES, *FLAT)
        yield pytest.param(name, marks=pytest.mark.all) if slow else name


def test_many_models_are_known_and_none_twice():
    def once(pairs):
        assert len(dict(pairs)) == len(pairs), [name for name, _ in pairs]
        return dict(pairs)

    text = Path(hub.__file__).with_name("data").joinpath("hub.json").read_text(encoding="utf-8")
    assert len(json.loads(text, object_pairs_hook=once)["models"]) >= 150


@pytest.mark.parametrize("name", list(_lanes()))
def test_parameters_are_those_of_the_model_s_page(name):
    entry, shape = hub.known()[name], model(name)
    published = entry["parameters"] if "parameters" in entry else model(entry["like"]).parameters
    assert shape.parameters + shape.parameters_beside == pytest.approx(published, rel=1e-4 if name in NEAR else 0)
    assert shape.name == name
    assert not ("changed" in entry and "parameters" not in entry), "what differs is counted against something"


def test_most_counts_were_looked_up_again_and_say_where():
    """Of what a page counts more, gpt2's masks of attention are most: 12 buffers of 1024 x 1024."""
    data = json.loads(Path(hub.__file__).with_name("data").joinpath("hub.json").read_text(encoding="utf-8"))
    sourced = {name: entry for name, entry in data["models"].items() if "source" in entry}
    assert {entry["source"] for entry in sourced.values()} == set(data["sources"])
    assert len(sourced) >= 117
    for name, entry in sourced.items():
        if "page" in entry:
            counted = model(name).parameters + model(name).parameters_beside if "config" not in entry else 0
            assert 1 <= entry["page"] / (counted or entry["parameters"]) < 1.11
    masks = data["models"]["openai-community/gpt2"]["page"] - model("gpt2").parameters
    assert masks == 12 * 1024 * 1024


# What people type, the model that is understood, its parameters in billions, and the format of its weights
TYPED = [
    ("llama-3.1-8b", "llama-3.1-8b", 8.03, "bf16"),
    ("Llama-3.1-8B", "llama-3.1-8b", 8.03, "bf16"),
    ("llama3.1:8b", "llama-3.1-8b", 8.03, "bf16"),
    ("llama3.1", "llama-3.1-8b", 8.03, "bf16"),
    ("llama3.2:3b", "meta-llama/Llama-3.2-3B", 3.21, "bf16"),
    ("llama3.3:latest", "meta-llama/Llama-3.3-70B", 70.55, "bf16"),
    ("llama 3 8b", "llama-3-8b", 8.03, "bf16"),
    ("Meta-Llama-3-70B-Instruct", "llama-3-70b", 70.55, "bf16"),
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", 8.03, "bf16"),
    ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b", 6.74, "bf16"),
    ("unsloth/Llama-3.2-1B-Instruct", "llama-3.2-1b", 1.24, "bf16"),
    ("llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E", 107.77, "bf16"),
    ("qwen3:8b", "qwen3-8b", 8.19, "bf16"),
    ("qwen3:30b-a3b", "qwen3-30b-a3b", 30.53, "bf16"),
    ("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B", 7.62, "bf16"),
    ("Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-14B", 14.77, "bf16"),
    ("https://huggingface.co/Qwen/Qwen3-32B", "Qwen/Qwen3-32B", 32.76, "bf16"),
    ("Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", 30.53, "bf16"),
    ("qwen3.6:27b", "Qwen/Qwen3.6-27B", 26.9, "bf16"),
    ("gemma-3-27b", "google/gemma-3-27b", 27.01, "bf16"),
    ("gemma-3-27b-it", "google/gemma-3-27b", 27.01, "bf16"),
    ("gemma3:12b", "google/gemma-3-12b", 11.77, "bf16"),
    ("google/gemma-2-27b-it", "google/gemma-2-27b", 27.23, "bf16"),
    ("mistral", "mistralai/Mistral-7B-v0.3", 7.25, "bf16"),
    ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3", 7.25, "bf16"),
    ("mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.2", 7.24, "bf16"),
    ("mistralai/Mistral-7B-Instruct-v0.1", "mistralai/Mistral-7B-v0.1", 7.24, "bf16"),
    ("mistral-small", "mistralai/Mistral-Small-3.2-24B", 23.57, "bf16"),
    ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistralai/Mistral-Small-3.1-24B", 23.57, "bf16"),
    ("mixtral:8x7b", "mixtral-8x7b", 46.7, "bf16"),
    ("phi4", "phi-4", 14.66, "bf16"),
    ("microsoft/Phi-4-mini-instruct", "microsoft/Phi-4-mini", 3.84, "bf16"),
    ("deepseek-r1:14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 14.77, "bf16"),
    ("deepseek-r1", "deepseek-ai/DeepSeek-R1", 671.03, "fp8-e4m3"),
    ("deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-V3.1", 671.03, "fp8-e4m3"),
    ("gpt-oss:20b", "gpt-oss-20b", 20.91, "mxfp4"),
    ("openai/gpt-oss-120b", "openai/gpt-oss-120b", 116.83, "mxfp4"),
    ("moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2", 1026.41, "fp8-e4m3"),
    ("moonshotai/Kimi-K2-Thinking", "moonshotai/Kimi-K2-Thinking", 1026.41, "w4a16-g32"),
    ("command-r", "CohereLabs/c4ai-command-r-v01", 34.98, "bf16"),
    ("deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2", 671.88, "fp8-e4m3"),
    ("glm-4.5-air", "zai-org/GLM-4.5-Air", 106.85, "bf16"),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "Qwen/Qwen3-Next-80B-A3B-FP8", 79.67, "fp8-e4m3"),
    ("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2", 228.69, "fp8-e4m3"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct-AWQ", 7.62, "awq-int4"),
    ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct-GPTQ-INT4", 7.62, "gptq-int4"),
    ("qwen2.5-7b-instruct-gptq-int8", "Qwen/Qwen2.5-7B-Instruct-GPTQ-INT8", 7.62, "gptq-int8"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "Qwen/Qwen3-30B-A3B-FP8", 30.53, "fp8-e4m3"),
    ("RedHatAI/Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b-FP8-DYNAMIC", 8.03, "fp8-e4m3"),
    ("RedHatAI/Qwen3-8B-quantized.w4a16", "qwen3-8b-QUANTIZED.W4A16", 8.19, "w4a16-g128"),
    ("nvidia/Llama-3.1-8B-Instruct-NVFP4", "llama-3.1-8b-NVFP4", 8.03, "nvfp4"),
    ("unsloth/Qwen3-8B-bnb-4bit", "qwen3-8b-BNB-4BIT", 8.19, "nf4-dq"),
]


@pytest.mark.parametrize(("typed", "understood", "billions", "weights"), TYPED)
def test_what_people_type_is_understood(typed, understood, billions, weights):
    shape = model(typed)
    assert (shape.name, round(shape.parameters / 1e9, 2)) == (understood, billions)
    assert ServeSetup(shape).weights == weights
    assert model(shape.name) == shape


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("llama-3.1-9b", "did you mean 'llama-3.1-8b'?"),
        ("qwen", "did you mean 'Qwen/Qwen3-4B'?"),
        ("gemma-3-28b", "did you mean 'google/gemma-3-27b'?"),
        ("gpt5", "did you mean 'gpt2'?"),
        ("somebody/Llama-3.1-8B", "hf download somebody/Llama-3.1-8B config.json"),  # who may have changed it
        ("Qwen/Qwen9-1B", "hf download Qwen/Qwen9-1B config.json"),
        ("Qwen/Qwen3-8B-GGUF", "--model Qwen/Qwen3-8B with --weights"),
        ("llama3.1:8b-instruct-q4_K_M", "pass the path of the .gguf file"),
        ("google/gemma-3-27b-it-qat-q4_0-gguf", "pass the path of the .gguf file"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "--model qwen3-8b with --weights"),
        ("nvidia/DeepSeek-R1-NVFP4", "of its config.json"),  # which leaves its attention in 16 bits
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "of its config.json"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct-AWQ", "of its config.json"),
        ("Qwen/Qwen3-8B-MLX-4bit", "--model Qwen/Qwen3-8B with --weights"),
    ],
)
def test_what_is_not_understood_is_told_with_the_nearest(typed, told):
    with pytest.raises(WorkbookError) as refused:
        model(typed)
    assert told in refused.value.do
    assert "None" not in str(refused.value)


def test_a_config_in_the_hub_s_cache_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--me--mine" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    config = {**model("llama-3-8b").config, "num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    assert len(model("me/mine").layers) == 2
    with pytest.raises(WorkbookError, match=r"hf download me/other config\.json"):
        model("me/other")


def test_a_folder_that_is_there_comes_before_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen2.5-14B").mkdir(parents=True)
    config = {**model("llama-3-8b").config, "num_hidden_layers": 3}
    (tmp_path / "Qwen" / "Qwen2.5-14B" / "config.json").write_text(json.dumps(config))
    assert len(model("Qwen/Qwen2.5-14B").layers) == 3


def test_everywhere_a_model_is_named(capsys):
    assert TrainSetup("Qwen/Qwen2.5-14B").model.parameters == 14_770_033_664
    assert main(["estimate", "serve", "--model", "Qwen/Qwen2.5-14B-Instruct", "--gpu", "h100"]) == 0
    assert "Qwen/Qwen2.5-14B" in capsys.readouterr().out
    assert main(["estimate", "train", "--model", "Qwen/Qwen9-1B"]) == 2
    assert "Qwen/Qwen3-14B" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "published"),
    [("google/gemma-3-27b-it", 27_432_406_640), ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 24_011_361_280)],
)
def test_a_multimodal_model_is_its_language_model_and_what_is_beside(spec, published):
    found = model(spec)
    assert found.parameters + found.parameters_beside == published


def test_kimi_vl_has_the_parameters_that_its_card_rounds_to():
    found = model("moonshotai/Kimi-VL-A3B-Instruct")
    assert round((found.parameters + found.parameters_beside) / 1e9, 1) == 16.4
