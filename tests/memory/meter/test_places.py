"""A meter with an account for each place."""

import pytest
import torch

from helpers.memory.meter.places import Place, PlacesMeter, at, on_disk, pinned_bytes

MIB = 2**20


def mib(count: float = 1) -> torch.Tensor:
    return torch.empty(int(count * MIB), dtype=torch.uint8)


def test_what_leaves_the_device_is_a_bill_on_the_host():
    with PlacesMeter() as meter:
        here = mib(2)
        with at(Place.HOST):
            there = torch.empty_like(here).copy_(here)
        assert (meter.bytes_in(Place.DEVICE), meter.bytes_in(Place.HOST)) == (2 * MIB, 2 * MIB)
        del here
        assert (meter.bytes_in(Place.DEVICE), meter.bytes_in(Place.HOST)) == (0, 2 * MIB)
        back = torch.empty_like(there).copy_(there)
    assert meter.peaks() == {Place.DEVICE: 2 * MIB, Place.HOST: 2 * MIB, Place.PAGES: 0, Place.DISK: 0}
    assert (meter.peak_bytes, meter.live_bytes) == (4 * MIB, back.nbytes + there.nbytes)


def test_a_view_is_where_its_storage_is():
    with PlacesMeter() as meter:
        with at(Place.HOST):
            there = mib()
        half = there[: MIB // 2] * 1
        with at(Place.HOST):
            there.view(2, -1)
        assert (meter.bytes_in(Place.DEVICE), meter.bytes_in(Place.HOST)) == (half.nbytes, MIB)


def test_places_nest_and_end():
    with PlacesMeter() as meter, at(Place.HOST):
        with at(Place.PAGES):
            pages = mib()
        host = mib()
        assert [meter.bytes_in(place) for place in (Place.PAGES, Place.HOST)] == [pages.nbytes, host.nbytes]
    assert meter.place_of(mib().untyped_storage()) == (Place.HOST if torch.cuda.is_available() else Place.DEVICE)


def test_adopted_tensors_are_counted_where_they_are():
    pages, weights = mib(3), mib()
    with PlacesMeter() as meter:
        meter.adopt([pages], "weights", Place.PAGES)
        meter.adopt([weights], "weights", Place.DEVICE)
        assert [meter.bytes_in(place) for place in Place] == [MIB, 0, 3 * MIB, 0]
        assert meter.block_of(weights).category == "weights"


def test_the_peak_of_a_place_is_its_own_not_that_of_the_sum():
    with PlacesMeter() as meter:
        here = mib(5)
        del here
        with at(Place.HOST):
            there = mib(3)
    assert (meter.peak_in(Place.DEVICE), meter.peak_in(Place.HOST)) == (5 * MIB, there.nbytes)


@pytest.mark.parametrize("place", [Place.DEVICE, Place.HOST])
def test_a_wall_for_each_place(place):
    with PlacesMeter({place: 2 * MIB}) as meter:
        with at(Place.DEVICE if place is Place.HOST else Place.HOST):
            elsewhere = mib(4)
        with at(place):
            kept = mib()
            with pytest.raises(torch.OutOfMemoryError, match=rf"^{place}: .*2\.00 MiB is|1\.00 MiB is free"):
                mib(1.5)
            assert meter.bytes_in(place) == kept.nbytes
    assert elsewhere.nbytes == 4 * MIB


def test_a_file_counts_as_long_as_it_is_until_it_is_gone(tmp_path):
    path = tmp_path / "weights"
    with PlacesMeter() as meter:
        path.write_bytes(b"x" * 1001)
        on_disk(path)
        assert meter.bytes_in(Place.DISK) == 1001
        path.write_bytes(b"x" * 400)
        on_disk(path)
        assert meter.bytes_in(Place.DISK) == 400
        path.unlink()
        on_disk(path)
        assert (meter.bytes_in(Place.DISK), meter.peak_in(Place.DISK), meter.live_bytes) == (0, 1001, 0)


def test_without_a_meter_a_place_changes_nothing(tmp_path):
    with at(Place.HOST):
        assert mib().sum() is not None
    on_disk(tmp_path / "nothing")


@pytest.mark.parametrize(("size", "pinned"), [(0, 0), (1, 1), (4096, 4096), (4097, 8192), (43 * MIB, 64 * MIB)])
def test_pinned_memory_comes_in_powers_of_two(size, pinned):
    assert pinned_bytes(size) == pinned
