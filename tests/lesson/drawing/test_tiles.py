"""Maps of visited tiles: a square for each tile of the mask, and the counts in words."""

from helpers.lesson.drawing import tiles
from helpers.lesson.drawing.marks import Box
from helpers.techniques.attention import Causal, Window

MASKS = {"causal": Causal(), "window of 512": Window(512)}


def squares(card, fill):
    return sum(isinstance(mark, Box) and mark.fill == fill for mark in card.marks) - 1  # one in the legend


def test_each_visited_tile_is_one_square_and_whole_ones_are_darker():
    card = tiles.visited("Tiles", MASKS, tokens=4096)
    for fill, whole in ((tiles.WHOLE, True), (tiles.PARTLY, False)):
        expected = sum(tile.whole == whole for mask in MASKS.values() for tile in mask.tiles(4096, 4096))
        assert squares(card, fill) == expected


def test_the_words_count_them():
    card = tiles.visited("Tiles", MASKS, tokens=4096)
    assert "causal: 528 of 1,024 tiles, 496 of them whole" in card.alt
    assert "window of 512: 150 of 1,024 tiles, 90 of them whole" in card.alt


def test_squares_stay_on_the_card():
    card = tiles.visited("Tiles", MASKS, tokens=1000, tile=300)
    for mark in card.marks:
        if isinstance(mark, Box):
            assert mark.x + mark.width <= 760
            assert mark.y + mark.height <= card.height
