"""The field's optimizers: what they keep, how near ours are to them, and what is said where one is missing."""

import importlib.util
import logging
import sys

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.optimizers import AdamW8bit, GaLore, engines, hidden_matrices, state_bytes
from tests.techniques.optimizers import small


def needs(name):
    return pytest.mark.skipif(not importlib.util.find_spec(name), reason=f"{name} is not installed")


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def stepped(make, *shapes, dtype=torch.float32, steps=3):
    weights = small.weights_of(*shapes, dtype=dtype)
    optimizer = make(weights)
    with torch.compiler.set_stance("force_eager"):  # torchao would compile each update: a minute of C++
        for step in range(steps):
            small.with_gradients(weights, step)
            optimizer.step()
    return weights, optimizer


@needs("bitsandbytes")
@pytest.mark.parametrize(
    ("name", "nbytes"),
    {
        "adamw-8bit": 2 * (8192 + 128) + 2048,
        "adamw-8bit-paged": 2 * (8192 + 128) + 2048,
        "adamw-paged": 8 * 8192,
        "lion": 4 * 8192,
        "lion-8bit": 8192 + 128 + 1024,
        "lion-8bit-paged": 8192 + 128 + 1024,
    }.items(),
)
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_bitsandbytes_keeps(name, nbytes):
    _, optimizer = stepped(lambda weights: engines.bitsandbytes(weights, name), (128, 64))
    assert sum(state_bytes(optimizer).values()) == nbytes


@needs("torchao")
@pytest.mark.parametrize(
    ("name", "nbytes"),
    {
        "adamw-8bit": 2 * (8192 + 128 + 1024),
        "adamw-4bit": 2 * (4096 + 4 * 64) + 2 * 64,
        "adamw-fp8": 2 * (8192 + 128),
    }.items(),
)
def test_torchao_keeps(name, nbytes):
    _, optimizer = stepped(lambda weights: engines.torchao(weights, name), (128, 64))
    assert sum(state_bytes(optimizer).values()) - 4 == nbytes  # 4: the step


@needs("torchao")
def test_torchaos_8_bits_are_nearly_ours():
    """It divides by the absmax where ours multiplies by its reciprocal, and takes the upper level at a tie."""
    (theirs,), _ = stepped(lambda weights: engines.torchao(weights, weight_decay=0.01), (128, 64))
    (ours,), _ = stepped(AdamW8bit, (128, 64))
    apart = (ours - theirs).abs()
    assert apart.median() < 1e-6
    assert apart.max() < 3e-3  # three steps of 1e-3


@needs("galore_torch")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_galore_torch_is_ours(dtype):
    """Both sides of the rule, tall and wide; new projections at steps 1, 3 and 5."""
    shapes, how = ((96, 64), (64, 96), (64, 64)), {"rank": 8, "every": 2, "lr": 1e-2, "weight_decay": 0.1}
    theirs, _ = stepped(lambda weights: engines.galore_torch(weights, **how), *shapes, dtype=dtype, steps=5)
    ours, _ = stepped(lambda weights: GaLore(weights, **how), *shapes, dtype=dtype, steps=5)
    for weight, other in zip(ours, theirs, strict=True):  # a product with a slice may round otherwise than with a copy
        torch.testing.assert_close(weight, other, rtol=1e-5, atol=1e-6)


@needs("galore_torch")
@pytest.mark.parametrize(("dtype", "nbytes"), [(torch.float32, 4 * 64 * 64), (torch.bfloat16, 2 * 8 * 64)])
def test_galore_torch_keeps_whole_singular_vectors_in_fp32(dtype, nbytes):
    """A slice of 8 rows of 64 keeps all 64 alive; ours is a copy of the 8."""
    _, theirs = stepped(lambda weights: engines.galore_torch(weights, rank=8), (96, 64), dtype=dtype)
    _, ours = stepped(lambda weights: GaLore(weights, rank=8), (96, 64), dtype=dtype)
    assert state_bytes(theirs)["projector"] == nbytes
    assert state_bytes(ours)["projector"] == dtype.itemsize * 8 * 64


@needs("galore_torch")
@pytest.mark.parametrize(("dtype", "nbytes"), [(torch.float32, 3_080_192), (torch.bfloat16, 278_528 // 2)])
def test_galore_torchs_projectors_of_the_small_model(dtype, nbytes):
    """Rank 16: in FP32 eleven times what the rank asks for, and more than both of its moments, 1,179,648 bytes."""
    hidden, _ = hidden_matrices(small.model(dtype))
    optimizer = engines.galore_torch(hidden, rank=16)
    small.with_gradients(hidden)
    optimizer.step()
    kept = state_bytes(optimizer)
    assert kept["projector"] == nbytes
    assert kept["exp_avg"] + kept["exp_avg_sq"] == 1_179_648 * dtype.itemsize // 4


@pytest.mark.parametrize(("dtype", "beta1"), [(torch.float32, None), (torch.bfloat16, None), (torch.float32, 0.9)])
def test_transformers_adafactor_keeps_fp32(dtype, beta1):
    _, optimizer = stepped(
        lambda weights: engines.transformers_adafactor(weights, beta1=beta1), (96, 64), (64,), dtype=dtype
    )
    kept = 4 * (96 + 64 + 64) + (4 * (96 * 64 + 64) if beta1 else 0)
    assert sum(state_bytes(optimizer).values()) == kept + 2 * 4  # the root mean square of either tensor


CALLS = {
    "bitsandbytes": lambda: engines.bitsandbytes(small.weights_of((4, 4))),
    "torchao.optim": lambda: engines.torchao(small.weights_of((4, 4))),
    "galore_torch": lambda: engines.galore_torch(small.weights_of((4, 4)), rank=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_without_the_package(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, name.partition(".")[0], None)
    with pytest.raises(WorkbookError, match="cannot be imported"):
        CALLS[name]()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: engines.bitsandbytes([], "adam"), "adam"),
        (lambda: engines.torchao([], "adamw-2bit"), "adamw-2bit"),
        (lambda: engines.galore_torch([], rank=0), "rank is 0"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
