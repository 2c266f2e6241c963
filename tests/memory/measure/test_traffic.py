"""The traffic meter: what each kind of operator reads and writes, and what it never counts."""

import pytest
import torch
from torch.nn import functional

from helpers.memory import measure
from tests.memory.doors import Door

ROWS, WIDTH = 8, 16
N = 4 * ROWS * WIDTH  # bytes of one matrix
X, W = torch.randn(ROWS, WIDTH), torch.randn(32, WIDTH)


def kernels(run):
    with measure.Traffic() as seen:
        run()
    return [(name, one.read_bytes, one.written_bytes) for name, one in seen.kernels]


@pytest.mark.parametrize(
    ("run", "seen"),
    [
        (lambda: X * 2, [("mul", N, N)]),
        (lambda: X * X, [("mul", N, N)]),  # one tensor, read once
        (lambda: X * X.view(ROWS, WIDTH), [("mul", N, N)]),  # under another shape too
        (lambda: X.clone().add_(1), [("clone", N, N), ("add_", N, N)]),  # in place reads what it changes
        (lambda: torch.empty(ROWS, WIDTH).copy_(X), [("copy_", N, N)]),  # and does not where it only overwrites
        (lambda: torch.empty(4).fill_(1), [("fill_", 0, 16)]),
        (lambda: torch.mul(X, 2, out=torch.empty(ROWS, WIDTH)), [("mul", N, N)]),
        (lambda: X.view(-1)[:4].unsqueeze(0).expand(9, 4).transpose(0, 1), []),  # views move nothing
        (lambda: torch.empty(100), []),
        (lambda: torch.zeros(100), [("zeros", 0, 400)]),
        (lambda: X.t().reshape(-1), [("clone", N, N)]),  # a reshape that must copy
        (lambda: X[0].expand(ROWS, WIDTH) + X, [("add", N + 64, N)]),  # distinct elements only
        (lambda: X.sum(), [("sum", N, 4)]),
        (lambda: torch.cat([X, W]), [("cat", 5 * N, 5 * N)]),
        (lambda: functional.embedding(torch.tensor([1, 2]), W), [("embedding", 16 + 128, 128)]),
        (
            lambda: torch.zeros(100, 16).index_copy_(0, torch.tensor([3]), X[:1])[:0],
            [("zeros", 0, 6400), ("index_copy_", 72, 64)],
        ),
        (
            lambda: torch._foreach_add_([X.clone(), X.clone()], 1),
            [("clone", N, N), ("clone", N, N), ("_foreach_add_", 2 * N, 2 * N)],
        ),
    ],
)
def test_what_an_operator_moves(run, seen):
    assert kernels(run) == seen


def test_products_and_attention_have_the_flops_of_flop_counter():
    q = torch.randn(1, 2, 8, 16)
    with measure.Traffic() as seen:
        functional.linear(X, W)
        functional.scaled_dot_product_attention(q, q, q)
    assert [one.flops for _, one in seen.kernels] == [2 * ROWS * WIDTH * 32, 4 * 2 * 8 * 8 * 16]


@pytest.mark.parametrize(
    "run",
    [
        lambda: functional.linear(X, W, W[:, 0].contiguous()),
        lambda: X @ W.t(),
        lambda: functional.rms_norm(X, (WIDTH,), W[0]),
        lambda: X.t().reshape(-1).softmax(-1),
    ],
)
def test_inference_mode_hides_nothing(run):
    plain = kernels(run)
    with torch.inference_mode():
        assert kernels(run) == plain


def test_the_backward_pass_counts_too():
    x = X.clone().requires_grad_()
    with measure.Traffic() as seen:
        functional.linear(x, W).sum().backward()
    assert seen.flops == 2 * (2 * ROWS * WIDTH * 32)


def test_meta_tensors_are_counted_at_their_size():
    x = torch.empty(2**20, 2**10, device="meta")
    with measure.Traffic() as seen:
        x + 1
    assert seen.bytes == 2 * 2**32


def test_nothing_moved_is_nothing():
    with measure.Traffic() as seen:
        pass
    assert (seen.bytes, seen.flops, seen.kernels) == (0, 0, [])


def test_counting_changes_no_result():
    plain = functional.gelu(X @ W.t()).sum()
    with measure.Traffic():
        watched = functional.gelu(X @ W.t()).sum()
    assert torch.equal(plain, watched)


def test_what_a_tensor_with_a_dispatch_of_its_own_does_is_seen():
    door = Door(lambda: X * 2)
    assert ("mul", N, N) in kernels(lambda: torch.neg(door))


def test_a_fused_optimizer_moves_28_bytes_a_weight_and_writes_gradients_only_where_it_unscales_them():
    weight = torch.nn.Parameter(torch.zeros(1000))
    weight.grad = torch.ones(1000)
    optimizer = torch.optim.AdamW([weight], fused=True)
    optimizer.step()
    assert kernels(optimizer.step)[-1] == ("_fused_adamw_", 16_000 + 4, 12_000)
    optimizer.grad_scale = torch.tensor(2.0)
    optimizer.found_inf = torch.tensor(0.0)
    assert {name: written for name, _, written in kernels(optimizer.step)}["_fused_adamw_"] == 16_000
