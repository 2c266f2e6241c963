"""What a forward pass saves: the closed form against PyTorch's own saved tensors, counted once per storage."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from helpers.catalog import TrainSetup, model
from helpers.catalog.hardware import cuda_of
from helpers.memory import rounded
from helpers.memory.measure import steps
from helpers.memory.step import activations
from helpers.memory.step.activations import WEIGHTS
from helpers.memory.step.layer_run import layer_run
from tests.memory.configs import SMALL, llama_7b
from tests.memory.step.agreement import refused

CASES = [one for one in product(SMALL, ("fp32", "bf16"), ("sdpa", "eager")) if one[::2] != ("gemma2", "sdpa")]


def saved_storages(model, ids):
    """Rounded bytes of every storage that autograd saves in one forward; parameters and buffers left out."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (rounded(storage.nbytes()), storage)  # held, so that no address is reused
        # nothing is unpacked here, and an operator that got its own output back would keep itself alive

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda nothing: nothing):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    assert loss.requires_grad
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize(("name", "precision", "attention"), CASES)
def test_saved_bytes_equal_what_autograd_saved(name, precision, attention):
    setup = TrainSetup(SMALL[name], precision, micro_batch=2, sequence=96, attention=attention)
    run = steps.training_run(setup, "cpu")
    ids = torch.randint(0, setup.model.vocab, (2, 96))
    layers = sum(activations.saved_by_layer(setup, layer).total for layer in setup.model.layers)
    capped = name == "gemma2"  # the tanh of the logits
    logits = ids.numel() * setup.model.vocab * (4 + setup.precision_recipe.weight_bytes * capped)
    expected = layers + activations.saved_outside_layers(setup).total + logits
    assert expected == pytest.approx(saved_storages(run.model, ids), rel=0.003)


def bytes_of(setup, *operators):
    return sum(one.total for one in activations.layer_operators(setup, setup.model.layers[0]) if one.name in operators)


def test_one_layer_of_llama_2_7b_by_hand():
    setup = llama_7b()
    rows = activations.saved_by_layer(setup, setup.model.layers[0])
    tokens, h, f = 2048, 4096, 11_008
    norm = tokens * (4 * h + 4 + 2 * h + 2 * h)  # FP32 copy, rstd, normalised, output
    assert bytes_of(setup, "activation", "gate × up", "down projection") == 4 * 2 * tokens * f
    assert rows["gate × up: activated gate"] == rows["down projection: their product"] == 2 * tokens * f
    assert rows.total == 2 * norm + tokens * (3 + 1) * 2 * h + 4 * tokens * 32 + 4 * 2 * tokens * f
    assert round(rows.total / 2**20, 1) == 364.3


def test_eager_attention_saves_a_square_and_sdpa_a_line():
    def layer_bytes(attention, sequence):
        setup = llama_7b(attention=attention, sequence=sequence)
        return activations.saved_by_layer(setup, setup.model.layers[0]).total

    # what is left of doubling the tokens: nothing of a line, half of a square
    def bend(attention):
        return layer_bytes(attention, 4096) - 2 * layer_bytes(attention, 2048)

    assert bend("sdpa") == 0
    assert bend("eager") == 2 * 2048**2 * 32 * (4 + 2)  # probabilities in FP32 and their BF16 cast


def test_autocast_keeps_a_copy_of_every_weight_matrix():
    setup = llama_7b(precision="autocast-bf16")
    assert bytes_of(setup, WEIGHTS) == 2 * (4 * 4096**2 + 3 * 4096 * 11_008)
    outside = activations.saved_outside_layers(setup)
    assert outside[f"{WEIGHTS}: BF16 copies of the weights"] == 2 * 32_000 * 4096
    assert bytes_of(replace(setup, precision="fp32"), WEIGHTS) == 0


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b", "phi-4"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast-bf16"])
def test_every_operator_of_a_family_keeps_what_its_run_leaves(name, precision):
    setup = TrainSetup(name, precision, sequence=96, attention="eager" if name == "gpt-oss-20b" else "sdpa")
    for layer in set(setup.model.layers):
        run = layer_run(setup, layer, cuda=cuda_of("a100"))
        kept = run.saved.total + (run.input.total if run.keeps_input else 0)
        assert activations.saved_by_layer(setup, layer).total == kept


MAMBA = TrainSetup(replace(model("llama-3-8b"), family="mamba"))
test_a_model_of_no_known_family_is_refused = refused(
    (lambda: activations.saved_by_layer(MAMBA, MAMBA.model.layers[0]), "no closed form")
)
