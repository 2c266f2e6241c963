"""NF4 equals bitsandbytes' to the last bit, on random and on hostile tensors."""

import dataclasses
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.catalog.formats import number_format
from helpers.techniques.quantization import nf4
from helpers.techniques.quantization.nf4 import NF4_LEVELS, NF4Tensor, compress, expand, normal_levels
from helpers.techniques.quantization.packing import unpack

LEVELS = torch.tensor(NF4_LEVELS)
EVEN = tuple(torch.linspace(-1, 1, 16).tolist())
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def functional():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    found = pytest.importorskip("bitsandbytes").functional
    with torch.compiler.set_stance("force_eager"):  # it compiles its path for odd shapes: half a minute of C++
        yield found


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_outlier():
    weight = normal(64, 192)
    weight[3, 17] = 1e4
    return weight


def sizes_apart():
    return normal(64, 64) * 10.0 ** torch.randint(-30, 30, (64, 64), generator=torch.Generator().manual_seed(1))


CASES = {
    "random": normal(192, 512),
    "one outlier": one_outlier(),
    "constant": torch.full((32, 64), 0.3),
    "negative constant": torch.full((32, 64), -0.3),
    "zeros": torch.zeros(32, 64),
    "zeros in the tail": torch.zeros(3, 50),
    "a tail": normal(10, 130),
    "a tail shorter than a block": normal(1, 6),
    "odd": normal(7, 33),
    "a single value": normal(1, 1),
    "denormals": normal(16, 64) * 1e-39,
    "nearly denormal": normal(16, 64) * 1e-37,
    "near the largest float": normal(16, 64) * 3e36,
    "sizes 60 decades apart": sizes_apart(),
    "on the levels": LEVELS.repeat(8, 8),
    "halfway between levels": ((LEVELS[:-1] + LEVELS[1:]) / 2).repeat(64)[:960].reshape(15, 64),
}


def finite(dtype):
    return [(name, dtype) for name, weight in CASES.items() if weight.to(dtype).isfinite().all()]


EACH = pytest.mark.parametrize(("name", "dtype"), [case for dtype in DTYPES for case in finite(dtype)])


def without_denormals(values):
    """bitsandbytes on a CPU with BF16 instructions decodes what BF16 holds only as a denormal to 0."""
    small = values.abs() < torch.finfo(torch.float32).tiny
    return values.masked_fill(small, 0) if values.dtype == torch.bfloat16 else values


@EACH
def test_codes_scales_and_values_equal_bitsandbytes(functional, name, dtype):
    weight = CASES[name].to(dtype)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4")
    ours = NF4Tensor.of(weight, double_quant=False)
    assert torch.equal(ours.packed, packed.flatten())
    assert torch.equal(ours.absmax, state.absmax)
    values, theirs = ours.dequantize(), functional.dequantize_4bit(packed, state)
    assert values.dtype == theirs.dtype == dtype
    assert torch.equal(without_denormals(values), without_denormals(theirs))


@EACH
def test_double_quantization(functional, name, dtype):
    """Same mean, same superscales; bitsandbytes' own codes decode to its scales and its weight to the last bit."""
    weight = CASES[name].to(dtype)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    ours = NF4Tensor.of(weight)
    assert torch.equal(ours.packed, packed.flatten())
    assert torch.equal(ours.superscale, state.state2.absmax)
    assert torch.equal(ours.offset, state.offset)
    theirs = dataclasses.replace(ours, absmax=state.absmax)
    scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    assert torch.equal(theirs.scales(), scales)
    decoded = functional.dequantize_4bit(packed, state)
    assert torch.equal(without_denormals(theirs.dequantize()), without_denormals(decoded))


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), rows=st.integers(1, 9), columns=st.integers(1, 70), exponent=st.integers(-9, 4))
def test_random_shapes_equal_bitsandbytes(functional, seed, rows, columns, exponent):
    weight = normal(rows, columns, seed=seed) * 10.0**exponent
    packed, state = functional.quantize_4bit(weight, quant_type="nf4")
    ours = NF4Tensor.of(weight, double_quant=False)
    assert torch.equal(ours.packed, packed.flatten())
    assert torch.equal(ours.absmax, state.absmax)
    if columns % 64 == 0 or columns % 16:  # else its CPU kernel takes a neighbour block's scale: 48, 96, 160 …
        assert torch.equal(ours.dequantize(), functional.dequantize_4bit(packed, state).reshape(rows, columns))


@pytest.mark.parametrize("count", [64, 63])
def test_values_on_the_border_between_codes(functional, count):
    """Where a whole block's reciprocal and a tail's division round apart, the code tells which was used."""
    middles = ((LEVELS[:-1] + LEVELS[1:]) / 2).repeat(5)[: count - 1]
    for absmax in normal(400).abs() + 0.01:
        weight = torch.cat([torch.ones(1), middles])[None] * absmax
        packed, _ = functional.quantize_4bit(weight, quant_type="nf4")
        assert torch.equal(NF4Tensor.of(weight, double_quant=False).packed, packed.flatten())


def test_every_code_decodes_to_its_level_times_its_scale():
    """Against bitsandbytes only shapes that its kernel decodes rightly can be compared; this holds for all."""
    for shape in ((5, 16), (7, 48), (3, 96), (9, 160)):
        kept = NF4Tensor.of(normal(*shape), double_quant=False)
        codes = unpack(kept.packed, 4, math.prod(shape))
        expected = [NF4_LEVELS[code] * float(kept.absmax[i // 64]) for i, code in enumerate(codes.tolist())]
        assert torch.allclose(kept.dequantize().flatten(), torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.parametrize("block", nf4.BLOCKS)
def test_every_block_size(functional, block):
    weight = normal(70, 100)
    packed, state = functional.quantize_4bit(weight, blocksize=block, quant_type="nf4")
    ours = NF4Tensor.of(weight, double_quant=False, block=block)
    assert torch.equal(ours.packed, packed.flatten())
    assert torch.equal(ours.absmax, state.absmax)
    assert torch.equal(ours.dequantize(), functional.dequantize_4bit(packed, state))


def test_scale_codes_are_the_nearest_and_theirs_a_neighbour(functional):
    """Their table of 65,536 entries moves a code by one in 2 to 3 of a thousand blocks, near zero even by two."""
    absmax = normal(2**16, 64).abs().amax(-1)
    codes, superscale, offset = compress(absmax)
    theirs, _ = functional.quantize_blockwise(absmax - offset, blocksize=256)
    apart = (codes.int() - theirs.int()).abs()
    assert 0.0005 < (apart > 0).float().mean() < 0.005
    assert apart.max() <= 2
    error, other = ((expand(c, superscale, offset) - absmax).abs() for c in (codes, theirs))
    assert (error <= other + 1e-6).all()
    assert (other - error).max() < superscale.max() / 2**15


def test_the_levels_are_quantiles_of_a_normal(functional):
    assert (normal_levels() - LEVELS).abs().max() < 2e-7
    assert torch.equal(functional.get_4bit_type("nf4", device="cpu"), LEVELS)
    assert LEVELS[nf4.ZERO_CODE] == 0
    values = normal(2**18)
    values = values[values.abs() < 1.85] / 1.85  # the outermost quantile becomes 1
    used, even = (torch.bincount(nf4.nearest(values, levels).int())[1:-1] for levels in (NF4_LEVELS, EVEN))
    assert used.max() < 1.3 * used.min()
    assert even.max() > 3 * even.min()


def test_the_dynamic_type(functional):
    assert torch.equal(torch.tensor(nf4.dynamic_levels()), functional.create_dynamic_map())


@pytest.mark.parametrize("shape", [(128, 192), (100, 130), (7, 33)])
@pytest.mark.parametrize("double_quant", [False, True])
def test_bytes_are_those_of_the_catalogue(shape, double_quant):
    name, constants = ("nf4-dq", 4) if double_quant else ("nf4", 0)  # the offset is one FP32 for the whole tensor
    kept = NF4Tensor.of(torch.randn(shape), double_quant)
    assert kept.nbytes == number_format(name).storage_bytes(math.prod(shape)) + constants


@pytest.mark.parametrize("shape", [(100,), (3, 4, 50)])
def test_any_shape(shape):
    assert tuple(NF4Tensor.of(torch.randn(shape)).dequantize().shape) == shape


@pytest.mark.parametrize(
    ("weight", "arguments", "what"),
    [
        (torch.tensor([[1.0, math.nan]]), {}, "1 of 2 weights are NaN or infinite"),
        (torch.tensor([[1.0, -math.inf]]), {}, "1 of 2 weights are NaN or infinite"),
        (torch.ones(2, 64, dtype=torch.int8), {}, "a weight of type torch.int8"),
        (torch.empty(0, 64), {}, "0 values in blocks of 64"),
        (torch.ones(2, 64), {"block": 48}, "128 values in blocks of 48"),
        (torch.ones(2, 64), {"block": 0}, "128 values in blocks of 0"),
        (torch.full((64, 64), 3e38), {}, "absmaxes whose mean is beyond FP32"),
    ],
)
def test_bad_input(weight, arguments, what):
    with pytest.raises(WorkbookError) as error:
        NF4Tensor.of(weight, **arguments)
    assert error.value.what == what


@pytest.mark.parametrize(("double_quant", "name"), [(False, "absmax"), (True, "superscale"), (True, "offset")])
def test_scales_cast_after_quantizing_are_refused(double_quant, name):
    kept = NF4Tensor.of(torch.randn(4, 64), double_quant)
    with pytest.raises(WorkbookError, match="before quantizing, not after"):
        dataclasses.replace(kept, **{name: getattr(kept, name).bfloat16()})
