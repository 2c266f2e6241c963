"""What a forward pass saves: the closed form against PyTorch's own saved tensors, counted once per storage."""

from dataclasses import replace

import pytest
import torch

from helpers.catalog import TrainSetup, WorkbookError
from helpers.catalog.hardware import cuda_of
from helpers.memory import rounded
from helpers.memory.measure import steps
from helpers.memory.step import activations
from helpers.memory.step.activations import Owner, Role
from helpers.memory.step.layer_run import layer_run
from tests.memory.configs import SMALL, llama_7b

CASES = [
    (name, precision, attention)
    for name in SMALL
    for precision in ("fp32", "bf16")
    for attention in ("sdpa", "eager")
    if (name, attention) != ("gemma2", "sdpa")
]


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
    log_softmax = 4 * ids.numel() * setup.model.vocab
    logits = log_softmax + activations.capped_logits_bytes(setup)
    expected = layers + activations.saved_outside_layers(setup).total + logits
    assert expected == pytest.approx(saved_storages(run.model, ids), rel=0.003)


def bytes_of(setup, role):
    tensors = activations.layer_tensors(setup, setup.model.layers[0])
    return activations.total_bytes(saved for saved in tensors if saved.role is role)


def test_one_layer_of_llama_2_7b_by_hand():
    setup = llama_7b()
    rows = activations.saved_by_layer(setup, setup.model.layers[0])
    tokens, h, f = 2048, 4096, 11_008
    norm = tokens * (4 * h + 4 + 2 * h + 2 * h)  # FP32 copy, rstd, normalised, output
    assert bytes_of(setup, Role.SWIGLU) == rows["gate, its activation, up, their product"] == 4 * 2 * tokens * f
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
    assert bytes_of(setup, Role.WEIGHT_COPIES) == 2 * (4 * 4096**2 + 3 * 4096 * 11_008)
    (head,) = (saved for saved in activations.outside_tensors(setup) if saved.owner is Owner.LM_HEAD)
    assert head.size_bytes == 2 * 32_000 * 4096
    assert bytes_of(replace(setup, precision="fp32"), Role.WEIGHT_COPIES) == 0


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3"])
def test_what_was_never_held_against_a_meter_is_refused(name):
    setup = TrainSetup(name)
    with pytest.raises(WorkbookError, match="no closed form"):
        activations.saved_by_layer(setup, setup.model.layers[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast-bf16"])
@pytest.mark.parametrize(("name", "attention"), sorted({(name, attention) for name, _, attention in CASES}))
def test_rows_add_up_to_what_the_tape_keeps(name, precision, attention):
    """On CUDA, whose autocast runs gelu_new's pow in FP32. Gemma-2's rows leave a statistic out."""
    setup = TrainSetup(SMALL[name], precision, micro_batch=2, sequence=96, attention=attention)
    layer = setup.model.layers[-1]
    run = layer_run(setup, layer, cuda=cuda_of("a100"))
    kept = run.saved.total + (run.input.total if run.keeps_input else 0)
    assert abs(activations.saved_by_layer(setup, layer).total - kept) <= (2048 if name == "gemma2" else 0)
