"""The drawing of a block of weights: codes and values are those of the textbook, bars are bytes, nothing leaves it."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.lesson.drawing.marks import Box
from helpers.lesson.drawing.quantized import AbsmaxBlock, quantized_block
from helpers.techniques.quantization import Grid

WEIGHTS = (0.31, -0.08, 0.02, -0.44, 0.17, 0.09, -0.21, 0.05)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_codes_and_values_are_those_of_the_grid(bits):
    weight = torch.tensor([WEIGHTS], dtype=torch.float64)
    grid, block = Grid(bits, "row", symmetric=True), AbsmaxBlock(WEIGHTS, bits)
    assert torch.tensor([block.values]) == pytest.approx(grid.round(weight), rel=1e-5)
    assert max(map(abs, block.codes)) == 2 ** (bits - 1) - 1


def test_bars_are_bytes_on_one_scale():
    boxes = [mark for mark in quantized_block("A block", WEIGHTS).marks if isinstance(mark, Box)]
    px = {box.part: box.width for box in boxes if box.kind == "part"}
    assert px["kept"] / px["quantized"] == pytest.approx(128 / 32)
    assert px["quantized"] / px["scales"] == pytest.approx(32 / 4)
    assert sum(box.kind == "cell" for box in boxes) == 4 * len(WEIGHTS)


@pytest.mark.parametrize("count", [1, 4, 10])
def test_boxes_stay_on_the_card_and_the_words_tell_the_codes(count):
    weights = (-3.5, 1.0, *[0.5] * 8)[:count]
    card = quantized_block("A block", weights, block=32)
    boxes = [mark for mark in card.marks if isinstance(mark, Box)]
    assert max(box.x + box.width for box in boxes) <= 760
    assert max(box.y + box.height for box in boxes) <= card.height
    assert "codes are -7" in card.alt
    assert "32 weights take 64 bytes in 16 bits, and 16 + 4" in card.alt


@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (1.0,) * 11])
def test_what_cannot_be_drawn_is_refused(weights):
    with pytest.raises(WorkbookError, match="1 to 10"):
        quantized_block("A block", weights)
