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
PAGE = Path(__file__).parents[2].joinpath("docs/names.md").read_text(encoding="utf-8")


def rows(columns):
    """Of the table on docs/names.md that has so many columns, without its head."""
    lines = (line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `"))
    return [tuple(cell.strip("`") for cell in cells) for cells in lines if len(cells) == columns]


def test_the_page_has_its_tables():
    assert len(rows(4)) >= 56
    assert len(rows(2)) >= 20


@pytest.mark.parametrize(("typed", "understood", "billions", "weights"), rows(4))
def test_what_people_type_is_understood(typed, understood, billions, weights):
    shape = model(typed)
    assert (shape.name, f"{shape.parameters / 1e9:.2f}") == (understood, billions)
    assert ServeSetup(shape).weights == weights
    assert model(shape.name) == shape


@pytest.mark.parametrize(("typed", "told"), rows(2))
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
