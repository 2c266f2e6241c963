"""Names of the hub: their shapes by the counts of their pages, tuned ones as their base, quantized ones refused."""

import json

import pytest

from helpers.catalog import TrainSetup, hub, model
from helpers.catalog.errors import WorkbookError
from helpers.cli import main


@pytest.mark.parametrize("name", hub.known())
def test_parameters_are_those_of_the_model_s_page(name):
    entry, shape = hub.known()[name], model(name)
    assert shape.parameters == entry.get("parameters", model(entry["like"]).parameters)
    assert shape.name == name
    assert not ("changed" in entry and "parameters" not in entry), "what differs is counted against something"


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        ("Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-14B"),
        ("qwen/qwen2.5-3b-instruct", "Qwen/Qwen2.5-3B"),
        ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("google/gemma-2-27b-it", "google/gemma-2-27b"),
        ("microsoft/Phi-3-mini-4k-instruct", "microsoft/Phi-3-mini-4k"),
    ],
)
def test_what_is_tuned_has_the_shape_of_its_base(spec, base):
    assert model(spec) == model(base)


@pytest.mark.parametrize(
    ("spec", "weights"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq-int4"),
        ("RedHatAI/Llama-3.1-8B-FP8", "fp8-e4m3"),
        ("unsloth/llama-3-8b-bnb-4bit", "nf4"),
    ],
)
def test_a_quantized_checkpoint_is_told_how_to_be_asked_for(spec, weights):
    with pytest.raises(WorkbookError, match=f"--weights {weights}"):
        model(spec)


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
    assert "Qwen/Qwen2.5-0.5B" in capsys.readouterr().err
