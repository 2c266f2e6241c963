"""Codes equal torch's own casts: every code, every number halfway between two, and a million random FP32."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.catalog.floats import FLOAT_FORMATS, float_format
from helpers.techniques.precision import decode, encode, rounded

TORCH = {
    "bf16": (torch.bfloat16, torch.int16),
    "fp16": (torch.float16, torch.int16),
    "fp8-e4m3": (torch.float8_e4m3fn, torch.uint8),
    "fp8-e5m2": (torch.float8_e5m2, torch.uint8),
}
FORMATS = pytest.mark.parametrize("name", TORCH)


def torch_codes(x, name):
    """What torch makes of `x`, as whole numbers from zero up; past the largest E4M3 it depends on torch's version."""
    dtype, whole = TORCH[name]
    return x.to(dtype).view(whole).long() & float_format(name).codes - 1


def torch_values(codes, name):
    dtype, whole = TORCH[name]
    return codes.to(whole).view(dtype).float()


def every_code(name):
    return torch.arange(float_format(name).codes)


def same_bits(a, b):
    """Zeros with their signs; any NaN is any other, for BF16's differs between torch's kernels for one and for many."""
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(a[~nan].view(torch.int32), b[~nan].view(torch.int32))


def halfway(name):
    """The numbers between each two finite neighbours, exact in FP32, and the ones beside them."""
    fmt = float_format(name)
    positive = decode(torch.arange(fmt.largest_code + 1), fmt).double()
    middles = ((positive[:-1] + positive[1:]) / 2).float()
    up, down = (middles.nextafter(torch.tensor(end)) for end in (torch.inf, -torch.inf))
    some = torch.cat([middles, up, down])
    return torch.cat([some, -some])


def random_bits(count=1_000_000, seed=0):
    """Every exponent is as likely as another: subnormals, infinities and NaN are among them."""
    drawn = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(seed))
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0**-149, 2.0**-126, 3.4e38, 65504, 65519.99, 65520, 65536]
    return torch.cat([drawn.to(torch.int32).view(torch.float32), torch.tensor(special)])


def in_range(x, name):
    """E4M3 beyond 448 is tested apart."""
    return x[~(x.abs() > 464)] if name == "fp8-e4m3" else x


@FORMATS
def test_every_code_decodes_as_torch_says(name):
    assert same_bits(decode(every_code(name), name), torch_values(every_code(name), name))


@FORMATS
def test_every_number_gets_its_own_code_back(name):
    codes, fmt = every_code(name), float_format(name)
    values = decode(codes, name)
    finite = ~values.isnan()
    assert torch.equal(encode(values, name)[finite], codes[finite])
    assert (encode(values, name)[~finite] == fmt.nan_code).all()


@FORMATS
def test_halfway_goes_to_the_even_code_as_torchs(name):
    x = halfway(name)
    assert x.unique().numel() == x.numel()  # the neighbours of a middle are no middles
    assert torch.equal(encode(x, name), torch_codes(x, name))


@FORMATS
def test_a_million_random_numbers(name):
    x = in_range(random_bits(), name)
    assert same_bits(rounded(x, name), x.to(TORCH[name][0]).float())


def test_subnormals_of_fp32_itself():
    x = random_bits()
    assert same_bits(rounded(x, "fp32"), x)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
def test_tensors_and_single_numbers_agree(name, overflow):
    """The catalogue's exact arithmetic, which knows nothing of bits, on numbers of every size."""
    fmt = float_format(name)
    x = torch.cat([random_bits(500, seed=1), halfway(name)[::97]])
    assert encode(x, name, overflow).tolist() == [fmt.encode(value, overflow) for value in x.tolist()]
    codes = every_code(name)[:: max(1, fmt.codes // 500)]
    assert same_bits(decode(codes, name), torch.tensor([fmt.decode(code) for code in codes.tolist()]))


def test_e4m3_beyond_its_largest():
    """torch 2.11 makes NaN of all these, torch 2.13 saturates: its cast is one of ours, and is the same for all."""
    x = torch.tensor([464.001, 480.0, 1e9, torch.inf, -465.0, -torch.inf])
    assert rounded(x, "fp8-e4m3").isnan().all()
    assert rounded(x, "fp8-e4m3", "saturate").tolist() == [448.0] * 4 + [-448.0] * 2
    assert any(torch.equal(torch_codes(x, "fp8-e4m3"), encode(x, "fp8-e4m3", how)) for how in ("ieee", "saturate"))


def test_saturating_leaves_nan_and_all_that_fits():
    x = random_bits(20_000)
    found, fits = rounded(x, "fp16", "saturate"), x.abs() <= 65504
    assert same_bits(found[fits], rounded(x, "fp16")[fits])
    assert torch.equal(found.isnan(), x.isnan())
    assert found[~x.isnan()].abs().max() == 65504


def test_four_bits_have_no_specials():
    levels = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert decode(torch.arange(16), "fp4-e2m1").tolist() == levels + [-level for level in levels]
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -2.5, 7.0, torch.inf, -torch.inf, torch.nan])
    assert rounded(x, "fp4-e2m1").tolist() == [0, 1, 1, 2, 2, 4, 4, -2, 6, 6, -6, 6]


def test_tf32_keeps_ten_bits_of_bf16s_range():
    x = random_bits(20_000)
    found = rounded(x, "tf32")
    finite = found.isfinite()
    assert (found[finite].view(torch.int32) & 0x1FFF == 0).all()
    normal = finite & (x.abs() >= 2.0**-126)
    assert ((found - x).abs()[normal] <= x.abs()[normal] * 2.0**-11).all()


def test_narrow_inputs_and_views_need_no_copy_by_the_caller():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(encode(x.T, "fp16"), encode(x, "fp16").T)
    assert torch.equal(rounded(x.bfloat16(), "fp8-e5m2"), x.bfloat16().to(torch.float8_e5m2).float())
    assert rounded(x[:0], "bf16").shape == (0, 8)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: encode(torch.ones(2), "fp17"), "fp17"),
        (lambda: encode(torch.ones(2), "fp16", "clip"), "clip"),
        (lambda: encode(torch.ones(2, dtype=torch.float64), "fp16"), "float64"),
        (lambda: encode(torch.ones(2, dtype=torch.int64), "fp16"), "int64"),
        (lambda: encode(torch.ones(2), "e8m0"), "e8m0"),
        (lambda: decode(torch.ones(2), "fp16"), "float32"),
        (lambda: decode(torch.tensor([256]), "fp8-e4m3"), "256"),
        (lambda: decode(torch.tensor([-1], dtype=torch.int16), "fp16"), "-1"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()


def test_all_formats_of_values_round_trip():
    for name, fmt in FLOAT_FORMATS.items():
        if fmt.sign_bits:
            codes = torch.arange(0, fmt.largest_code + 1, max(1, fmt.codes // 3000))
            assert torch.equal(encode(decode(codes, name), name), codes), name
