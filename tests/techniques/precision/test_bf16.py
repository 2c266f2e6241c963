"""Three cures for BF16 weights that stand still, against FP32, on a problem of 32 weights."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.precision import BF16Adam, KahanSum, stochastically_rounded, with_values
from helpers.techniques.precision.bf16 import KEEPS


def problem(seed):
    """Inputs, targets, and a layer whose weights are a tenth away from the solution."""
    generator = torch.Generator().manual_seed(seed)
    inputs, solution = torch.randn(256, 32, generator=generator), torch.randn(1, 32, generator=generator)
    layer = torch.nn.Linear(32, 1, bias=False)
    layer.weight.data = (solution + 0.1 * torch.randn(1, 32, generator=generator)).bfloat16()
    return inputs, inputs @ solution.T, layer


def error(weight, inputs, targets):
    """Computed in FP32 whatever the weight's type, so that the optimizers differ and nothing else."""
    return ((inputs @ weight.float().T - targets) ** 2).mean()


def trained(keep, seed, steps=200, lr=1e-3):
    """The error at the end, of what the optimizer says the weights are."""
    inputs, targets, layer = problem(seed)
    if keep == "fp32":
        optimizer = torch.optim.Adam(layer.float().parameters(), lr)
    else:
        optimizer = BF16Adam(layer.parameters(), lr, keep=keep)
    for _ in range(steps):
        optimizer.zero_grad()
        error(layer.weight, inputs, targets).backward()
        optimizer.step()
    scored = layer if keep == "fp32" else with_values(layer, optimizer)
    return error(scored.weight, inputs, targets).item()


@pytest.mark.parametrize("seed", range(3))
def test_three_cures_learn_and_plain_bf16_stands_still(seed):
    inputs, targets, layer = problem(seed)
    start = error(layer.weight, inputs, targets).item()
    found = {keep: trained(keep, seed) for keep in ("fp32", *KEEPS)}
    assert found["fp32"] < start / 10
    assert found["nothing"] > start / 2
    assert found["stochastic"] < 2 * found["fp32"]
    assert found["kahan"] == pytest.approx(found["fp32"], rel=0.05)
    assert found["master"] == pytest.approx(found["fp32"], rel=0.05)


def with_gradients(keep, steps=3, **settings):
    """A weight of 40 numbers after some steps with random gradients, and its optimizer."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 8, generator=generator).bfloat16())
    optimizer = BF16Adam([weight], lr=1e-2, keep=keep, **settings)
    for _ in range(steps):
        weight.grad = torch.randn(5, 8, generator=generator).bfloat16()
        optimizer.step()
    return weight, optimizer


def test_the_master_is_torchs_own_adam():
    """The same gradients into torch.optim.Adam on FP32 weights."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 8, generator=generator).bfloat16().float())
    reference = torch.optim.Adam([weight], lr=1e-2)
    for _ in range(20):
        weight.grad = torch.randn(5, 8, generator=generator).bfloat16().float()
        reference.step()
    ours, optimizer = with_gradients("master", steps=20)
    torch.testing.assert_close(optimizer.values(ours), weight.detach(), rtol=1e-6, atol=1e-7)
    assert torch.equal(ours, weight.bfloat16())


def test_weight_and_compensation_together_are_nearly_the_master():
    (master, exact), (weight, optimizer) = with_gradients("master", steps=20), with_gradients("kahan", steps=20)
    off = (optimizer.values(weight) - exact.values(master)).abs().max()
    assert off < (weight.float() - exact.values(master)).abs().max() / 20


@pytest.mark.parametrize(("keep", "nbytes"), {"nothing": 0, "stochastic": 0, "kahan": 2, "master": 4}.items())
@pytest.mark.parametrize(("moments", "each"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_beside_the_weight(keep, nbytes, moments, each):
    weight, optimizer = with_gradients(keep, moments=moments)
    kept = [state for state in optimizer.state[weight].values() if isinstance(state, torch.Tensor)]
    assert sum(state.nbytes for state in kept) == (2 * each + nbytes) * weight.numel()


@pytest.mark.parametrize("keep", KEEPS)
def test_what_was_saved_goes_on_as_if_never_interrupted(keep):
    """torch alone would bring the master back in BF16."""
    (weight, optimizer), (other, resumed) = with_gradients(keep), with_gradients(keep, steps=0)
    with torch.no_grad():
        other.copy_(weight)
    resumed.load_state_dict(optimizer.state_dict())
    resumed.generator.set_state(optimizer.generator.get_state())
    assert torch.equal(resumed.values(other), optimizer.values(weight))
    for _ in range(3):
        weight.grad = other.grad = torch.ones_like(weight)
        optimizer.step()
        resumed.step()
    assert torch.equal(resumed.values(other), optimizer.values(weight))


def test_a_seed_decides_what_chance_does():
    first, again, another = (with_gradients("stochastic", seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, another)


def test_stochastic_rounding_is_right_on_average():
    """Three quarters of the way from 1 to the next BF16: three in four go up, and the mean is the number."""
    x = torch.full((100_000,), 1 + 0.75 / 128)
    for number in (x, -x):
        found = stochastically_rounded(number, torch.Generator().manual_seed(0)).float()
        assert set(found.abs().unique().tolist()) == {1.0, 1 + 1 / 128}
        assert (found.abs() > 1).float().mean().item() == pytest.approx(0.75, abs=0.005)  # 3.6 standard deviations


def test_stochastic_rounding_leaves_what_bf16_has():
    x = torch.tensor([0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, 2.0**-126, 2.0**-133])
    for seed in range(20):
        found = stochastically_rounded(x, torch.Generator().manual_seed(seed))
        assert torch.equal(found.view(torch.int16), x.bfloat16().view(torch.int16))
    nan = torch.tensor([0x7FFFFFFF, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    assert stochastically_rounded(nan).isnan().all()


def test_a_thousand_thousandths():
    """Half the distance above 1 is 0.0039: plain BF16 never moves; the one that remembers does."""
    plain, lost = (torch.tensor([value], dtype=torch.bfloat16) for value in (1.0, 0.0))
    total = KahanSum(plain.clone(), lost)
    for _ in range(1000):
        plain += 0.001
        total.add_(torch.tensor([0.001]))
    assert (plain.item(), total.total.item()) == (1.0, 2.0)
    assert total.value.item() == pytest.approx(2.0, abs=0.004)  # what is lost is remembered in BF16, too


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: BF16Adam([torch.nn.Parameter(torch.ones(2))], lr=1e-3), "float32"),
        (lambda: BF16Adam([torch.nn.Parameter(torch.ones(2).bfloat16())], lr=1e-3, keep="masters"), "masters"),
        (lambda: BF16Adam([torch.nn.Parameter(torch.ones(2).bfloat16())], lr=0), "lr is 0"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
