"""Integer products are exact, scaled back rightly, and LLM.int8() agrees with bitsandbytes on the same input."""

import dataclasses
import logging
import os
import subprocess
import sys

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.catalog.formats import number_format
from helpers.memory import trace
from helpers.memory.meter import Meter
from helpers.techniques.quantization import int8
from helpers.techniques.quantization.int8 import Int8Tensor, int8_matmul, llm_int8, to_int8, w8a8
from tests.techniques.quantization.overflow import exact_integers

# bitsandbytes writes 1 / 127**2 as 6.200124e-05 on CPU, where it is 6.2000124e-05: all it computes is 1.8e-5 too large.
THEIR_STEP = 6.200124e-05 * 127**2


def half(*shape, seed=0):
    """FP32 numbers that FP16 holds exactly: bitsandbytes casts weights and activations to it."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half().float()


def with_outliers(x, columns=(3, 40), size=60.0):
    x = x.clone()
    x[..., columns] *= size
    return x.half().float()


def all_codes(*shape, seed=0):
    return torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def test_a_row_next_to_nothing_is_zeros():
    codes, _ = to_int8(torch.tensor([[1e-40, -1e-40, 0.0], [1e-38, 0.0, -1e-38]]))
    assert codes.tolist() == [[0, 0, 0], [1, 0, -1]]


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(("tokens", "inner", "out"), [(1, 8, 8), (5, 33, 7), (32, 4096, 16), (3, 2049, 1)])
def test_products_are_exact_on_either_path(monkeypatch, kernel, tokens, inner, out):
    if kernel and not int8.cpu_kernel_is_exact():
        pytest.skip("no exact kernel for integers on this processor")
    monkeypatch.setattr(int8, "_has_kernel", lambda x, weight: kernel)
    x, weight = all_codes(tokens, inner), all_codes(out, inner, seed=1)
    assert torch.equal(int8_matmul(x, weight), (x.double() @ weight.double().t()).int())
    most = torch.full((tokens, inner), 127, dtype=torch.int8)
    assert (int8_matmul(most, most) == inner * 127**2).all()


def test_a_kernel_that_overflows_is_found_out():
    asked = "from helpers.techniques.quantization import int8; print(int8.cpu_kernel_is_exact())"
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "False"


def test_the_kernel_is_asked_whatever_traces_or_counts_meanwhile():
    exact = int8.cpu_kernel_is_exact()
    with trace.fake():
        assert int8.cpu_kernel_is_exact.__wrapped__() == exact
    with Meter() as meter:
        assert int8.cpu_kernel_is_exact.__wrapped__() == exact
    assert meter.peak_bytes == 0


def test_codes_reach_127_on_both_sides_and_never_minus_128():
    codes, absmax = to_int8(torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.02, -0.01, 0.005]]))
    assert codes.tolist() == [[127, -127, 0], [0, 0, 0], [127, -64, 32]]
    assert torch.allclose(absmax, torch.tensor([1.0, 0.0, 0.02]))


def test_storage():
    weight = torch.randn(24, 100)
    kept = Int8Tensor.of(weight)
    assert kept.nbytes == number_format("int8").storage_bytes(2400, rows=24)
    assert kept.shape == (24, 100)
    assert ((kept.dequantize() - weight).abs() <= weight.abs().amax(-1, keepdim=True) / 254 + 1e-6).all()
    assert kept.dequantize(torch.bfloat16).dtype == torch.bfloat16


def test_a_product_is_that_of_the_rounded_operands():
    x, weight, bias = half(2, 5, 64), Int8Tensor.of(half(24, 64, seed=1)), half(24, seed=2)
    codes, absmax = to_int8(x.reshape(10, 64))
    rounded = (codes * absmax[:, None] / 127).reshape(2, 5, 64)
    expected = rounded @ weight.dequantize().t() + bias
    assert torch.allclose(w8a8(x, weight, bias), expected, atol=1e-5)


def test_without_outliers_the_two_are_one():
    x, weight = half(7, 64), Int8Tensor.of(half(24, 64, seed=1))
    assert torch.equal(llm_int8(x, weight), w8a8(x, weight))


def test_outlier_columns_save_the_others():
    weight, x = half(48, 64, seed=1), with_outliers(half(30, 64))
    kept = Int8Tensor.of(weight)
    with_these_weights = x @ kept.dequantize().t()
    naive, apart = ((f(x, kept) - with_these_weights).pow(2).mean().sqrt() for f in (w8a8, llm_int8))
    assert apart < 0.05 * naive


def test_the_threshold_itself_is_an_outlier():
    x = torch.zeros(1, 8)
    x[0, 2], x[0, 5] = 6.0, 0.001
    weight = Int8Tensor.of(torch.eye(8))
    found = llm_int8(x, weight)
    assert torch.allclose(found, x, rtol=1e-3)  # 0.001 survives: 6.0 is apart
    assert w8a8(x, weight)[0, 5] == 0
    assert llm_int8(x, weight, threshold=6.01)[0, 5] == 0


def bitsandbytes_linear(weight, bias, threshold):
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    nn = pytest.importorskip("bitsandbytes").nn
    linear = nn.Linear8bitLt(*weight.shape[::-1], bias is not None, has_fp16_weights=False, threshold=threshold)
    linear.weight = nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    if bias is not None:
        linear.bias.data = bias
    return linear.to("cpu").eval()


@exact_integers
@pytest.mark.parametrize("shape", [(1, 192), (33, 192), (2, 9, 192)])
@pytest.mark.parametrize("mode", ["w8a8", "llm.int8", "llm.int8 with outliers"])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_8bit_of_bitsandbytes(shape, mode, biased):
    weight, bias = half(64, 192, seed=1), half(64, seed=2) if biased else None
    x = with_outliers(half(*shape)) if "outliers" in mode else half(*shape).clamp(-5, 5)
    threshold = 0.0 if mode == "w8a8" else 6.0
    kept = Int8Tensor.of(weight)
    theirs = bitsandbytes_linear(weight, bias, threshold)
    assert torch.equal(kept.codes, theirs.weight.CB)
    assert torch.equal(kept.absmax, theirs.weight.SCB)
    with torch.no_grad():
        expected = theirs(x)
    found = w8a8(x, kept, bias) if mode == "w8a8" else llm_int8(x, kept, bias)
    assert torch.allclose(found, expected, rtol=2 * (THEIR_STEP - 1), atol=1e-4 * expected.abs().amax().item())
    if mode == "w8a8" and not biased:  # with their constant in place of ours only FP32's rounding is left
        assert torch.allclose(found * THEIR_STEP, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("multiply", [w8a8, llm_int8])
def test_the_result_has_the_input_s_type_and_shape(multiply, dtype):
    x = with_outliers(half(2, 3, 64)).to(dtype)
    found = multiply(x, Int8Tensor.of(half(24, 64, seed=1)), half(24))
    assert found.dtype == dtype
    assert tuple(found.shape) == (2, 3, 24)


def test_the_input_is_left_alone():
    x = with_outliers(half(4, 64))
    before = x.clone()
    llm_int8(x, Int8Tensor.of(half(8, 64)))
    assert torch.equal(x, before)


@pytest.mark.parametrize("multiply", [w8a8, llm_int8])
def test_what_is_not_finite_stays_visible(multiply):
    x = half(3, 64)
    x[1, 5] = float("nan")
    found = multiply(x, Int8Tensor.of(half(8, 64)))
    assert found[1].isnan().all()
    assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize(
    ("weight", "what"),
    [
        (torch.tensor([[float("inf")]]), "1 of 1 weights are NaN or infinite"),
        (torch.ones(2, 2, dtype=torch.int8), "a weight of type torch.int8"),
        (torch.ones(4), "a weight of shape [4]"),
        (torch.ones(2, 2, 2), "a weight of shape [2, 2, 2]"),
        (torch.empty(0, 4), "a weight of shape [0, 4]"),
    ],
)
def test_bad_weights(weight, what):
    with pytest.raises(WorkbookError) as error:
        Int8Tensor.of(weight)
    assert error.value.what == what


def test_scales_cast_after_quantizing_are_refused():
    kept = Int8Tensor.of(torch.randn(4, 64))
    with pytest.raises(WorkbookError, match="before quantizing, not after"):
        dataclasses.replace(kept, absmax=kept.absmax.half())
