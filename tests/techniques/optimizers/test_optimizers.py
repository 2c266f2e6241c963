"""Each optimizer equals its reference bit for bit and keeps the bytes it says: Adafactor, Lion, Muon, GaLore …"""

import logging

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.optimizers import Adafactor, Apollo, GaLore, Lion, Muon, hidden_matrices, muon, state_bytes
from tests.techniques.optimizers import small

MATRICES = ((96, 96), (32, 96), (128, 64), (64, 128))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def trained(make, shapes, dtype, steps=10):
    weights = small.weights_of(*shapes, dtype=dtype)
    optimizer = make(weights)
    for step in range(steps):
        small.with_gradients(weights, step)
        optimizer.step()
    return weights, optimizer


def assert_equal_after_ten_steps(ours, theirs, shapes, dtype=torch.float32):
    (mine, _), (their, _) = (trained(make, shapes, dtype) for make in (ours, theirs))
    for weight, other in zip(mine, their, strict=True):
        assert torch.equal(weight, other), tuple(weight.shape)


@DTYPES
@pytest.mark.parametrize("lr", [1e-2, 0.5])
def test_adafactor_is_torchs(dtype, lr):
    shapes = (*MATRICES, (96,), (4, 8, 16))
    how = {"lr": lr, "weight_decay": 0.1}
    theirs = lambda weights: torch.optim.Adafactor(weights, **how, foreach=False)  # noqa: E731
    assert_equal_after_ten_steps(lambda weights: Adafactor(weights, **how), theirs, shapes, dtype)


@DTYPES
def test_muon_is_torchs(dtype, monkeypatch):
    monkeypatch.setattr(muon, "product_format", lambda device: torch.bfloat16)  # whatever this processor is quick at
    how = {"lr": 1e-2, "weight_decay": 0.1}
    theirs = lambda weights: torch.optim.Muon(weights, **how)  # noqa: E731
    assert_equal_after_ten_steps(lambda weights: Muon(weights, **how), theirs, MATRICES, dtype)


@pytest.mark.parametrize(("quick", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_muon_multiplies_in_bf16_where_that_is_quick(quick, dtype, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: quick)
    assert muon.product_format(torch.device("cpu")) == muon.orthogonal(torch.ones(4, 8)).dtype == dtype
    assert muon.product_format(torch.device("cuda")) == torch.bfloat16


def test_lion_is_bitsandbytes():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    lion = pytest.importorskip("bitsandbytes").optim.Lion
    how = {"lr": 1e-2, "weight_decay": 0.1}
    theirs = lambda weights: lion(weights, **how)  # noqa: E731
    assert_equal_after_ten_steps(lambda weights: Lion(weights, **how), theirs, (*MATRICES, (96,)))


@DTYPES
def test_galore_is_adam_on_a_projection(dtype):
    """Projected by hand: the same singular vectors, torch's Adam between, led back."""
    weight, other = (small.weights_of((48, 32), dtype=dtype)[0] for _ in range(2))
    low = torch.nn.Parameter(torch.zeros(48, 4, dtype=dtype))
    how = {"lr": 1e-2, "eps": 1e-12}  # torch corrects the bias before it adds eps: a large one would tell them apart
    adam, galore = torch.optim.Adam([low], foreach=False, **how), GaLore([weight], rank=4, every=3, **how)
    for step in range(6):
        small.with_gradients([weight], step)
        if step % 3 == 0:
            directions = torch.linalg.svd(weight.grad.float(), full_matrices=False)[2][:4].to(dtype)
        before, low.grad = low.detach().clone(), weight.grad @ directions.T
        adam.step()
        with torch.no_grad():
            other += ((low - before) @ directions) * 0.25
        galore.step()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2}[dtype]
    torch.testing.assert_close(weight, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale_by", ["channel", "tensor"])
def test_apollo_with_all_directions_scales_as_adam_would(scale_by):
    """A projection that keeps every norm would make the factor Adam's own; a random one of full rank comes near."""
    weight, other = (small.weights_of((256, 64))[0] for _ in range(2))
    apollo, adam = Apollo([weight], lr=1e-2, rank=64, scale_by=scale_by), torch.optim.Adam([other], lr=1e-2, eps=1e-6)
    start = weight.detach().clone()
    weight.grad = small.weights_of((256, 64))[0].detach() * 3
    other.grad = weight.grad.clone()
    apollo.step()
    adam.step()
    moved, reference = weight.detach() - start, other.detach() - start
    assert torch.equal(moved.sign(), -weight.grad.sign())
    assert moved.norm().item() == pytest.approx(reference.norm().item(), rel=0.1)


def test_apollo_draws_the_same_directions_again_and_keeps_none():
    (first, one), (second, _) = (trained(lambda w: Apollo(w, lr=1e-2, rank=8), MATRICES, torch.float32) for _ in "ab")
    assert all(torch.equal(weight, other) for weight, other in zip(first, second, strict=True))
    assert set(state_bytes(one)) == {"mean", "mean_square", "norm"}
    seeds = {one.state[weight]["seed"] for weight in first}
    assert len(seeds) == len(MATRICES)


def test_apollo_never_grows_by_more_than_a_hundredth():
    weight = small.weights_of((32, 32))[0]
    apollo, moves = Apollo([weight], lr=1.0, rank=8), []
    for _ in range(3):  # Adam's first steps grow by a third each while its moments fill
        weight.grad, before = torch.ones(32, 32), weight.detach().clone()
        apollo.step()
        moves.append(apollo.state[weight]["norm"].item())
        assert not torch.equal(weight, before)
    assert moves[1] == pytest.approx(1.01 * moves[0], rel=1e-4)
    assert moves[2] == pytest.approx(1.01**2 * moves[0], rel=1e-4)


def test_muons_updates_are_nearly_orthogonal():
    from helpers.techniques.optimizers.muon import orthogonal

    for shape in MATRICES:
        values = torch.linalg.svdvals(orthogonal(small.weights_of(shape)[0].detach()).float())
        assert 0.4 < values.min() < values.max() < 1.3


def of_small_model(make_for):
    """State bytes of optimizers for (hidden matrices, the rest) of the small model, after one step."""
    model = small.model()
    small.with_gradients(model.parameters())
    optimizers = make_for(*hidden_matrices(model))
    for optimizer in optimizers:
        optimizer.step()
    return state_bytes(*optimizers)


def adamw(weights):
    return torch.optim.AdamW(weights)


BYTES = {  # of 1,734,336 parameters in 39 tensors
    "adamw": (lambda hidden, rest: [adamw(hidden + rest)], 13_874_844),  # 8 a parameter, 4 a tensor: its step
    "adafactor": (lambda hidden, rest: [Adafactor(hidden + rest)], 66_048),
    "lion": (lambda hidden, rest: [Lion(hidden + rest)], 6_937_344),
    "muon": (lambda hidden, rest: [Muon(hidden), adamw(rest)], 7_583_276),
    "galore": (lambda hidden, rest: [GaLore(hidden, rank=16), adamw(rest)], 2_749_996),
    "apollo": (lambda hidden, rest: [Apollo(hidden, rank=16), adamw(rest)], 2_471_580),
    "apollo-mini": (lambda hidden, rest: [Apollo(hidden, rank=1, scale_by="tensor"), adamw(rest)], 1_365_660),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_of_the_small_model(name):
    make, nbytes = BYTES[name]
    assert sum(of_small_model(make).values()) == nbytes


def test_galores_projectors_are_an_eighth_more():
    kept = of_small_model(BYTES["galore"][0])
    assert kept["projector"] == 278_528
    assert 0.11 < kept["projector"] / (sum(kept.values()) - kept["projector"]) < 0.12


def test_hidden_matrices_are_those_between_embedding_and_head():
    model = small.model()
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    hidden, rest = hidden_matrices(model)
    assert (len(hidden), len(rest)) == (27, 11)
    assert sum(weight.numel() for weight in rest) == 2 * 416 * 192 + 9 * 192


@pytest.mark.parametrize("make", [Adafactor, Lion, Muon, lambda w: GaLore(w, rank=8), lambda w: Apollo(w, rank=8)])
@DTYPES
def test_what_was_saved_goes_on_as_if_never_interrupted(make, dtype):
    weights, optimizer = trained(make, MATRICES, dtype, steps=3)
    others, resumed = trained(make, MATRICES, dtype, steps=0)
    with torch.no_grad():
        for weight, other in zip(weights, others, strict=True):
            other.copy_(weight)
    resumed.load_state_dict(optimizer.state_dict())
    for pair in (weights, optimizer), (others, resumed):
        small.with_gradients(pair[0], seed=9)
        pair[1].step()
    assert all(torch.equal(weight, other) for weight, other in zip(weights, others, strict=True))


def test_a_closure_is_called_and_its_loss_returned():
    weight = small.weights_of((8, 8))[0]
    lion = Lion([weight])

    def closure():
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert lion.step(closure).item() > 0


def test_what_has_no_gradient_is_left_alone():
    used, unused = small.weights_of((8, 8), (8, 8))
    before, lion = unused.detach().clone(), Lion([used, unused])
    small.with_gradients([used])
    lion.step()
    assert torch.equal(unused, before)
    assert unused not in lion.state


def with_a_sparse_gradient():
    embedding = torch.nn.Embedding(8, 8, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    Lion(embedding.parameters()).step()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Muon(small.weights_of((8,))), "matrices, for which Muon"),
        (lambda: GaLore(small.weights_of((8, 4)), rank=5), "rank is 5"),
        (lambda: GaLore(small.weights_of((8, 4)), rank=2, every=0), "every is 0"),
        (lambda: Apollo(small.weights_of((8, 8, 8)), rank=2), "Apollo"),
        (lambda: Apollo(small.weights_of((8, 8)), rank=2, scale_by="row"), "row"),
        (lambda: Lion(small.weights_of((8, 8)), lr=0), "lr is 0"),
        (lambda: Lion(small.weights_of((8, 8)), betas=(0.9, 1.0)), r"betas are \(0.9, 1.0\)"),
        (lambda: with_a_sparse_gradient(), "sparse"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
