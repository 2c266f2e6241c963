"""A 4-bit base on its way to a GPU: one block for all of it, then each weight whole before it is quantized."""

import pytest
import torch
from torch import nn

from helpers.catalog import TrainSetup
from helpers.memory import rounded, trace
from helpers.memory.allocator import MIB
from helpers.memory.trace import QuantizedBase
from helpers.memory.trace.loading import _natural, linears_made_on_host, load
from helpers.memory.trace.quantized import base_on_meta

pytest.importorskip("bitsandbytes")
pytest.importorskip("peft")

HIDDEN, VOCAB = 2048, 4096
LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 4096,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": VOCAB,
}
LINEAR = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * 4096
REST = 2 * VOCAB * HIDDEN + 3 * HIDDEN  # embedding, head, norms


def loaded(base, device="cuda"):
    """The events of loading a small Llama, each as (sign, bytes)."""
    model = base_on_meta(TrainSetup(LLAMA, "bf16"), base)
    with trace.fake(device, "t4") as session:
        model = load(model, base, session)
        return [(event.sign, event.block.size_bytes) for event in session.meter.events], session.meter.live_bytes


@pytest.fixture(scope="module")
def plain():
    return loaded(QuantizedBase("nf4", "fp16", prepared=False))


def test_first_comes_one_block_as_large_as_all_of_it(plain):
    events, _ = plain
    everything = LINEAR // 2 + 2 * REST
    assert events[:2] == [(1, everything), (-1, everything)]


def test_then_the_head_and_the_embedding_before_the_layers(plain):
    events, _ = plain
    assert events[2:4] == [(1, 2 * VOCAB * HIDDEN)] * 2


def test_a_weight_is_there_whole_while_it_is_quantized(plain):
    """down_proj is the first by name, after the norm of its layer: 2 bytes a value, scales, half a byte, and gone."""
    events, _ = plain
    values = HIDDEN * 4096
    norm, scales = rounded(2 * HIDDEN), 4 * values // 64
    assert events[4:9] == [(1, norm), (1, 2 * values), (1, scales), (1, values // 2), (1, 512)]
    assert events[9] == (-1, 2 * values)


def test_with_scales_of_scales_the_first_ones_go(plain):
    events, _ = loaded(QuantizedBase("nf4-dq", "fp16", prepared=False))
    values = HIDDEN * 4096
    at = events.index((1, values // 2))
    scales = 4 * values // 64
    born = [size for sign, size in events[at + 1 : at + 8] if sign > 0]
    assert born == [512, 512, scales, rounded(4 * values // 64 // 256), 1024, scales // 4]
    gone = [size for sign, size in events[at:] if sign < 0][:3]
    assert sorted(gone) == [scales, scales, 2 * values]


@pytest.mark.parametrize("weights", ["nf4", "nf4-dq"])
def test_what_stays_is_what_bitsandbytes_keeps(weights):
    _, live = loaded(QuantizedBase(weights, "fp16", prepared=False))
    scales = 4 * LINEAR // 64 if weights == "nf4" else LINEAR // 64 + 4 * LINEAR // 64 // 256
    assert live == pytest.approx(LINEAR / 2 + scales + 2 * REST, abs=7 * 4 * 1024 + 4096)


def test_the_weights_lie_in_the_first_block():
    """More comes from the driver for what nobody reckoned with: the scales, and a weight that is there whole."""
    base = QuantizedBase("nf4", "fp16", prepared=False)
    model = base_on_meta(TrainSetup(LLAMA, "bf16"), base)
    with trace.fake(gpu="t4") as session:
        model = load(model, base, session)
        played = trace.record(lambda: torch.empty(1), model, warmup=0).on_gpu
    everything = LINEAR // 2 + 2 * REST
    assert played.reserved[0] == -(-everything // (2 * MIB)) * 2 * MIB
    assert played.reserved[-1] < 1.5 * played.reserved[0]


def test_on_a_cpu_nothing_is_warmed_up():
    events, _ = loaded(QuantizedBase("nf4", "fp16", prepared=False), "cpu")
    assert events[0] == (1, 2 * VOCAB * HIDDEN)


def test_layer_2_comes_before_layer_10():
    names = ["model.layers.10.a", "model.layers.2.b", "lm_head.weight", "model.layers.2.a"]
    assert sorted(names, key=_natural) == [
        "lm_head.weight",
        "model.layers.2.a",
        "model.layers.2.b",
        "model.layers.10.a",
    ]


def test_tied_weights_are_loaded_once():
    model = base_on_meta(TrainSetup({**LLAMA, "tie_word_embeddings": True}, "bf16"), QuantizedBase("nf4", "fp16"))
    with trace.fake(gpu="t4") as session:
        model = load(model, QuantizedBase("nf4", "fp16", prepared=False), session)
        assert session.meter.events[0].block.size_bytes == LINEAR // 2 + 2 * (REST - VOCAB * HIDDEN)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert isinstance(model.lm_head.weight, torch.Tensor)


def sizes(cast):
    """Sizes of the parameter's blocks in the order of their making, for a layer of 256 x 256 in FP32."""
    with trace.fake("cuda") as session:
        with linears_made_on_host(session.meter):
            layer = nn.Linear(256, 256, bias=False)
            if cast:
                layer.weight = nn.Parameter(layer.weight.data.to(torch.float16))
        return [event.block.size_bytes for event in session.meter.events if event.sign > 0]


def test_a_layer_that_is_cast_never_was_on_the_device_in_its_first_type():
    assert sizes(cast=True) == [0, 2 * 256 * 256]


def test_a_layer_that_keeps_its_type_counts_where_it_was_built():
    assert sizes(cast=False) == [4 * 256 * 256]
