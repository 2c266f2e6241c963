"""Bad input is a table: what is called, with what, and the words the reader must see. Never a traceback."""

import json
import logging
import sys
from types import SimpleNamespace

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError, device, model, number_format
from helpers.catalog.errors import require_name, require_package
from helpers.catalog.logs import hold_back_torchao
from helpers.catalog.split import Split

LLAMA = dict(model("llama-2-7b").config)
TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def llama(**changes):
    return {**LLAMA, **changes}


def without(key):
    return {k: v for k, v in LLAMA.items() if k != key}


def of(name, **changes):
    return {**model(name).config, **changes}


NAMES = [
    (model, "llama", "unknown model 'llama'"),  # a part of a name is not a name
    (model, "llama-2-7", "did you mean 'llama-2-7b'?"),
    (model, "", "unknown model ''"),
    (model, "x" * 5000, "unknown model"),
    (model, "gpt2\0", "unknown model"),
    (model, "meta-llama/Llama-9-7b-hf", "hf download meta-llama/Llama-9-7b-hf config.json"),
    (model, None, "NoneType"),
    (model, 7, "int 7"),
    (model, [], "list"),
    (device, "h10", "did you mean 'h100'?"),
    (device, "A100-80", "did you mean 'a100-80gb'?"),
    (device, "", "unknown device"),
    (device, None, "unknown device None"),
    (number_format, "fp4", "unknown number format 'fp4'"),
    (number_format, "nf4dq", "did you mean 'nf4-dq'?"),
    (number_format, None, "unknown number format None"),
    (number_format("nf4").storage_bytes, -1, "values is -1"),
    (number_format("nf4").storage_bytes, 1.5, "values is 1.5"),
    (number_format("nf4").storage_bytes, True, "values is True"),
    (number_format("int8").storage_bytes, 8, "one scale per output row"),
]
CONFIGS = [
    ({}, "model_type is None"),
    ({"model_type": 3}, "model_type is 3"),
    ({"hidden_size": 64}, "model_type is None"),
    ({"model_type": "lama"}, "'lama'"),
    ({"model_type": "t5"}, "no causal language model"),
    ({"model_type": "gemma3", "text_config": [LLAMA]}, "text_config is [{"),
    ({"model_type": "gemma3", "text_config": {**LLAMA, "hidden_size": 0}}, "hidden_size is 0"),
    ({"model_type": "gemma3", "text_config": LLAMA, "vision_config": {"patch_size": 0}}, "patch_size is 0"),
    (without("hidden_size"), "hidden_size is missing"),
    (without("num_hidden_layers"), "num_hidden_layers is missing"),
    (without("num_attention_heads"), "num_attention_heads is missing"),
    (llama(num_hidden_layers=0), "num_hidden_layers is 0"),
    (llama(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    (llama(hidden_size=-4096), "hidden_size is -4096"),
    (llama(hidden_size="4096"), "hidden_size is '4096'"),
    (llama(hidden_size=4096.0), "hidden_size is 4096.0"),
    (llama(vocab_size=True), "vocab_size is True"),
    (llama(hidden_size=10**12), "hidden_size is 1000000000000"),
    (llama(hidden_size=4097), "not a multiple of 32 heads"),
    (llama(num_attention_heads=0), "num_attention_heads is 0"),
    (llama(num_key_value_heads=5), "num_key_value_heads is 5"),
    (llama(vocab_size=[1]), "vocab_size is [1]"),
    (llama(intermediate_size=None, vocab_size=0), "vocab_size is 0"),
    (llama(tie_word_embeddings="no"), "tie_word_embeddings is 'no'"),
    (llama(hidden_act=3), "hidden_act is 3"),
    (of("gpt2", n_embd=770), "n_embd is 770"),
    (of("gpt2", add_cross_attention=True), "add_cross_attention is true"),
    (of("mistral-7b", sliding_window=0), "sliding_window is 0"),
    (of("mistral-7b", hidden_size=4100), "hidden_size is 4100"),
    (of("mixtral-8x7b", num_experts_per_tok=9), "num_experts_per_tok is 9"),
    (of("gemma-2-9b", layer_types=["full_attention"]), "layer_types has 1 entries"),
    (of("gemma-2-9b", layer_types=["magic"] * 42), "layer_types holds 'magic'"),
    (of("gemma-2-9b", layer_types="full"), "layer_types is 'full'"),
    (of("qwen3-30b-a3b", mlp_only_layers=["1"]), "mlp_only_layers is ['1']"),
    (of("deepseek-v3", kv_lora_rank=0), "kv_lora_rank is 0"),
]
TRAIN = [
    ({"precision": "bf-16"}, "did you mean 'bf16'?"),
    ({"precision": None}, "unknown precision None"),
    ({"optimizer": "adam"}, "did you mean 'adamw'?"),
    ({"attention": "flash"}, "unknown attention 'flash'"),
    ({"checkpointing": "selektive"}, "did you mean 'selective'"),
    ({"checkpointing": "sqrt"}, "did you mean 'sqrt-n'"),
    ({"checkpointing": "first:33"}, "first:K with K from 1 to 32"),
    ({"checkpointing": "every"}, "every:K with K from 1 to 32"),
    ({"checkpointing": "every:0"}, "every:0"),
    ({"checkpointing": "every:33"}, "from 1 to 32"),
    ({"checkpointing": "every:-1"}, "every:-1"),
    ({"checkpointing": "every:²"}, "every:²"),
    ({"checkpointing": "every:" + "9" * 5000}, "from 1 to 32"),
    ({"checkpointing": True}, "unknown checkpointing policy 'true'"),
    ({"micro_batch": 0}, "micro_batch is 0"),
    ({"micro_batch": -1}, "micro_batch is -1"),
    ({"micro_batch": 1.0}, "micro_batch is 1.0"),
    ({"micro_batch": True}, "micro_batch is True"),
    ({"micro_batch": 2**20 + 1}, "from 1 to 1,048,576"),
    ({"sequence": 0}, "sequence is 0"),
    ({"sequence": 2**24 + 1}, "from 1 to 16,777,216"),
    ({"sequence": "2048"}, "sequence is '2048'"),
    ({"split": 8}, "split is 8"),
    ({"model": "gpt2", "sequence": 1025}, "position for 1,024 tokens"),
    ({"model": "opt-13b", "sequence": 2049}, "position for 2,048 tokens"),
    ({"model": "gtp2"}, "did you mean 'gpt2'?"),
]
SERVE = [
    ({"weights": "int4"}, "unknown weight format 'int4'"),
    ({"weights": "fp7"}, "unknown weight format 'fp7'"),
    ({"kv": "nf4"}, "unknown KV cache format 'nf4'"),
    ({"users": 0}, "users is 0"),
    ({"users": 1.5}, "users is 1.5"),
    ({"context": -1}, "context is -1"),
    ({"context": 2**24 + 1}, "from 1 to 16,777,216"),
    ({"model": "gpt2", "context": 1025}, "pass context=1024"),
]
FILES = [
    ("{", "cannot be read as JSON"),
    ("", "cannot be read as JSON"),
    ("\x00\x01", "cannot be read as JSON"),
    ("[1, 2]", "holds a JSON list"),
    ("3", "holds a JSON int"),
    ("null", "holds a JSON NoneType"),
    ("[" * 100_000, "cannot be read as JSON"),
    (json.dumps(without("hidden_size")), "hidden_size is missing"),
]


def shown(call, *args, **kwargs):
    """The message of the WorkbookError that `call` raises."""
    with pytest.raises(WorkbookError) as raised:
        call(*args, **kwargs)
    assert all((raised.value.what, raised.value.expected, raised.value.do))
    return str(raised.value)


@pytest.mark.parametrize(("call", "argument", "phrase"), NAMES)
def test_names_and_values(call, argument, phrase):
    assert phrase in shown(call, argument)


@pytest.mark.parametrize(("config", "phrase"), CONFIGS, ids=[phrase for _, phrase in CONFIGS])
def test_configs(config, phrase):
    assert phrase in shown(model, config)


SPLITS = [
    ({"zero": 4}, "zero is 4"),
    ({"zero": -1}, "zero is -1"),
    ({"zero": "3"}, "zero is '3'"),
    ({"zero": True}, "zero is True"),
    ({"data": 0}, "data is 0"),
    ({"fsdp": 2**20 + 1}, "from 1 to 1,048,576"),
    ({"schedule": "2F2B"}, "1F1B"),
    ({"fsdp": 8, "zero": 3}, "one of them"),
]


@pytest.mark.parametrize(("change", "phrase"), SPLITS, ids=[phrase for _, phrase in SPLITS])
def test_splits(change, phrase):
    assert phrase in shown(Split, **change)


@pytest.mark.parametrize(("change", "phrase"), TRAIN, ids=[phrase for _, phrase in TRAIN])
def test_train_setups(change, phrase):
    assert phrase in shown(TrainSetup, **{"model": "llama-2-7b", **change})


@pytest.mark.parametrize(("change", "phrase"), SERVE, ids=[phrase for _, phrase in SERVE])
def test_serve_setups(change, phrase):
    assert phrase in shown(ServeSetup, **{"model": "llama-2-7b", **change})


@pytest.mark.parametrize(("content", "phrase"), FILES, ids=[phrase for _, phrase in FILES])
def test_files(tmp_path, content, phrase):
    path = tmp_path / "config.json"
    path.write_text(content)
    assert phrase in shown(model, str(path))


def test_paths_that_lead_nowhere(tmp_path):
    assert "there is no file" in shown(model, "./nowhere/config.json")
    assert "there is no file" in shown(model, tmp_path)  # a folder without a config.json
    assert "cannot be read as JSON" in shown(model, write_bytes(tmp_path / "latin.json", b'{"a": "\xe9"}'))


def write_bytes(path, content):
    path.write_bytes(content)
    return path


def test_rates_that_a_gpu_does_not_have():
    assert "t4-16gb" in shown(device("t4").flops_per_s, "bf16")
    assert "pcie" in shown(device("l40s").link_bytes_per_s, "nvlink")


def test_a_family_whose_cache_is_not_known_refuses_to_guess():
    tiny = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    shape = model(tiny)
    assert "'mamba' is not known" in shown(shape.kv_values, 10)
    assert "not known for the family" in shown(lambda: shape.active_parameters)


@pytest.mark.parametrize("name", ["chatt", None, 3, [], {"chat": 1}])
def test_what_is_no_name_of_the_list_is_told_in_the_same_words(name):
    assert "unknown trace" in shown(require_name, "trace", name, ("chat", "code"))


def test_a_package_that_cannot_be_imported_is_named_with_who_needs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)  # what makes an import fail
    before = logging.root.manager.disable
    told = shown(require_package, "peft.nothing", "a LoRA step")
    assert "peft cannot be imported" in told
    assert "the package peft, which a LoRA step needs" in told
    assert "pip install --no-deps peft" in told
    assert "leave it out" in shown(require_package, "peft", "a LoRA step", "leave it out")
    assert logging.root.manager.disable == before


def test_of_what_torchao_logs_only_its_own_import_is_kept_back(caplog):
    hold_back_torchao()
    hold_back_torchao()
    for name in ("torchao", "torch.utils._pytree"):
        logger = logging.getLogger(name)
        for words in ("Failed to load %s", "%s is an Enum subclass and is now", "%s is deprecated"):
            logger.warning(words, "x.so")
    assert [record.getMessage() for record in caplog.records] == ["x.so is deprecated"] * 2


def test_the_good_ones_beside():
    assert require_name("trace", "code", ("chat", "code")) == "code"
    assert require_package("json", "this test") is json
    assert model(TINY).parameters > 0
    assert model(SimpleNamespace(to_dict=lambda: TINY)).heads == 4
    assert model(llama(num_key_value_heads=None)).kv_heads == 32
