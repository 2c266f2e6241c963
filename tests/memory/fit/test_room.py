"""Room on a device: three verdicts, a reserve that may be changed, and words that are true by the byte."""

import doctest

import pytest

from helpers.catalog import WorkbookError, device
from helpers.memory.fit import Room, Verdict, reserve, room
from helpers.memory.fit.offers import larger_devices
from helpers.memory.fit.room import HOLES_PERCENT

GIB = 2**30


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(room).failed == 0


def test_what_is_kept_is_what_card_and_ranks_ask_for_unless_somebody_says():
    for name, ranks in (("t4", 1), ("h100", 1), ("h100", 8), ("m4-max", 2)):
        card = device(name)
        assert Room(card, ranks=ranks).reserve_bytes == reserve(card, ranks=ranks).size_bytes
        assert Room(card, 7, ranks).reserve_bytes == 7
    assert "up to 158.00 MiB kept for the CUDA context" in Room(device("t4")).sentence(0)
    assert "beside 158.00 MiB kept" in Room(device("t4"), 158 * 2**20).sentence(0)


@pytest.mark.parametrize("kept", [0, GIB, 1343 * 2**20, 500 * GIB])
def test_every_need_has_the_verdict_that_its_bytes_ask_for(kept):
    card = device("h100")
    here = Room(card, kept)
    most = card.capacity_bytes - kept
    for need in (need for need in (0, 1, most, most + 1, card.capacity_bytes) if 0 <= need <= card.capacity_bytes):
        assert here.verdict(need) is (Verdict.FITS if need + kept <= card.capacity_bytes else Verdict.TIGHT)
    assert here.verdict(card.capacity_bytes + 1) is Verdict.DOES_NOT_FIT
    assert here.for_tensors_bytes >= 0


def test_without_cuda_no_word_of_it():
    assert "its libraries" in Room(device("mi300x")).sentence(0)
    assert "CUDA" not in Room(device("m4-max")).sentence(0)


@pytest.mark.parametrize("kept", [-1, 1.5, True, "512"])
def test_a_reserve_that_is_none(kept):
    with pytest.raises(WorkbookError, match="the reserve is"):
        Room(device("h100"), kept)


def test_larger_devices_keep_the_reserve_too():
    """What fits 24 GB by its bytes alone is offered the next card where 2 GiB of each are kept."""
    need = device("rtx-4090").capacity_bytes - GIB
    bare, kept = ({fit.device for fit in larger_devices(need, GIB, None, reserve)} for reserve in (0, 2 * GIB))
    assert not any(device(name).capacity_bytes < need + 2 * GIB for name in kept)
    assert any(device(name).capacity_bytes < need + 2 * GIB for name in bare)


def test_a_step_that_fits_by_its_tensors_alone_needs_segments_that_grow():
    here = Room(device("rtx-4090"))
    most = here.for_tensors_bytes * 100 // (100 + HOLES_PERCENT)
    assert here.leaves_for_holes(most)
    assert here.holes(most) == ()
    (sentence,) = here.holes(most + 1)
    assert "expandable_segments:True" in sentence
    assert f"{HOLES_PERCENT} %" in sentence
    assert here.holes(here.card.capacity_bytes)
    assert not here.holes(here.card.capacity_bytes + 1)


def test_segments_are_a_matter_of_cuda():
    here = Room(device("m3-ultra-512gb"))
    assert here.holes(here.for_tensors_bytes) == ()
