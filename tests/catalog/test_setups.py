"""Setups: what they resolve, what they normalise, and what a recipe keeps for each parameter."""

from dataclasses import FrozenInstanceError, replace

import pytest

from helpers.catalog import OPTIMIZERS, PRECISIONS, ServeSetup, TrainSetup, WorkbookError, model, optimizer
from helpers.catalog.optimizers import EMBEDDING, HEAD
from helpers.catalog.split import Split
from helpers.memory import budget

ADAM_BYTES = {
    "fp32": 16,
    "bf16": 8,
    "autocast-bf16": 16,
    "autocast-bf16-on-bf16": 8,
    "megatron-bf16": 18,
    "torchao-fp8": 8,
}


@pytest.mark.parametrize("name", sorted(PRECISIONS))
def test_bytes_per_parameter_with_adam(name):
    recipe = PRECISIONS[name]
    weights = recipe.weight_bytes + recipe.grad_bytes + recipe.master_bytes
    assert weights + OPTIMIZERS["adamw"].state_bytes((1,), recipe.optimized_bytes) == ADAM_BYTES[name]


@pytest.mark.parametrize(
    ("name", "shape", "width", "expected"),
    [
        ("sgd", (64, 64), 4, 0),
        ("sgd-momentum", (64, 64), 2, 2 * 4096),
        ("adamw-fused", (64, 64), 2, 4 * 4096),  # states in the dtype of the weights
        ("adamw-8bit", (63, 65), 4, 8 * 4095),  # below 4096 values: FP32
        ("adamw-8bit", (64, 64), 4, 2 * (4096 + 16 * 4)),
        ("adamw-8bit", (4097,), 2, 2 * (4097 + 17 * 4)),  # a started block has a scale
        ("adafactor", (10, 20), 4, 4 * 30),
        ("adafactor", (3, 10, 20), 4, 4 * 3 * 30),  # each expert has its own factors
        ("adafactor", (50,), 4, 200),
        ("adafactor", (10, 20), 2, 2 * 30),
        ("adafactor-transformers", (10, 20), 2, 4 * 30),  # in FP32, whatever the weights are in
        ("lion", (64, 64), 2, 2 * 4096),
        ("lion-8bit", (64, 64), 2, 4096 + 16 * 4),
        ("muon", (64, 32), 4, 4 * 2048),
        ("muon", (64,), 4, 8 * 64),  # AdamW's
        ("muon", (2, 64, 32), 4, 8 * 4096),  # stacked experts are no matrix
        ("galore:16", (64, 32), 4, 4 * (2 * 16 * 64 + 16 * 32)),  # two moments, and the projector
        ("galore:16", (32, 64), 2, 2 * (2 * 16 * 64 + 16 * 32)),
        ("galore:16", (64, 8), 4, 4 * (2 * 8 * 64 + 8 * 8)),  # there are only 8 directions
        ("apollo:16", (64, 32), 4, 4 * (2 * 16 * 64 + 1)),  # drawn anew from a seed; the norm stays
        ("apollo-mini", (64, 32), 4, 4 * (2 * 64 + 1)),
    ],
)
def test_state_bytes_of_one_tensor(name, shape, width, expected):
    assert optimizer(name).state_bytes(shape, width) == expected


@pytest.mark.parametrize("role", [EMBEDDING, HEAD])
def test_the_ends_of_a_model_have_rules_of_their_own(role):
    for name in ("muon", "galore", "apollo"):
        assert optimizer(name).state_bytes((640, 64), 4, role) == 8 * 640 * 64
    trainer = optimizer("adamw-8bit-trainer").state_bytes((640, 64), 2, role)
    assert trainer == (8 * 640 * 64 if role == EMBEDDING else 2 * (640 * 64 + 160 * 4))


OURS = {"adamw_torch": "adamw-foreach", "adamw_torch_fused": "adamw-fused", "ADAMW_BNB_8BIT": "adamw-8bit-trainer"}
OURS |= {"paged_adamw_32bit": "adamw-32bit-paged", "paged_adamw_8bit": "adamw-8bit-paged-trainer"}


@pytest.mark.parametrize("trainer", OURS)
def test_trainer_s_own_names(trainer):
    assert TrainSetup("tiny-llama", optimizer=trainer).optimizer == OURS[trainer]


def test_trainer_s_paged_8_bits_keeps_embeddings_in_32_and_pages_both():
    rule = optimizer("paged_adamw_8bit")
    assert rule.paged_bytes((1000, 100)) == 2 * 100_000
    assert rule.paged_bytes((1000, 100), EMBEDDING) == 8 * 100_000


def test_a_model_names_its_ends():
    roles = {name: [role for _, role in model(name).trained() if role] for name in ("llama-2-7b", "gpt2", "tiny-qwen3")}
    assert roles == {"llama-2-7b": [EMBEDDING, HEAD], "gpt2": [EMBEDDING, EMBEDDING], "tiny-qwen3": [EMBEDDING]}
    assert next(reversed(list(model("llama-2-7b").trained())))[1] == HEAD  # as in model.parameters()


@pytest.mark.parametrize(
    ("name", "phrase"),
    [
        ("galore:", "rank of galore is ''"),
        ("galore:x", "rank of galore is 'x'"),
        ("galore:0", "rank of galore is 0"),
        ("adamw:8", "galore:R"),
        ("lion8", "did you mean 'lion'"),
        (None, "unknown optimizer None"),
    ],
)
def test_names_that_are_no_optimizer(name, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        TrainSetup("gpt2", optimizer=name, sequence=64)


@pytest.mark.parametrize("name", ["muon", "galore", "apollo:4"])
def test_what_updates_whole_matrices_is_not_sharded(name):
    assert TrainSetup("llama-2-7b", optimizer=name).optimizer_rule.whole_matrices
    with pytest.raises(WorkbookError, match="shard is none"):
        TrainSetup("llama-2-7b", optimizer=name, split=Split(2, zero=1))


TORCH = {
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
    "adamw-foreach": ("AdamW", {"foreach": True}),
    "adamw-fused": ("AdamW", {"fused": True}),
    "adafactor": ("Adafactor", {}),
}


@pytest.mark.parametrize("name", sorted(TORCH))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(70,), (6, 70), (2, 6, 70)])
def test_states_equal_those_of_the_real_optimizer(name, dtype, shape):
    import torch

    weight = torch.nn.Parameter(torch.ones(shape, dtype=getattr(torch, dtype)))
    kind, options = TORCH[name]
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    weight.sum().backward()
    optimizer.step()
    states = [v for k, v in optimizer.state[weight].items() if isinstance(v, torch.Tensor) and k != "step"]
    held = sum(state.numel() * state.element_size() for state in states)
    assert OPTIMIZERS[name].state_bytes(shape, weight.element_size()) == held


@pytest.mark.parametrize("shape", [(4095,), (4096,), (70, 70)])
def test_8bit_states_equal_those_of_bitsandbytes(shape):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    import torch

    weight = torch.nn.Parameter(torch.ones(shape))
    optimizer = bitsandbytes.optim.AdamW8bit([weight])
    weight.sum().backward()
    optimizer.step()
    held = sum(
        state.numel() * state.element_size()
        for key, state in optimizer.state[weight].items()
        if isinstance(state, torch.Tensor) and not key.startswith("qmap")  # one table, shared by all tensors
    )
    assert OPTIMIZERS["adamw-8bit"].state_bytes(shape, 4) == held


def test_adamw_means_foreach_and_holds_a_copy_at_its_peak():
    setup = TrainSetup("gpt2", optimizer="AdamW", sequence=1024)
    assert setup.optimizer == "adamw-foreach"
    assert (setup.optimizer_rule.copies, setup.optimizer_rule.foreach) == (1, True)
    assert OPTIMIZERS["adamw-fused"].temporaries((64, 64), 4) == ()


def test_a_setup_is_frozen_and_resolved():
    setup = TrainSetup("llama-2-7b")
    assert setup.model is model("llama-2-7b")
    assert replace(setup, precision="BF16").precision_recipe.weight_bytes == 2
    assert hash(setup) == hash(TrainSetup("LLAMA-2-7B"))
    with pytest.raises(FrozenInstanceError):
        setup.ranks = 2


@pytest.mark.parametrize(
    ("text", "every"),
    [
        ("none", 0),
        ("full", 1),
        ("every:1", 1),
        ("every:32", 32),
        ("FULL", 1),
        ("sqrt-n", 6),
        ("Selective", None),
        ("first:4", None),
        ("nested:4", None),
        ("module:mlp", None),
        ("offload", None),
    ],
)
def test_checkpointing_is_parsed(text, every):
    setup = TrainSetup("llama-2-7b", checkpointing=text)
    assert setup.checkpoint_every == every
    assert setup.segments[-1].stop == 32


def test_edges_that_are_allowed():
    TrainSetup("gpt2", sequence=1024)
    TrainSetup("llama-2-7b", sequence=2**20, split=Split(1, zero=3))  # rotary positions do not end
    ServeSetup("opt-13b", context=2048, weights="NF4", kv="fp8-e4m3")


@pytest.mark.parametrize("name", ["q4_k", "Q8_0", "q2_k"])
def test_no_model_is_in_a_block_of_gguf(name):
    with pytest.raises(WorkbookError, match=r"(?s)whose files mix several.*bits_per_value"):
        ServeSetup("llama-3-8b", weights=name)


def test_nvfp4_is_counted_to_the_byte():
    linears, layers = 6_979_321_856, 7 * 32
    kept = 2 * (8_030_261_248 - linears)
    expected = linears // 2 + linears // 16 + layers * 4 + kept
    assert budget.weight_bytes(ServeSetup("llama-3-8b", weights="nvfp4")) == expected
