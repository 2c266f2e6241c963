"""Quantized layers in a real model: what is shared, what is stored, what a state dict carries."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from helpers.catalog.errors import WorkbookError
from helpers.catalog.formats import number_format
from helpers.techniques.quantization.grids import Grid
from helpers.techniques.quantization.int8 import llm_int8, w8a8
from helpers.techniques.quantization.linears import (
    Int8Linear,
    NF4Linear,
    QuantizedLinear,
    dense_linears,
    model_bytes,
    replace_linears,
    swapped,
)

MAKERS = {
    "8 bits per row": partial(QuantizedLinear.of, grid=Grid(8, "row")),
    "4 bits": partial(QuantizedLinear.of, grid=Grid(4)),
    "3 bits symmetric": partial(QuantizedLinear.of, grid=Grid(3, symmetric=True)),
    "nf4": partial(NF4Linear.of, double_quant=False),
    "nf4-dq": NF4Linear.of,
    "w8a8": Int8Linear.of,
    "llm.int8": partial(Int8Linear.of, mode="llm.int8"),
}
EACH = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def llama(**changed):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    }
    return LlamaForCausalLM(LlamaConfig(**(sizes | changed))).eval()


@pytest.fixture(scope="module")
def model():
    return llama()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(60).reshape(2, 30)).logits


@EACH
def test_a_layer_computes_with_its_stored_weight(make):
    linear = nn.Linear(64, 24)
    layer, x = make(linear), torch.randn(2, 5, 64)
    expected = x @ layer.stored.dequantize().t() + linear.bias
    tolerance = 0.05 if isinstance(layer, Int8Linear) else 1e-5  # its activations are rounded too
    assert torch.allclose(layer(x), expected, atol=tolerance)
    assert torch.allclose(layer(x), linear(x), atol=0.6)
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert (layer.in_features, layer.out_features) == (64, 24)
    assert f"{layer.stored.nbytes:,} bytes" in repr(layer)


@EACH
def test_nothing_to_train_and_nothing_dense_inside(make):
    linear = nn.Linear(256, 128)
    layer = make(linear)
    assert not list(layer.parameters())
    assert model_bytes(layer) == layer.stored.nbytes + 128 * 4  # the bias
    assert model_bytes(layer) < 0.3 * model_bytes(linear)


@EACH
def test_a_state_dict_carries_the_weight(make):
    torch.manual_seed(1)
    layer, other = make(nn.Linear(64, 24)), make(nn.Linear(64, 24))
    x = torch.randn(3, 64)
    assert not torch.equal(layer(x), other(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_the_mode_and_the_threshold_are_heeded():
    linear, x = nn.Linear(64, 24), torch.randn(5, 64)
    x[:, 3] = 8.0
    stored = Int8Linear.of(linear).stored
    assert torch.equal(Int8Linear.of(linear)(x), w8a8(x, stored, linear.bias))
    for threshold in (6.0, 9.0):
        layer = Int8Linear.of(linear, "llm.int8", threshold)
        assert torch.equal(layer(x), llm_int8(x, stored, linear.bias, threshold))
    assert not torch.equal(layer(x), Int8Linear.of(linear, "llm.int8")(x))


def test_gradients_pass_through_to_the_input():
    x = torch.randn(3, 64, requires_grad=True)
    layer = NF4Linear.of(nn.Linear(64, 24))
    layer(x).sum().backward()
    assert torch.allclose(x.grad, layer.stored.dequantize().sum(0).expand(3, 64), atol=1e-5)


def test_scales_cast_with_the_model_are_refused():
    layer = QuantizedLinear.of(nn.Linear(64, 24), Grid()).to(torch.bfloat16)
    with pytest.raises(WorkbookError, match="before quantizing, not after"):
        layer(torch.randn(1, 64, dtype=torch.bfloat16))


@EACH
def test_a_model_is_replaced_in_a_copy_that_shares_the_rest(model, make):
    before = logits(model)
    small = replace_linears(model, make)
    assert torch.equal(logits(model), before)
    assert type(model.model.layers[1].mlp.up_proj) is nn.Linear
    assert type(small.model.layers[1].mlp.up_proj) is not nn.Linear
    assert not small.model.layers[0].self_attn.q_proj.training
    assert small.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert small.lm_head.weight is small.model.embed_tokens.weight
    assert (logits(small) - before).abs().max() < 0.2
    assert not torch.equal(logits(small), before)


@pytest.mark.parametrize(("name", "make"), [("nf4", MAKERS["nf4"]), ("int8", Int8Linear.of), ("nf4-dq", NF4Linear.of)])
@pytest.mark.parametrize("tied", [True, False])
def test_bytes_of_a_model(name, make, tied):
    model = llama(tie_word_embeddings=tied)
    inside = [linear.weight for linear in dense_linears(model).values()]
    offsets = 4 * len(inside) if name == "nf4-dq" else 0
    expected = sum(number_format(name).storage_bytes(w.numel(), rows=w.shape[0]) for w in inside) + offsets
    kept = 4 * 64 * (96 * (1 if tied else 2) + 5)  # embeddings, the head where it is not the same, five norms
    assert model_bytes(replace_linears(model, make)) == expected + kept
    assert model_bytes(model) == kept + sum(4 * w.numel() for w in inside)


def test_constants_are_no_weights():
    module = nn.Linear(4, 2, bias=False)
    module.register_buffer("table", torch.zeros(100), persistent=False)
    assert model_bytes(module) == 32
    module.register_buffer("mean", torch.zeros(3))
    assert model_bytes(module) == 32 + 12


def test_wrapped_tensors_are_counted_inside():
    """As torchao's weights are: a wrapper that shows a dense shape, and holds the real tensors."""
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    module = nn.Linear(8, 8, bias=False)
    module.weight = nn.Parameter(two_tensor(torch.randn(8, 8), torch.randn(8, 8)), requires_grad=False)
    assert model_bytes(module) == 2 * 8 * 8 * 4


def test_which_layers(model):
    everywhere = dense_linears(model)
    assert len(everywhere) == 2 * 7
    assert "lm_head" not in everywhere
    assert "lm_head" in dense_linears(model, skip=())
    assert len(dense_linears(model, skip=("lm_head", "o_proj"))) == 2 * 6
    assert len(dense_linears(model, skip=("0",))) == 7 + 1  # without the first decoder layer, with the head


def test_some_modules_by_name(model):
    name = "model.layers.1.mlp.down_proj"
    made = NF4Linear.of(model.get_submodule(name))
    small = swapped(model, {name: made})
    assert small.get_submodule(name) is made
    assert small.model.layers[0].mlp.down_proj.weight is model.model.layers[0].mlp.down_proj.weight


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda m: replace_linears(m, NF4Linear.of, skip=("o_prj",)), "unknown module to skip 'o_prj'"),
        (lambda m: swapped(m, {"model.layers.9": nn.Identity()}), "unknown module 'model.layers.9'"),
        (lambda m: replace_linears(m.model.norm, NF4Linear.of), "LlamaRMSNorm has no linear layer to replace"),
        (lambda m: Int8Linear.of(nn.Linear(4, 4), mode="int4"), "unknown mode 'int4'"),
        (lambda m: Int8Linear.of(nn.Linear(4, 4), mode="llm.int8", threshold=0), "threshold is 0"),
        (lambda m: Int8Linear.of(nn.Linear(4, 4), threshold=float("nan")), "threshold is nan"),
        (lambda m: QuantizedLinear.of(nn.Linear(100, 4), Grid()), "groups of 64 in rows of 100 values"),
    ],
)
def test_bad_input(model, call, what):
    with pytest.raises(WorkbookError) as error:
        call(model)
    assert error.value.what == what


def test_a_skip_that_matches_nothing_gets_the_nearest_name(model):
    with pytest.raises(WorkbookError, match="did you mean 'o_proj'"):
        dense_linears(model, skip=("o_prj",))
