"""Packed keys and values: what they decode to, which tokens are packed, and why keys want a scale per channel."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques import kv_cache as kv
from helpers.techniques.kv_cache.quantized import PackedStates
from helpers.techniques.quantization import Grid
from tests.techniques.kv_cache.models import tiny

ROWS, HEADS, WIDTH = 2, 3, 8


def states(tokens, seed=0, width=WIDTH):
    return torch.randn(ROWS, HEADS, tokens, width, generator=torch.Generator().manual_seed(seed))


def rounded_by_hand(group, bits):
    """One group of values, on 2**bits levels from its minimum to its maximum."""
    low = group.min().half().float()
    step = ((group.max() - low) / (2**bits - 1)).half().float()
    return low + ((group - low) / step).round().clamp(0, 2**bits - 1) * step


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_per_channel_is_one_scale_for_a_channel_of_a_group_of_tokens(bits):
    keys = states(12)
    found = PackedStates.of(keys, bits, "channel", 4).dequantize()
    for row, head, channel, first in [(0, 0, 0, 0), (1, 2, 7, 8), (0, 1, 3, 4)]:
        group = keys[row, head, first : first + 4, channel]
        assert torch.equal(found[row, head, first : first + 4, channel], rounded_by_hand(group, bits))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_per_token_is_one_scale_for_some_channels_of_a_token(bits):
    values = states(5)
    found = PackedStates.of(values, bits, "token", 4).dequantize()
    for row, head, token, first in [(0, 0, 0, 0), (1, 2, 4, 4), (0, 1, 3, 0)]:
        group = values[row, head, token, first : first + 4]
        assert torch.equal(found[row, head, token, first : first + 4], rounded_by_hand(group, bits))


@pytest.mark.parametrize(("bits", "error"), [(2, 1 / 6), (4, 1 / 30), (8, 1 / 510)])
def test_no_value_moves_by_more_than_half_a_step(bits, error):
    keys = states(64)
    groups = keys.unflatten(2, (-1, 32))
    reach = (groups.amax(3) - groups.amin(3)).amax()
    moved = (PackedStates.of(keys, bits, "channel", 32).dequantize() - keys).abs().max()
    assert error * reach * 0.5 < moved <= error * reach * 1.01 + 2e-3  # FP16 scales


def test_real_bytes():
    packed = PackedStates.of(states(32), 2, "channel", 32)
    assert packed.packed.nbytes == ROWS * HEADS * 32 * WIDTH // 4
    assert packed.nbytes == packed.packed.nbytes + ROWS * HEADS * WIDTH * 4


def test_a_channel_far_from_zero_keeps_its_levels():
    """KIVI's rule against a grid that always has a level at zero."""
    keys = states(32) + 10
    ours = (PackedStates.of(keys, 2, "channel", 32).dequantize() - keys).abs().mean()
    flat = keys.transpose(2, 3).reshape(-1, 32)
    grid = (Grid(bits=2, group="row").round(flat) - flat).abs().mean()
    assert ours < grid / 2


def test_constant_groups_are_exact():
    keys = torch.full((1, 1, 32, 4), -3.5)
    assert torch.equal(PackedStates.of(keys, 2, "channel", 32).dequantize(), keys)
    assert torch.equal(PackedStates.of(keys * 0, 4, "token", 4).dequantize(), keys * 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e6])
def test_what_fp16_scales_cannot_reach(bad):
    keys = states(32)
    keys[0, 0, 3, 2] = bad
    with pytest.raises(WorkbookError, match="FP16 scales"):
        PackedStates.of(keys, 4, "channel", 32)


@pytest.mark.parametrize("per", ["channel", "token"])
def test_the_tail_is_as_it_came_and_what_is_packed_stays(per):
    layer, keys = kv.QuantizedLayer(4, per, group=8, residual=6), states(60)
    old = None
    for at in range(60):
        found, _ = layer.update(keys[:, :, at : at + 1], keys[:, :, at : at + 1])
        packed = kv.quantized_tokens(at, 8, 6)  # of those that came before this one
        assert torch.equal(found[:, :, packed:], keys[:, :, packed : at + 1])
        assert found.shape[2] == at + 1
        assert min(at + 1, 6) <= layer.keys.shape[2] <= 6 + 8 - 1
        if old is not None:
            assert torch.equal(found[:, :, : old.shape[2]], old)
        old = found[:, :, :packed].clone()
    assert (kv.quantized_tokens(60, 8, 6), layer.keys.shape[2]) == (48, 12)


def test_however_the_tokens_come_the_same_are_packed():
    keys = states(60)
    one, many = (kv.QuantizedLayer(2, group=8, residual=4) for _ in range(2))
    one.update(keys, keys)
    for piece in keys.split([1, 30, 2, 27], 2):
        many.update(piece, piece)
    for layer in (one, many):
        layer.found, _ = layer.update(keys[:, :, :1], keys[:, :, :1])
    assert torch.equal(one.found, many.found)


def test_bf16_comes_back_as_bf16():
    layer, keys = kv.QuantizedLayer(8, group=8, residual=0), states(17).bfloat16()
    layer.update(keys, keys)
    found, values = layer.update(keys[:, :, :1], keys[:, :, :1])
    assert found.dtype == values.dtype == torch.bfloat16
    assert (found[:, :, :17] - keys).abs().max() < 0.05


def test_a_group_that_does_not_divide_the_head_is_the_whole_head():
    layer, odd = kv.QuantizedLayer(4, "token", group=32, residual=0), states(32, width=24)
    layer.update(odd, odd)
    assert layer.packed[0][0].low.numel() == ROWS * HEADS * 32
    assert kv.cache_of(tiny("qwen3-head-dim"), "int4").layers[0].group == 32
