"""FP8 with scales: by tensor, by row, and from the past; the product by torch's kernel and by hand."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.precision.scaling import DTYPES, PER, DelayedScale, Scaled, plain_product, product

HALF_A_STEP = {"fp8-e4m3": 2.0**-4, "fp8-e5m2": 2.0**-3}
by = pytest.mark.parametrize("per", PER)
both = pytest.mark.parametrize("fmt", DTYPES)


def drawn(rows=8, columns=64, seed=0):
    """Rows of unequal size, the smallest a hundredth of the largest."""
    sizes = torch.logspace(0, -2, rows)[:, None]
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * sizes


def relative_error(found, exact):
    return float((found.float() - exact).norm() / exact.norm())


@both
@by
def test_the_largest_is_exact_and_the_others_within_half_a_step(fmt, per):
    x = drawn()
    found = Scaled.of(x, fmt, per)
    at = x.abs().argmax() if per == "tensor" else x.abs().argmax(-1, keepdim=True)
    picked = [tensor.flatten()[at] if per == "tensor" else tensor.gather(-1, at) for tensor in (found.values, x)]
    torch.testing.assert_close(*picked, rtol=1e-6, atol=0)
    large = x.abs() > x.abs().max() * 2.0**-6  # normal numbers
    assert ((found.values - x).abs() <= x.abs() * HALF_A_STEP[fmt] * 1.001)[large].all()


@both
@by
def test_codes_are_torchs_own(fmt, per):
    found, x = Scaled.of(drawn(), fmt, per), drawn()
    assert torch.equal(found.fp8.view(torch.uint8), (x / found.scale).to(DTYPES[fmt]).view(torch.uint8))
    assert torch.equal(found.fp8.float() * found.scale, found.values)


@pytest.mark.parametrize(("per", "scales"), [("tensor", 1), ("row", 8)])
def test_bytes(per, scales):
    assert Scaled.of(drawn(), per=per).nbytes == 8 * 64 + 4 * scales


def test_rows_of_their_own_lose_less_where_they_differ():
    """The smallest of a hundred sizes lies among E4M3's subnormals when the largest one sets the scale."""
    x = drawn(columns=512) * torch.logspace(0, -3, 8)[:, None]
    small = slice(-1, None)
    errors = {per: relative_error(Scaled.of(x, per=per).values[small], x[small]) for per in PER}
    assert errors["row"] < 0.03 < 0.2 < errors["tensor"]


@by
def test_zeros_and_what_is_nearly_zero(per):
    assert (Scaled.of(torch.zeros(2, 3), per=per).values == 0).all()
    assert Scaled.of(torch.tensor([[1e-44, 0.0], [0.0, 1e-44]]), per=per).values.isfinite().all()


@by
@both
def test_the_kernel_and_the_plain_product_agree(per, fmt):
    a, b = Scaled.of(drawn(), fmt, per), Scaled.of(drawn(16, 64, seed=1), per=per)
    exact = plain_product(a, b)
    torch.testing.assert_close(product(a, b, torch.float32), exact, rtol=1e-5, atol=1e-5)
    assert product(a, b).dtype == torch.bfloat16
    torch.testing.assert_close(product(a, b).float(), exact, rtol=2.0**-8, atol=1e-5)
    assert 0.01 < relative_error(exact, drawn() @ drawn(16, 64, seed=1).T) < 0.1


def test_a_delayed_scale_is_the_last_tensors():
    scale, x = DelayedScale(), drawn()
    scale(x)
    assert torch.equal(scale(x / 2).scale, Scaled.of(x).scale)  # of the largest of both
    assert scale.cut == 0


def test_it_forgets_after_so_many_steps():
    scale = DelayedScale(history=3)
    found = [float(scale(torch.full((1, 2), size)).scale * 448) for size in (8.0, 1.0, 1.0, 1.0, 1.0)]
    assert found == pytest.approx([448.0, 8.0, 8.0, 8.0, 1.0])


def test_what_grows_is_cut_once_and_a_margin_prevents_it():
    tight, roomy, small, grown = (
        DelayedScale(),
        DelayedScale(margin=2),
        torch.full((1, 4), 1.0),
        torch.full((1, 4), 3.0),
    )
    for scale in (tight, roomy):
        scale(small)
    assert tight(grown).values.max() == pytest.approx(1.0)
    assert tight.cut == 4
    assert tight(grown).values.max() == pytest.approx(3.0)
    assert roomy(grown).values.max() == pytest.approx(3.0, rel=HALF_A_STEP["fp8-e4m3"])
    assert roomy.cut == 0


def test_zeros_leave_a_usable_scale():
    scale = DelayedScale()
    scale(torch.zeros(1, 2))
    assert scale(torch.ones(1, 2)).values.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Scaled.of(drawn(), "fp16"), "fp16"),
        (lambda: Scaled.of(drawn(), per="column"), "column"),
        (lambda: Scaled.of(torch.ones(3)), "shape"),
        (lambda: Scaled.of(torch.full((2, 2), torch.nan)), "NaN"),
        (lambda: DelayedScale(history=0), "history"),
        (lambda: DelayedScale(margin=-1), "margin"),
        (lambda: DelayedScale(fmt="bf16"), "bf16"),
        (lambda: product(Scaled.of(drawn()), Scaled.of(drawn(columns=32))), "32"),
        (lambda: product(Scaled.of(drawn()), Scaled.of(drawn(), per="row")), "by row"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
