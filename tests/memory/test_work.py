"""Work by rule: values worked by hand, the instrument that counts real kernels, and the roof over both."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from helpers.catalog import WorkbookError
from helpers.memory import measure, work
from helpers.memory.work import COMPUTE, MEMORY, Roof, Work

SIZES = st.integers(1, 2**12)


@pytest.mark.parametrize(
    ("counted", "flops", "read_bytes", "written_bytes"),
    [
        (work.copy(1000), 0, 4000, 4000),
        (work.copy(1000, "bf16"), 0, 2000, 2000),
        (work.pointwise(10**6, inputs=2), 10**6, 8 * 10**6, 4 * 10**6),
        (work.softmax(4, 8), 5 * 32, 128, 128),
        (work.layernorm(4, 8), 8 * 32, 4 * (32 + 16), 4 * (32 + 8)),
        (work.matmul(2, 3, 5), 60, 2 * (10 + 15), 2 * 6),
        (work.matmul(4096, 4096, 4096), 2 * 4096**3, 2 * 2 * 4096**2, 2 * 4096**2),
        (work.matmul(2, 3, 5, "fp8-e4m3", out_format="bf16"), 60, 25, 12),
        (work.attention(1, 8192, 32, 128, kv_heads=8), 4 * 32 * 8192 * 128, 2 * (4096 + 2 * 8 * 8192 * 128), 2 * 4096),
        (work.attention(3, 7, 2, 4, batch=5), 4 * 5 * 2 * 3 * 7 * 4, 2 * 5 * 2 * 4 * (3 + 14), 2 * 5 * 2 * 3 * 4),
    ],
)
def test_work_by_hand(counted, flops, read_bytes, written_bytes):
    assert counted == Work(flops, read_bytes, written_bytes)


@given(m=SIZES, n=SIZES, k=SIZES)
def test_flops_of_a_product_are_those_of_flop_counter(m, n, k):
    with FlopCounterMode(display=False) as counter:
        torch.empty(m, k, device="meta") @ torch.empty(k, n, device="meta")
    assert work.matmul(m, n, k).flops == counter.get_total_flops()


@pytest.mark.parametrize("causal", [False, True])
def test_flops_of_attention_are_those_of_flop_counter(causal):
    q, kv = torch.randn(2, 4, 24, 16), torch.randn(2, 4, 24, 16)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        functional.scaled_dot_product_attention(q, kv, kv, is_causal=causal)
    assert work.attention(24, 24, 4, 16, batch=2).flops == counter.get_total_flops()


def test_bytes_are_those_that_the_kernels_move():
    x, weight, gain = torch.randn(64, 512), torch.randn(512, 256), torch.randn(512)
    for run, rule in (
        (lambda: x.clone(), work.copy(64 * 512)),
        (lambda: x + x.sin(), work.pointwise(64 * 512, inputs=2) + work.pointwise(64 * 512)),
        (lambda: x.softmax(-1), work.softmax(64, 512)),
        (lambda: functional.layer_norm(x, [512], gain, gain.clone()), work.layernorm(64, 512) + work.copy(512)),
        (lambda: x @ weight, work.matmul(64, 256, 512, "fp32")),
    ):
        with measure.Traffic() as seen:
            run()
        moved = [(counted.read_bytes, counted.written_bytes) for _, counted in seen.kernels]
        assert tuple(map(sum, zip(*moved, strict=True))) == (rule.read_bytes, rule.written_bytes)


def test_a_roof_is_the_slower_of_its_two_sides():
    roof = Roof(flops_per_s=1000, bytes_per_s=10)
    assert roof.ridge == 100
    light, heavy = Work(500, 5, 5), Work(5000, 5, 5)
    assert (roof.seconds(light), roof.bound(light)) == (1, MEMORY)
    assert (roof.seconds(heavy), roof.bound(heavy)) == (5, COMPUTE)
    assert roof.bound(Work(1000, 5, 5)) == MEMORY  # a tie
    assert (roof.attainable(1), roof.attainable(100), roof.attainable(500)) == (10, 1000, 1000)


def test_the_datasheet_roof_of_an_h100():
    h100 = Roof.of("h100", "bf16")
    assert round(h100.ridge) == 295
    assert h100.seconds(work.matmul(1, 4096, 4096)) == pytest.approx(10.0e-6, rel=0.01)
    assert h100.seconds(work.matmul(4096, 4096, 4096)) == pytest.approx(139e-6, rel=0.01)
    assert h100.bound(work.matmul(326, 14336, 4096)) == COMPUTE
    assert h100.bound(work.matmul(325, 14336, 4096)) == MEMORY


@pytest.mark.parametrize(
    "call",
    [
        lambda: work.copy(0),
        lambda: work.copy(1.5),
        lambda: work.pointwise(4, inputs=0),
        lambda: work.matmul(1, True, 4),
        lambda: work.matmul(1, 2, "4"),
        lambda: work.softmax(-1, 4),
        lambda: work.layernorm(4, 0),
        lambda: work.attention(1, 8, 6, 4, kv_heads=4),
        lambda: work.attention(1, 8, 4, 4, kv_heads=0),
        lambda: work.matmul(1, 2, 3, "bf17"),
        lambda: work.matmul(1, 2, 3, "int8"),
        lambda: work.copy(64, "nf4"),
        lambda: Work(1, 0, 0),
        lambda: Work(-1, 1, 1),
        lambda: Roof(0, 1),
        lambda: Roof(1, -1),
        lambda: Roof(1, float("nan")),
        lambda: Roof.of("h100", "mxfp4"),
        lambda: Roof.of("m4-max", "bf16"),
        lambda: Roof.of("h1000", "bf16"),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(WorkbookError):
        call()
