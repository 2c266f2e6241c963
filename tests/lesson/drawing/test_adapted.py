"""The drawing of a LoRA layer: its bars are what the instruments count, on one scale, and nothing leaves the card."""

from dataclasses import replace

import pytest

from helpers.catalog import Adapter, WorkbookError
from helpers.lesson import job
from helpers.lesson.drawing.adapted import adapted_linear
from helpers.lesson.drawing.marks import Box
from helpers.memory import activations

QLORA = replace(job.SETUP, adapter=Adapter(targets="all-linear", base="nf4-dq"))
LORA = replace(job.SETUP, precision="bf16", adapter=Adapter(targets="all-linear", rank=8))
VALUES = 16 * (4096 + 14336)


def bars(card):
    """Width in px by part, of the bars below the drawing, the blue ones added up."""
    sizes: dict[str, float] = {}
    for mark in card.marks:
        if isinstance(mark, Box) and mark.kind == "part":
            sizes[mark.part] = sizes.get(mark.part, 0) + mark.width
    return sizes


def test_bars_are_what_is_stored_trained_and_kept():
    sizes = bars(adapted_linear("A layer", QLORA))
    kept = activations.saved_by_layer(QLORA, QLORA.model.layers[0])["down projection: their product"]
    assert sizes["optimizer"] / sizes["activations"] == pytest.approx(8 * VALUES / kept)
    assert sizes["optimizer"] == pytest.approx(2 * sizes["gradients"])
    packed = 4096 * 14336 * 4.127 / 8
    assert sizes["parameters"] / sizes["gradients"] == pytest.approx((packed + 4 * VALUES) / (4 * VALUES), rel=1e-3)


def test_the_words_tell_the_sums():
    assert "W, frozen in 4 bits 28.89 MiB; A and B: 294,912 trained 4.50 MiB; kept" in adapted_linear("One", QLORA).alt
    assert "W, frozen 112.00 MiB; A and B: 147,456 trained 2.25 MiB" in adapted_linear("One", LORA).alt


@pytest.mark.parametrize("setup", [QLORA, LORA])
def test_boxes_stay_on_the_card(setup):
    card = adapted_linear("A layer", setup)
    boxes = [mark for mark in card.marks if isinstance(mark, Box)]
    assert max(box.x + box.width for box in boxes) <= 760
    assert max(box.y + box.height for box in boxes) <= card.height


def test_without_adapters_there_is_nothing_to_draw():
    with pytest.raises(WorkbookError, match="adapters"):
        adapted_linear("A layer", job.SETUP)
