"""bitsandbytes and Transformers beside ours, on the same weights."""

import sys
import types

import pytest
import torch
from torch import nn

from helpers.catalog.errors import WorkbookError
from helpers.techniques.quantization import engines
from helpers.techniques.quantization.linears import Int8Linear, NF4Linear, model_bytes, replace_linears
from tests.techniques.quantization.overflow import exact_integers
from tests.techniques.quantization.test_linears import llama, logits

LAYERS = 14
ON_CPU = " in bitsandbytes' 4 bits on CPU"
TABLES = {False: 16 * 4, True: (16 + 256) * 4}  # per layer: the NF4 levels, and the 8-bit ones of double quantization


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("bitsandbytes")
    return llama(intermediate_size=128)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    where = tmp_path_factory.mktemp("saved")
    model.save_pretrained(where)
    return where


@pytest.mark.parametrize("double_quant", [False, True])
def test_four_bits(model, double_quant):
    theirs = engines.bitsandbytes_4bit(model, double_quant=double_quant)
    ours = replace_linears(model, lambda linear: NF4Linear.of(linear, double_quant))
    assert type(theirs.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    assert model_bytes(theirs) == model_bytes(ours) + LAYERS * TABLES[double_quant]
    assert torch.allclose(logits(theirs.train()), logits(ours), atol=1e-3)
    assert torch.allclose(logits(theirs.eval()), logits(ours), atol=0.02)  # BF16 inside on some CPUs
    assert type(model.model.layers[0].mlp.up_proj) is nn.Linear


@exact_integers
def test_eight_bits(model):
    theirs = engines.bitsandbytes_8bit(model)
    ours = replace_linears(model, lambda linear: Int8Linear.of(linear, mode="llm.int8"))
    assert type(theirs.model.layers[0].mlp.up_proj).__name__ == "Linear8bitLt"
    assert not theirs.training
    assert model_bytes(theirs) == model_bytes(ours)
    assert torch.allclose(logits(theirs), logits(ours), atol=5e-3)
    assert model_bytes(theirs) == model_bytes(ours)  # also when the scales have moved from the weight to its state


@pytest.mark.parametrize("double_quant", [False, True])
def test_from_a_folder_in_four_bits(model, folder, double_quant):
    loaded = engines.from_folder(folder, double_quant=double_quant)
    assert type(loaded.lm_head) is nn.Linear
    beside = engines.bitsandbytes_4bit(model, double_quant=double_quant)
    assert model_bytes(loaded) == model_bytes(beside)
    assert torch.allclose(logits(loaded), logits(beside), atol=1e-6)


def test_from_a_folder_in_eight_bits(model, folder):
    loaded = engines.from_folder(folder, bits=8, llm_int8_skip_modules=["lm_head", "o_proj"])
    assert type(loaded.model.layers[0].self_attn.o_proj) is nn.Linear
    beside = engines.bitsandbytes_8bit(model, skip=("lm_head", "o_proj"))
    assert model_bytes(loaded) == model_bytes(beside)
    assert torch.allclose(logits(loaded), logits(beside), atol=1e-4)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda f: engines.from_folder(f, bits=3), "bits is 3"),
        (lambda f: engines.from_folder(f / "nothing"), None),
        (lambda f: engines.from_folder(f, bnb_4bit_cmpute_dtype="x"), "unknown setting 'bnb_4bit_cmpute_dtype'"),
        (lambda f: engines.bitsandbytes_4bit(nn.Linear(96, 32)), "a weight of shape [32, 96]" + ON_CPU),
        (lambda f: engines.bitsandbytes_4bit(nn.Linear(64, 48)), "a weight of shape [48, 64]" + ON_CPU),
    ],
)
def test_bad_input(folder, call, what):
    with pytest.raises(WorkbookError) as error:
        call(folder)
    assert error.value.what == (what or f"{folder / 'nothing'} holds no config.json")


def test_a_folder_whose_rows_are_no_whole_blocks(tmp_path):
    pytest.importorskip("bitsandbytes")
    llama(hidden_size=96).save_pretrained(tmp_path)
    with pytest.raises(WorkbookError) as error:
        engines.from_folder(tmp_path)
    assert error.value.what == "a weight of shape [96, 96]" + ON_CPU


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("bitsandbytes", engines.bitsandbytes_4bit),
        ("bitsandbytes", engines.bitsandbytes_8bit),
        ("bitsandbytes", engines.from_folder),
        ("torchao", engines.torchao_weights),
    ],
)
def test_an_engine_that_is_missing(monkeypatch, package, call):
    for name in [package, f"{package}.quantization"]:
        monkeypatch.setitem(sys.modules, name, None)  # what makes an import fail
    with pytest.raises(WorkbookError, match=f"{package} cannot be imported") as error:
        call(nn.Linear(64, 64))
    assert error.value.do.startswith(f"pip install --no-deps {package}")


def test_torchao_is_asked_for_the_layers_inside(monkeypatch):
    """torchao is not among what CI installs: a stand-in sees which layers it would be given."""
    found = []
    stand_in = types.SimpleNamespace(
        Int8WeightOnlyConfig=lambda: "int8",
        Int4WeightOnlyConfig=lambda group_size: f"int4 {group_size}",
        quantize_=lambda model, chosen, filter_fn: found.extend(
            (chosen, name) for name, module in model.named_modules() if filter_fn(module, name)
        ),
    )
    monkeypatch.setattr(engines, "_package", lambda name: stand_in)
    model = llama()
    assert engines.torchao_weights(model, bits=4, group=64) is model
    assert {chosen for chosen, _ in found} == {"int4 64"}
    assert len(found) == LAYERS
    assert not any("lm_head" in name for _, name in found)
    with pytest.raises(WorkbookError, match="bits is 2"):
        engines.torchao_weights(model, bits=2)


def test_what_torchao_lacks_is_told(monkeypatch):
    def refuse(*_, **__):
        raise ImportError("Requires mslk >= 1.0.0")

    stand_in = types.SimpleNamespace(Int4WeightOnlyConfig=lambda group_size: None, quantize_=refuse)
    monkeypatch.setattr(engines, "_package", lambda name: stand_in)
    with pytest.raises(WorkbookError, match="mslk"):
        engines.torchao_weights(llama(), bits=4)
