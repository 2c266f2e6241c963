"""Histograms over powers of two, what a format loses, and the hooks that collect gradients."""

import pytest
import torch
from torch.nn import functional as F

from helpers.catalog import WorkbookError
from helpers.catalog.floats import float_format
from helpers.techniques.precision.codes import rounded
from helpers.techniques.precision.gradients import collected, exponents, lost


def every_power():
    return torch.tensor([2.0**power for power in range(-149, 128)])


def test_each_power_of_two_is_in_its_own_bin():
    assert exponents(every_power()) == dict.fromkeys(range(-149, 128), 1)
    assert exponents(torch.tensor([1.0, 1.999, 2.0, -1.0, 0.0, torch.inf, torch.nan])) == {0: 3, 1: 1}
    assert exponents(torch.zeros(3)) == {}


@pytest.mark.parametrize(
    ("name", "zero", "subnormal", "overflow"),
    [("fp16", 149 - 25 + 1, 10, 128 - 16), ("bf16", 149 - 134 + 1, 7, 0), ("fp8-e5m2", 149 - 17 + 1, 2, 112)],
)
def test_what_each_format_loses_of_every_power_of_two(name, zero, subnormal, overflow):
    """FP16: 2^-25, halfway between 0 and the smallest, goes to 0; 2^-24 to 2^-15 are subnormal; 2^16 is too large."""
    found, count = lost(every_power(), name), len(every_power())
    assert [round(share * count) for share in (found.zero, found.subnormal, found.overflow)] == [
        zero,
        subnormal,
        overflow,
    ]
    assert found.kept == pytest.approx(1 - (zero + subnormal + overflow) / count)


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8-e4m3", "fp8-e5m2"])
def test_zero_is_what_rounding_makes_zero(name):
    x = torch.randint(1, 0x7F800000, (100_000,), generator=torch.Generator().manual_seed(0)).int().view(torch.float32)
    found, fmt = rounded(x, name), float_format(name)
    assert lost(x, name).zero == (found == 0).float().mean().item()
    assert lost(x, name).overflow == pytest.approx((~found.isfinite()).float().mean().item(), abs=0.002)
    near = (found.abs() < fmt.smallest_normal) & (found != 0)
    assert lost(x, name).subnormal == pytest.approx(near.float().mean().item(), abs=0.002)


def test_a_scale_moves_the_range():
    x = torch.tensor([1e-8, 1e-7, 1e-3, 1.0])
    assert lost(x, "fp16").zero == 0.25
    moved = lost(x, "fp16", scale=2.0**17)
    assert (moved.zero, moved.subnormal, moved.overflow) == (0.0, 0.0, 0.25)


def test_zeros_are_not_lost():
    assert lost(torch.tensor([0.0, 0.0, 1.0]), "fp16").kept == 1.0
    assert lost(torch.zeros(3), "fp16").kept == 1.0


@pytest.mark.parametrize("name", ["fp8-e4m3", "fp4-e2m1"])
def test_what_is_beyond_the_largest_counts_whatever_becomes_of_it(name):
    x = torch.tensor([1.0, -1e4, 1e4, torch.inf])
    assert lost(x, name).overflow == 0.75
    assert lost(torch.tensor([float_format(name).largest]), name).kept == 1.0


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))


def test_what_is_collected_is_what_autograd_makes():
    network, x, targets = model(), torch.randn(7, 6), torch.randint(4, (7,))
    with collected(network) as found:
        F.cross_entropy(network(x), targets).backward()
    first = network[0](x)
    logits = network[2](network[1](first))
    wanted = torch.autograd.grad(F.cross_entropy(logits, targets), [first, logits, *network.parameters()])
    torch.testing.assert_close(found.activations, {"0": wanted[0].flatten()})
    torch.testing.assert_close(found.logits, wanted[1].flatten())
    torch.testing.assert_close(list(found.weights.values()), [grad.flatten() for grad in wanted[2:]])
    assert found.all_weights().numel() == sum(weight.numel() for weight in network.parameters())
    assert found.all_activations().numel() == first.numel()


def test_hooks_are_gone_afterwards_even_after_an_error():
    network = model()
    with pytest.raises(ZeroDivisionError), collected(network):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in network.modules())


def test_a_model_without_linear_layers_is_told():
    with pytest.raises(WorkbookError, match="no linear layer"), collected(torch.nn.Tanh()):
        pass
