"""LossScaler beside torch.amp.GradScaler, step by step: scales, weights, what is skipped."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.precision import LossScaler

GOOD, TOO_LARGE, NAN = 1.0, torch.inf, torch.nan
SPOILED = [GOOD, TOO_LARGE, GOOD, GOOD, GOOD, GOOD, NAN, TOO_LARGE, *[GOOD] * 9, TOO_LARGE, GOOD]


def weights(seed=0, dtype=torch.float32):
    return [torch.nn.Parameter(torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)).to(dtype))]


def a_step(scaled, scaler, optimizer, weight, spoil):
    """Loss, backward with one spoiled gradient, step, update."""
    optimizer.zero_grad()
    scaled((weight.float() ** 2).sum()).backward()
    weight.grad[1, 2] *= spoil
    taken = scaler.step(optimizer)
    scaler.update()
    return taken


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"scale": 4.0, "growth": 4.0, "backoff": 0.25, "growth_interval": 3}])
def test_equal_step_by_step(settings, dtype):
    ours, reference = LossScaler(**settings | {"growth_interval": 3}), reference_scaler(**settings)
    (mine,), (theirs,) = weights(dtype=dtype), weights(dtype=dtype)
    optimizers = [torch.optim.AdamW([weight], lr=0.1) for weight in (mine, theirs)]
    for step, spoil in enumerate(SPOILED):
        taken = a_step(ours.scaled, ours, optimizers[0], mine, spoil)
        a_step(reference.scale, reference, optimizers[1], theirs, spoil)
        assert taken == (spoil == GOOD), step
        assert ours.scale == reference.get_scale(), step
        assert torch.equal(mine, theirs), step
        assert torch.equal(mine.grad, theirs.grad) or spoil != GOOD, step
    assert ours.skipped == sum(spoil != GOOD for spoil in SPOILED)


def reference_scaler(scale=2.0**16, growth=2.0, backoff=0.5, growth_interval=3):
    return torch.amp.GradScaler(
        "cpu", init_scale=scale, growth_factor=growth, backoff_factor=backoff, growth_interval=growth_interval
    )


def test_the_scale_never_becomes_infinite():
    ours, reference = LossScaler(2.0**125, growth_interval=1), reference_scaler(2.0**125, growth_interval=1)
    reference.scale(torch.ones(()))  # it makes its tensors here
    for _ in range(6):
        (weight,), (other,) = weights(), weights()
        for one, scaler in ((weight, ours), (other, reference)):
            one.grad = torch.ones_like(one)
            scaler.step(torch.optim.SGD([one]))
            scaler.update()
        assert ours.scale == reference.get_scale() < torch.inf


def test_two_optimizers_share_a_scale_and_one_of_them_skips():
    first, second = weights(1), weights(2)
    scaler, optimizers = LossScaler(8.0), [torch.optim.SGD(first, lr=1.0), torch.optim.SGD(second, lr=1.0)]
    before = second[0].detach().clone()
    first[0].grad, second[0].grad = torch.ones(3, 5), torch.full((3, 5), torch.inf)
    assert [scaler.step(optimizer) for optimizer in optimizers] == [True, False]
    scaler.update()
    assert (scaler.scale, scaler.skipped) == (4.0, 1)
    assert torch.equal(second[0], before)


def test_gradients_are_clipped_between():
    (weight,) = weights()
    weight.grad, scaler, optimizer = torch.full((3, 5), 64.0), LossScaler(64.0), torch.optim.SGD([weight], lr=1.0)
    assert scaler.unscale(optimizer)
    assert (weight.grad == 1).all()
    before = weight.detach().clone()
    weight.grad.clamp_(max=0.5)
    assert scaler.step(optimizer)
    torch.testing.assert_close(before - weight, torch.full((3, 5), 0.5))


def test_a_loss_in_fp16_is_scaled_in_fp32():
    loss = torch.tensor(9.0, dtype=torch.float16, requires_grad=True)
    assert LossScaler(2.0**16).scaled(loss).item() == 9 * 2**16
    assert reference_scaler().scale(loss).item() == 9 * 2**16


def stepped():
    scaler, optimizer = LossScaler(), torch.optim.SGD(weights())
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3, 5)
    scaler.step(optimizer)
    return scaler, optimizer


def half_precision():
    (weight,) = weights(dtype=torch.float16)
    weight.grad = torch.ones_like(weight)
    LossScaler().step(torch.optim.SGD([weight]))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: LossScaler(0.0), "scale is 0"),
        (lambda: LossScaler(growth=1.0), "growth"),
        (lambda: LossScaler(backoff=1.0), "backoff"),
        (lambda: LossScaler(growth_interval=0), "growth_interval"),
        (lambda: LossScaler().update(), "no gradient was looked at"),
        (lambda: LossScaler().step(torch.optim.SGD(weights())), "no weight of this optimizer has a gradient"),
        (lambda: (lambda scaler, optimizer: scaler.step(optimizer))(*stepped()), "stepped already"),
        (lambda: (lambda scaler, optimizer: scaler.unscale(optimizer))(*stepped()), "unscaled already"),
        (half_precision, "FP16"),
    ],
)
def test_bad_use_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
