"""Block formats: bytes as the catalogue counts them, values as torch's own types and as reckoned by hand."""

import pytest
import torch

from helpers.catalog import WorkbookError, number_format
from helpers.techniques.quantization import blocks
from helpers.techniques.quantization.blocks import ENCODERS, Blocks

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def drawn(rows=8, columns=512, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def row(*values, columns=32):
    """One row that begins with `values` and goes on with zeros."""
    return torch.tensor([[*values, *[0.0] * (columns - len(values))]])


@pytest.mark.parametrize("name", ENCODERS)
def test_bytes_are_those_of_the_catalogue(name):
    rule, weight = number_format(name), drawn()
    assert Blocks.of(weight, name).nbytes == rule.storage_bytes(weight.numel(), rows=8) + rule.constant_bytes


def test_fp8_is_torchs_own_cast():
    weight = drawn()
    scale = weight.abs().max() / 448
    assert torch.equal(Blocks.of(weight, "fp8-e4m3").values, (weight / scale).to(torch.float8_e4m3fn).float() * scale)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8"])
def test_exponents_are_torchs_e8m0(name):
    encoded = Blocks.of(drawn() * 10.0 ** torch.arange(-4, 4)[:, None], name)
    exponents = encoded.stored["exponents"]
    assert torch.equal(exponents.view(torch.float8_e8m0fnu).float(), torch.exp2(exponents.float() - 127))
    assert len(exponents.unique()) > 8


def test_four_bit_floats_are_all_there_and_halfway_goes_to_the_even_code():
    levels = torch.tensor(E2M1)
    codes, values = blocks._e2m1(levels)
    assert codes.tolist() == list(range(8))
    assert torch.equal(values, levels)
    _, halfway = blocks._e2m1(torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.9, -2.5, -9.0]))
    assert halfway.tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -2.0, -6.0]


@pytest.mark.parametrize(("name", "dtype"), [("mxfp8", torch.float8_e4m3fn), ("mxfp4", torch.float4_e2m1fn_x2)])
def test_mx_blocks_are_torchaos(name, dtype):
    """With the scale that the specification names, rounded down to a power of two; its other ones round up."""
    pytest.importorskip("torchao")
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    weight = drawn(64) * torch.logspace(-6, 6, 64)[:, None]
    theirs = mx.MXTensor.to_mx(weight, dtype, 32, mx.ScaleCalculationMode.FLOOR)
    ours = Blocks.of(weight, name)
    assert torch.equal(ours.values, theirs.dequantize(torch.float32))
    assert torch.equal(ours.stored["exponents"].flatten(), theirs.scale.view(torch.uint8).flatten())


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        # The largest, 7.5, lies between 4 and 8: the scale is 1, and 7.5 is cut to 6.
        ("mxfp4", row(7.5, -2.4, 0.8, 0.2), [6.0, -2.0, 1.0, 0.0]),
        ("mxfp4", row(0.75, 0.24), [0.75, 0.25]),  # scale 1/8
        # The largest, 500, lies between 256 and 512: the scale is 1, and 500 is cut to 448.
        ("mxfp8", row(500.0, -17.0, 1.0625, 0.001), [448.0, -16.0, 1.0, 0.001953125]),
        ("mxfp8", row(0.75, 0.24), [0.75, 0.234375]),  # scale 1/512
        # The largest of the weight has the scale 448 of 448 x 6, so it is exact; a step is 7.5 / 6 = 1.25.
        ("nvfp4", row(7.5, -2.4, 0.8, 0.2), [7.5, -2.5, 0.625, 0.0]),
        # d = 8 / -8 = -1: codes 0, 8 - 3 and 8 + 2.
        ("q4_0", row(8.0, 3.2, -2.4), [8.0, 3.0, -2.0]),
        ("q4_0", row(-8.0, 7.9), [-8.0, 7.0]),  # on the other side there are seven steps
        ("q8_0", row(127.0, 0.6, -3.4), [127.0, 1.0, -3.0]),
    ],
)
def test_by_hand(name, given, expected):
    assert Blocks.of(given, name).values[0, : len(expected)].tolist() == pytest.approx(expected, rel=1e-3)


def test_q4_k_by_hand():
    """Block 0 has the range -63 to 882, so step 63 and low 63 are both 63 of unit 1; block 1 has steps of 21."""
    weight = row(-63.0, 882.0, 0.0, 95.0, columns=256)
    weight[0, 32:34] = torch.tensor([315.0, 30.0])
    values = Blocks.of(weight, "q4_k").values[0]
    assert values[:4].tolist() == [-63.0, 882.0, 0.0, 126.0]  # 95 is 2.5 steps above -63: to the even code, 3 too many
    assert values[32:34].tolist() == [315.0, 21.0]


@pytest.mark.parametrize("name", ENCODERS)
def test_zeros_stay_zeros_and_errors_stay_small(name):
    assert Blocks.of(torch.zeros(2, 256), name).values.abs().max() == 0
    weight = drawn()
    weight[3] = 0
    found = Blocks.of(weight, name).values
    assert found[3].abs().max() == 0
    error = ((found - weight).norm() / weight.norm()).item()
    assert error < {8: 0.03, 4: 0.13}[number_format(name).value_bits]


@pytest.mark.parametrize(
    ("weight", "name", "reason"),
    [
        (torch.ones(2, 100), "q4_0", "blocks of 32 in rows of 100"),
        (torch.ones(2, 128), "q4_k", "blocks of 256 in rows of 128"),
        (torch.ones(64), "mxfp4", r"shape \[64\]"),
        (torch.full((1, 32), torch.nan), "nvfp4", "NaN"),
        (torch.ones(1, 32) * 1e9, "q8_0", "in FP16"),
        (torch.ones(1, 32), "mxfp5", "mxfp4"),
    ],
)
def test_what_is_refused(weight, name, reason):
    with pytest.raises(WorkbookError, match=reason):
        Blocks.of(weight, name)
