"""`device_map="auto"` on invented machines: what it places where, the room that it leaves, and whose turn it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.catalog import WorkbookError
from helpers.techniques.parallel.device_map import device_map

LAYER, TABLE = 147_968, 25_600  # bytes of one layer, and of the embedding


def llama(layers: int = 4, tied: bool = False):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": layers, "vocab_size": 100}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=tied))


def of(found, device):
    return next(room for room in found.rooms if room.device == device)


def test_one_gpu_at_a_time_and_every_weight_in_one_turn():
    model = llama()
    found = device_map(model, {0: 500_000, 1: 500_000})
    assert [(turn.device, turn.computes) for turn in found.turns] == [(0, 0), (1, 1)]
    assert sum(turn.weight_bytes for turn in found.turns) == sum(p.nbytes for p in model.parameters())
    assert sum(found.busy.values()) == 1
    assert found.busy[0] == pytest.approx(0.5, abs=0.01)
    assert found.copied_bytes == 0


def test_rooms_add_up_to_what_was_given():
    found = device_map(llama(), {0: 500_000, 1: 500_000, "cpu": 10**6})
    assert all(
        room.held_bytes + room.room_bytes == (10**6 if room.device == "cpu" else 500_000) for room in found.rooms
    )


def test_auto_leaves_the_last_of_four_gpus_empty():
    """Each of the others is given a quarter of the model and a layer and a quarter more; four layers then fit three."""
    found = device_map(llama(), dict.fromkeys(range(4), 500_000))
    assert (of(found, 3).held_bytes, of(found, 3).modules) == (0, ())
    assert found.busy[3] == 0


def test_sequential_fills_each_before_the_next():
    sizes = dict.fromkeys(range(4), 500_000)
    held = {how: of(device_map(llama(), sizes, how), 0).held_bytes for how in ("auto", "sequential")}
    assert held["auto"] == TABLE + LAYER
    assert held["sequential"] == TABLE + 2 * LAYER


def test_the_first_gpu_keeps_room_for_a_layer_that_may_have_to_be_copied():
    """A second layer would have fitted, were it not for that room."""
    found = device_map(llama(), {0: 300_000, 1: 200_000, "cpu": 10**6})
    assert of(found, 0).modules == ("model.embed_tokens",)
    assert of(found, 0).room_bytes > LAYER
    assert found.copied_bytes == 3 * LAYER + TABLE + 256


def test_what_lies_on_the_host_is_computed_on_the_first_gpu():
    found = device_map(llama(), {0: 300_000, 1: 200_000, "cpu": 10**6})
    assert found.turns[-1].device == "cpu"
    assert found.turns[-1].computes == 0
    assert found.busy["cpu"] == 0
    assert device_map(llama(), {"cpu": 10**7}).turns[0].computes == "cpu"


def test_a_small_host_is_left_empty_for_the_disk():
    found = device_map(llama(), {0: 200_000, "cpu": 100_000})
    assert (of(found, "cpu").held_bytes, of(found, "disk").room_bytes) == (0, None)
    assert of(found, "disk").held_bytes > 4 * LAYER


def test_a_tied_head_lies_with_the_embedding_and_the_first_gpu_has_the_last_turn_too():
    found = device_map(llama(tied=True), {0: 500_000, 1: 500_000})
    assert [turn.device for turn in found.turns] == [0, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (({},), "max_memory is {}"),
        (({"gpu": 1},), "the device 'gpu'"),
        (({0: "24GB"},), "max_memory[0] is '24GB'"),
        (({0: -1},), "max_memory[0] is -1"),
        (({0: 1}, "balanced"), "unknown way 'balanced'"),
    ],
)
def test_nonsense_is_refused(arguments, told):
    with pytest.raises(WorkbookError) as error:
        device_map(llama(1), *arguments)
    assert told in error.value.what


def test_another_model_is_refused():
    with pytest.raises(WorkbookError, match="Linear is no PreTrainedModel"):
        device_map(nn.Linear(1, 1), {0: 1})
