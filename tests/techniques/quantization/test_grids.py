"""A grid rounds to its nearest level, keeps zero, and refuses what it cannot round."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.techniques.quantization.grids import Grid

GROUPS = (4, 16, "row", "tensor")
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}  # of a scale in each format
SMALLEST = {dtype: torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps for dtype in ROUNDING}

grids = st.builds(
    Grid,
    bits=st.integers(2, 8),
    group=st.sampled_from(GROUPS),
    symmetric=st.booleans(),
    scale_dtype=st.sampled_from(sorted(ROUNDING, key=str)),
)


@st.composite
def weights(draw):
    """Rows of sixteen, of very unlike sizes, shifted, with zeros and perhaps a constant row or an outlier."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(draw(st.integers(1, 5)), 16, generator=generator) * 10.0 ** draw(st.integers(-3, 2))
    weight = weight + draw(st.sampled_from([0.0, 5.0, -5.0]))
    weight[torch.rand(weight.shape, generator=generator) < 0.1] = 0
    weight[0] = draw(st.sampled_from([weight[0], torch.zeros(16), torch.full((16,), 0.3)]))
    weight[-1, 3] *= draw(st.sampled_from([1.0, 30.0]))
    return weight


@settings(max_examples=200)
@given(grid=grids, weight=weights())
def test_the_nearest_level_within_half_a_step(grid, weight):
    scales = grid.scales(weight)
    codes = grid.codes(weight, scales)
    values = grid.values(codes, scales)
    assert int(codes.min()) >= (1 if grid.symmetric else 0)
    assert int(codes.max()) <= grid.top
    step = scales.scale.float()[..., None]
    error = (grid.blocks(weight) - grid.blocks(values)).abs()
    # A scale stored in few bits moves the outermost level by its own rounding, times the codes to there.
    half_ulp = torch.maximum(step * ROUNDING[grid.scale_dtype], torch.tensor(SMALLEST[grid.scale_dtype]) / 2)
    slack = half_ulp * grid.top + grid.blocks(weight).abs() * 1e-6
    assert (error <= step / 2 + slack).all()
    for moved in (codes.int() - 1, codes.int() + 1):  # no other level of the grid is nearer
        fits = (moved >= (1 if grid.symmetric else 0)) & (moved <= grid.top)
        other = (grid.blocks(weight) - grid.blocks(grid.values(moved, scales))).abs()
        assert (other >= error - slack)[grid.blocks(fits)].all()


@settings(max_examples=60)
@given(grid=grids, weight=weights())
def test_zero_stays_zero_and_rounding_twice_changes_nothing(grid, weight):
    weight[0, 5] = 0
    rounded = grid.round(weight)
    assert rounded[0, 5] == 0
    assert rounded.dtype == weight.dtype
    scales = grid.scales(weight)
    assert torch.equal(grid.values(grid.codes(rounded, scales), scales), rounded)


@pytest.mark.parametrize(("group", "count"), [(2, (3, 4)), (8, (3, 1)), ("row", (3, 1)), ("tensor", (1, 1))])
def test_how_many_share_a_scale(group, count):
    weight = torch.arange(24.0).reshape(3, 8) - 11
    scales = Grid(4, group, symmetric=True).scales(weight)
    assert tuple(scales.scale.shape) == tuple(scales.zero.shape) == count
    expected = weight.abs().reshape(*count, -1).amax(-1) / 7
    assert torch.allclose(scales.scale, expected)


@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_levels_are_whole_multiples_both_ways(bits):
    most = 2 ** (bits - 1) - 1
    weight = torch.arange(-most, most + 1.0)[None]
    grid = Grid(bits, "row", symmetric=True)
    assert torch.equal(grid.round(weight), weight)
    assert grid.codes(weight)[0].tolist() == list(range(1, 2**bits))


def test_the_range_of_an_asymmetric_grid_reaches_zero_from_either_side():
    grid = Grid(4, "row")
    weight = torch.tensor([[15.0, 1.0, 3.0], [-15.0, -1.0, -3.0], [-5.0, 10.0, 0.0]])
    assert torch.equal(grid.round(weight), weight)
    assert grid.scales(weight).zero.squeeze(1).tolist() == [0, 15, 5]


def test_the_example_of_the_docstring():
    grid = Grid(bits=4, group=2, symmetric=True)
    found = grid.round(torch.tensor([[7.0, 3.2], [-0.7, 0.26]]))
    assert torch.allclose(found, torch.tensor([[7.0, 3.0], [-0.7, 0.3]]))


def test_scales_too_small_for_their_format_leave_zeros():
    assert torch.equal(Grid(4, "row", scale_dtype=torch.float16).round(torch.full((1, 8), 1e-8)), torch.zeros(1, 8))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_weight_keeps_its_type(dtype):
    assert Grid().round(torch.randn(4, 64).to(dtype)).dtype == dtype


def test_scales_of_one_group():
    scales = Grid(4, 16).scales(torch.randn(3, 64))
    assert torch.equal(scales[2].scale, scales.scale[:, 2:3])
    assert torch.equal(scales[2].zero, scales.zero[:, 2:3])


def holding(value):
    weight = torch.randn(4, 64)
    weight[1, 2] = value
    return weight


@pytest.mark.parametrize(
    ("weight", "group", "what"),
    [
        (holding(math.nan), 64, "1 of 256 weights are NaN or infinite"),
        (holding(math.inf), "tensor", "1 of 256 weights are NaN or infinite"),
        (torch.ones(4, 64, dtype=torch.int32), 64, "a weight of type torch.int32"),
        ([[1.0]], 64, "a weight of type list"),
        (torch.randn(4, 32), 64, "groups of 64 in rows of 32 values"),
        (torch.randn(4, 96), 64, "groups of 64 in rows of 96 values"),
        (torch.randn(64), 64, "a weight of shape [64]"),
        (torch.randn(2, 4, 64), 64, "a weight of shape [2, 4, 64]"),
        (torch.empty(0, 64), 64, "a weight of shape [0, 64]"),
        (torch.empty(4, 0), "row", "a weight of shape [4, 0]"),
        (torch.full((4, 64), 3e38), 64, None),  # the range, 3e38, still fits
        (torch.tensor([[3e38, -3e38]]), "row", "a scale of inf in torch.float32"),
    ],
)
def test_bad_weights(weight, group, what):
    if what is None:
        assert Grid(4, group).round(weight).isfinite().all()
        return
    with pytest.raises(WorkbookError) as error:
        Grid(4, group).scales(weight)
    assert error.value.what == what


def test_bad_weights_are_found_with_scales_from_elsewhere():
    with pytest.raises(WorkbookError, match="NaN or infinite"):
        Grid().codes(holding(math.nan), Grid().scales(torch.randn(4, 64)))


def test_a_scale_beyond_half_precision():
    with pytest.raises(WorkbookError, match=r"a scale of 66666.7 in torch.float16"):
        Grid(4, 64, scale_dtype=torch.float16).scales(torch.full((1, 64), 1e6))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"bits": 1}, "bits is 1"),
        ({"bits": 9}, "bits is 9"),
        ({"bits": 4.0}, "bits is 4.0"),
        ({"bits": True}, "bits is True"),
        ({"bits": "4"}, "bits is '4'"),
        ({"group": 0}, "group is 0"),
        ({"group": True}, "group is True"),
        ({"group": "column"}, "group is 'column'"),
        ({"group": 64.0}, "group is 64.0"),
        ({"scale_dtype": torch.int8}, "scale_dtype is torch.int8"),
    ],
)
def test_bad_grids(arguments, what):
    with pytest.raises(WorkbookError) as error:
        Grid(**arguments)
    assert error.value.what == what
