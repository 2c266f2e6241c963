"""Ten live steps of the small model equal bitsandbytes', bit for bit; which tensors keep FP32; what is saved."""

import io
import logging
import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from helpers.techniques.optimizers import AdamW8bit, Lion8bit, engines, state_bytes
from tests.techniques.optimizers import small

OURS = {"adamw-8bit": AdamW8bit, "lion-8bit": Lion8bit}
EACH = pytest.mark.parametrize("name", OURS)
THEIR_NAMES = {
    "mean": "state1",
    "mean_absmax": "absmax1",
    "mean_map": "qmap1",
    "mean_square": "state2",
    "mean_square_absmax": "absmax2",
    "mean_square_map": "qmap2",
}


@pytest.fixture(autouse=True)
def _quiet_bitsandbytes():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    bitsandbytes = pytest.importorskip("bitsandbytes")
    yield
    # StableEmbedding leaves its wish in a global table, by position: the next optimizer's first tensor would get FP32
    bitsandbytes.optim.GlobalOptimManager.get_instance().initialize()


def assert_same_states(ours, theirs, pairs):
    for weight, other in pairs:
        state, reference = ours.state[weight], theirs.state[other]
        names = [name for name in state if name != "step"]
        assert {THEIR_NAMES[name] for name in names} == {name for name in reference if name != "step"}
        for name in names:
            assert torch.equal(state[name], reference[THEIR_NAMES[name]]), name


@small.ON_X86
@EACH
def test_ten_live_steps_equal_bitsandbytes(name):
    """Gradients come from each model's own weights: one bit of difference would spread to all of them."""
    mine, their = small.model(), small.model()
    ours = OURS[name](mine.parameters(), lr=1e-3, weight_decay=0.01, rounding="table")
    theirs = engines.bitsandbytes(their.parameters(), name, lr=1e-3, weight_decay=0.01)
    for seed in range(10):
        small.live_step(mine, ours, seed)
        small.live_step(their, theirs, seed)
    pairs = list(zip(mine.parameters(), their.parameters(), strict=True))
    assert all(torch.equal(weight, other) for weight, other in pairs)
    assert_same_states(ours, theirs, pairs)


@small.ON_X86
@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ten_steps_with_tails_and_small_tensors(name, dtype):
    shapes = ((64, 64), (100, 41), (4097,), (4095,), (17, 3))
    mine, their = (small.weights_of(*shapes, dtype=dtype) for _ in range(2))
    ours = OURS[name](mine, lr=1e-3, rounding="table")
    theirs = engines.bitsandbytes(their, name, lr=1e-3, weight_decay=ours.defaults["weight_decay"])
    for step in range(10):
        small.with_gradients(mine, step)
        small.with_gradients(their, step)
        ours.step()
        theirs.step()
    pairs = list(zip(mine, their, strict=True))
    assert all(torch.equal(weight, other) for weight, other in pairs)
    assert_same_states(ours, theirs, pairs)


@pytest.mark.parametrize(("name", "nbytes"), {"adamw-8bit": 3_535_232, "lion-8bit": 1_767_616}.items())
def test_bytes_of_the_small_model(name, nbytes):
    """2 x (1 + 4/256) bytes of 1,732,608 values, 8 of 1,728 in the norms, two tables of 1,024: 2.038 a parameter."""
    model = small.model()
    for optimizer in (OURS[name](model.parameters()), engines.bitsandbytes(model.parameters(), name)):
        small.with_gradients(model.parameters())
        optimizer.step()
        assert sum(state_bytes(optimizer).values()) == nbytes


def test_embeddings_keep_fp32_as_stable_embedding_asks():
    import bitsandbytes

    torch.manual_seed(0)
    stable = bitsandbytes.nn.StableEmbedding(100, 64)
    weight = torch.nn.Parameter(stable.weight.detach().clone())
    norm = [torch.nn.Parameter(parameter.detach().clone()) for parameter in stable.norm.parameters()]
    theirs = engines.bitsandbytes(stable.parameters())
    ours = AdamW8bit([{"params": norm}, {"params": [weight], "min_8bit_size": math.inf}], rounding="table")
    for step in range(3):
        small.with_gradients([stable.weight], step)
        small.with_gradients([weight], step)
        theirs.step()
        ours.step()
    assert ours.state[weight]["mean"].dtype == theirs.state[stable.weight]["state1"].dtype == torch.float32
    assert torch.equal(weight, stable.weight)


def test_paged_states_stay_where_they_are_on_a_cpu():
    """bitsandbytes says so, once, and keeps the very bytes of the optimizer that is not paged."""
    weights = small.weights_of((512, 512))
    small.with_gradients(weights)
    paged = engines.bitsandbytes(weights, "adamw-8bit-paged")
    with pytest.warns(UserWarning, match="not supported on CPU"):
        paged.step()
    assert sum(state_bytes(paged).values()) == 2 * (512 * 512 + 4 * 1024) + 2 * 1024


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_saved_goes_on_as_if_never_interrupted(name, dtype):
    """Through a file, and the tables are shared again afterwards."""
    shapes = ((64, 64), (80, 80), (192,))
    (weights, others), optimizer = (small.weights_of(*shapes, dtype=dtype) for _ in range(2)), None
    optimizer, resumed = OURS[name](weights), OURS[name](others)
    small.with_gradients(weights)
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file))
    with torch.no_grad():
        for weight, other in zip(weights, others, strict=True):
            other.copy_(weight)
    assert state_bytes(resumed) == state_bytes(optimizer)
    for step in range(2):
        small.with_gradients(weights, step)
        small.with_gradients(others, step)
        optimizer.step()
        resumed.step()
    assert all(torch.equal(weight, other) for weight, other in zip(weights, others, strict=True))


@EACH
def test_it_steps_under_fake_tensors(name):
    """So that a trace can have it: nothing in it asks for a value, where bitsandbytes' needs real memory."""
    with FakeTensorMode():
        weights = [torch.nn.Parameter(torch.randn(96, 64))]
        weights[0].grad, optimizer = torch.randn(96, 64), OURS[name](weights)
        optimizer.step()
        assert sum(state_bytes(optimizer).values()) == len(optimizer.signed) * (96 * 64 + 4 * 24 + 1024)


@EACH
@pytest.mark.parametrize("rounding", ["nearest", "table"])
def test_it_learns_nearly_as_with_fp32_states(name, rounding):
    """A matrix that is to be halved: after 100 steps 8-bit states are as near to it as FP32 ones."""
    weights = small.weights_of((64, 128))
    target = small.weights_of((64, 128))[0].detach() * 0.5
    found = {}
    for smallest in (4096, math.inf):
        with torch.no_grad():
            weights[0].copy_(small.weights_of((64, 128))[0])
        optimizer = OURS[name](weights, lr=1e-2, weight_decay=0.0, min_8bit_size=smallest, rounding=rounding)
        for _ in range(100):
            weights[0].grad = (weights[0] - target).detach()
            optimizer.step()
        found[smallest] = ((weights[0] - target) ** 2).mean().item()
    assert found[4096] < 2 * found[math.inf] + 1e-3
