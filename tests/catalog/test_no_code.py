"""A config or a folder that asks for code of its own: nothing is run, nothing is fetched, at any public door."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.integrations import hub_kernels

from helpers import small_lm
from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, model
from helpers.catalog.by_transformers import saved_config, transformers_config
from helpers.catalog.config import without_code
from helpers.cli import main
from helpers.lesson.calculators import kv_cache_answer, training_answer
from helpers.memory import trace
from helpers.memory.accuracy import Case, lora
from helpers.memory.measure import steps
from helpers.small_lm.model import CHECKPOINT
from helpers.techniques.quantization import engines

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64}
KERNEL = "kernels-community/flash-attn2"
ASKS = {
    "auto_map": {"AutoConfig": "evil--code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": "code.T"},
    "attn_implementation": KERNEL,
    "_attn_implementation": "owner/name",
    "_attn_implementation_internal": KERNEL,
    "experts_implementation": "owner/name",
}
HOSTILE = {**SIZES, **ASKS, "model_type": "llama", "nested": [{"auto_map": {"AutoModel": "code.Model"}}]}
UNKNOWN = {**SIZES, **ASKS, "model_type": "starcoder2"}  # a family that is counted on Transformers' own model


@pytest.fixture(autouse=True)
def asked(monkeypatch, tmp_path):
    """Whoever asks for a kernel, for code of a repository or for leave on the terminal fails the test."""

    def fetched(*arguments, **_):
        raise AssertionError(f"it asked for {arguments}")

    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", fetched)
    monkeypatch.setattr(transformers.modeling_flash_attention_utils, "lazy_import_flash_attention", fetched)
    monkeypatch.setattr(transformers.modeling_utils, "lazy_import_flash_attention", fetched)
    for module in ("auto_factory", "configuration_auto", "tokenization_auto"):
        place = getattr(transformers.models.auto, module)
        monkeypatch.setattr(place, "get_class_from_dynamic_module", fetched)
    monkeypatch.setattr("builtins.input", fetched)


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "hostile" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(HOSTILE))
    return str(file)


def asks(value) -> list:
    """The keys, at any level, by which a config asks for code."""
    if isinstance(value, dict):
        own = [key for key in map(str, value) if "auto_map" in key or "_implementation" in key]
        return own + [key for each in value.values() for key in asks(each)]
    return [key for each in value for key in asks(each)] if isinstance(value, list | tuple) else []


def test_the_fixture_notices(path):
    """Without the cleaning these configs do ask."""
    assert asks(HOSTILE)
    settings = {name: value for name, value in HOSTILE.items() if name != "auto_map"}
    with pytest.raises(AssertionError, match="it asked for"), torch.device("meta"):
        transformers.AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))


def test_every_level_and_spelling_is_dropped():
    kept = without_code(HOSTILE)
    assert asks(kept) == []
    assert {name: kept[name] for name in SIZES} == SIZES
    assert kept["nested"] == [{}]
    deep: dict = {}
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(WorkbookError, match="nested too deeply"):
        model({**HOSTILE, "deep": deep})


@pytest.mark.parametrize("config", [HOSTILE, UNKNOWN], ids=["closed form", "counted"])
def test_a_shape(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    live = transformers.LlamaConfig(**SIZES)
    live.auto_map = ASKS["auto_map"]
    for spec in (config, tmp_path, live):
        assert asks(dict(model(spec).config)) == []
    assert model(tmp_path).parameters == model({**SIZES, "model_type": config["model_type"]}).parameters


def test_the_object_that_transformers_gets():
    made = transformers_config(HOSTILE)
    assert asks(made.to_dict()) == []
    assert made._attn_implementation is None


def test_a_trace_and_a_measured_step(path):
    setup = TrainSetup(path, micro_batch=1, sequence=8, precision="fp32", attention="eager")
    assert trace.train(setup, "a100-80gb").peak_allocated_bytes > 0
    assert steps.build_model(setup, "cpu").config._attn_implementation == "eager"
    assert trace.prefill(ServeSetup(path, users=1, context=8), "a100-80gb").peak_allocated_bytes > 0


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", "train", "--model", "PATH"],
        ["estimate", "serve", "--model", "PATH"],
        ["trace", "train", "--model", "PATH", "--sequence", "8"],
    ],
    ids=" ".join,
)
def test_the_command_line(words, path, capsys):
    assert main([path if word == "PATH" else word for word in words]) == 0, capsys.readouterr().err


def test_the_calculators(path):
    assert training_answer(TrainSetup(path, sequence=8)).parts
    assert kv_cache_answer(ServeSetup(path, context=8)).parts


def test_a_step_that_somebody_measured():
    pytest.importorskip("peft")
    setup = {"model": HOSTILE, "attention": "eager", "micro_batch": 1, "sequence": 8, "rank": 2, "targets": ["q_proj"]}
    case = Case("mine", "lora", "l4-24gb", setup, {"peak allocated": 1}, "MiB", "mine")
    assert lora.predict(case)["peak allocated"] > 0


def test_a_saved_model_whose_config_asks(tmp_path):
    shutil.copytree(CHECKPOINT, tmp_path / "m")
    for name in ("config.json", "tokenizer_config.json"):
        file = tmp_path / "m" / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **ASKS}))
    assert asks(saved_config(tmp_path / "m").to_dict()) == []
    loaded = small_lm.load(tmp_path / "m")
    assert loaded.model.config._attn_implementation == "sdpa"
    assert asks(loaded.model.config.to_dict()) == []
    assert engines.from_folder(tmp_path / "m", bits=4).config._attn_implementation == "sdpa"


def test_a_saved_model_that_is_its_own_code(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**HOSTILE, "model_type": "its-own"}))
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    for open_it in (small_lm.load, engines.from_folder):
        with pytest.raises(WorkbookError, match="code of its own"):
            open_it(tmp_path)
