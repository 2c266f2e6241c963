"""The tiled backward: gradients by differences, and those that autograd takes through the formula."""

import pytest
import torch
from hypothesis import given, settings

from helpers.techniques import attention
from tests.techniques.attention.drawn import cases, error

# A gradient of scores is w * (g - delta), two sums of products in different orders; where a query sees one key they are
# equal, and the difference, which should be 0, is their rounding.
GRADIENTS = 5e-6


@settings(max_examples=100, deadline=None)
@given(cases)
def test_as_through_the_formula(case):
    ours = case.tensors(grads=True)
    exact = [tensor.detach().double().requires_grad_() for tensor in ours]
    output = attention.attention(*ours, case.mask, case.tile)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(case.seed))
    found = torch.autograd.grad(output, ours, grad)
    expected = torch.autograd.grad(attention.naive(*exact, case.mask), exact, grad.double())
    for tiled, right in zip(found, expected, strict=True):
        assert error(tiled, right) < GRADIENTS


@pytest.mark.parametrize(
    "mask",
    [
        attention.Full(),
        attention.Causal(),
        attention.Window(2, sinks=1),
        attention.BlockSparse(2, [[1, 0, 0], [0, 0, 0], [1, 1, 1]]),
    ],
)
def test_gradcheck(mask):
    q, k, v = (torch.randn(1, heads, 5, 3, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    assert torch.autograd.gradcheck(lambda *tensors: attention.attention(*tensors, mask, (2, 3), 0.7), (q, k, v))


def test_16_bit_gradients_are_rounded_once():
    q, k, v = (torch.randn(1, 2, 200, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    rounded = [tensor.bfloat16().requires_grad_() for tensor in (q, k, v)]
    exact = [tensor.detach().double().requires_grad_() for tensor in rounded]
    for tensors in (rounded, exact):
        attention.attention(*tensors, tile=64).sum().backward()
    for tensor, right in zip(rounded, exact, strict=True):
        assert tensor.grad.dtype == torch.bfloat16
        assert error(tensor.grad, right.grad) < 3e-3  # the output that is kept is rounded, and so is its delta


def test_no_gradient_of_a_gradient():
    q, k, v = (torch.randn(1, 1, 4, 2, requires_grad=True) for _ in range(3))
    output, upstream = attention.attention(q, k, v), torch.randn(1, 1, 4, 2, requires_grad=True)
    (grad,) = torch.autograd.grad(output, q, upstream, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
