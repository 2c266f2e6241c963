"""What would fit: the ladder of a setup, then larger devices; and the list as a person reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from ...catalog.devices import DEVICES, Device, device
from ...catalog.errors import WorkbookError, require_whole
from ...catalog.hardware import dequantized, reference_of, without_cuda
from ...catalog.serve_setup import ServeSetup
from ...catalog.train_setup import TrainSetup
from .. import budget
from ..breakdown import format_bytes
from .ladders import Fit, training_changes
from .replicas import serving_changes
from .room import HOLES_PERCENT, Room, Verdict

Setup = TrainSetup | ServeSetup
PRICE_CLASSES = ("lowest", "low", "middle", "high", "top")  # as in the catalogue, cheapest first


def peak_bytes(setup: Setup, gpu: str | Device | None = None) -> int:
    """The predicted peak of either kind of setup on `gpu`, as `workbook estimate` prints it."""
    if isinstance(setup, ServeSetup):
        card = device(gpu or reference_of(setup))
        return budget.serve(dequantized(setup, card), card).peak_bytes
    return budget.train(setup, gpu or reference_of(setup)).peak_bytes


def changes(
    setup: Setup, capacity_bytes: int, gpu: str | Device | None = None, reserve_bytes: int | None = 0
) -> Iterator[Fit]:
    """Every change that brings the peak to `capacity_bytes` or less, the cheapest first; none if it fits already.

    Cheap means: first what costs nothing, then time, then what rounds, then adapters (which train something else), then
    more GPUs, then another GPU. A change is left out when a part of it suffices. `gpu` is the card whose kernels and
    workspaces count. `capacity_bytes` is what may be allocated (`Room.for_tensors_bytes`); of other GPUs, and for more
    ranks, `reserve_bytes` are kept, or what each keeps by itself where it is None. Raises WorkbookError for a capacity
    below one byte, and for a training setup without a closed form.
    """
    require_whole("the capacity", capacity_bytes, unit="bytes", do="pass device('h100').capacity_bytes")
    need = peak_bytes(setup, gpu)
    if need <= capacity_bytes:
        return
    if isinstance(setup, ServeSetup):
        yield from serving_changes(setup, capacity_bytes, gpu or reference_of(setup))
    else:
        yield from training_changes(setup, capacity_bytes, gpu, reserve_bytes is None)
    yield from islice(larger_devices(need, capacity_bytes, setup, reserve_bytes), 2)


def larger_devices(
    need_bytes: int, capacity_bytes: int, setup: Setup | None = None, reserve_bytes: int | None = 0
) -> Iterator[Fit]:
    """The smallest GPU that fits `need_bytes`, and `setup` by its own kernels, of each price class, cheapest first.

    A dearer one is named only when it is larger: it then leaves more to spare.
    """
    spare = capacity_bytes + 1 if setup else max(need_bytes, capacity_bytes + 1)
    ranks = setup.ranks if isinstance(setup, TrainSetup) else 1
    for price in PRICE_CLASSES:
        rooms = [
            Room(gpu, reserve_bytes, ranks)
            for gpu in DEVICES.values()
            if gpu.price_class and gpu.price_class.value == price and not gpu.unified
        ]
        needs = {room: _fitting(room, setup, need_bytes) for room in rooms if room.for_tensors_bytes >= spare}
        if fitting := [room for room, need in needs.items() if need]:
            room = min(fitting, key=lambda room: room.for_tensors_bytes)
            spare = room.for_tensors_bytes + 1
            yield Fit(room.card.title, needs[room] or 0, f"price class {price}", device=room.card.name)


def _fitting(room: Room, setup: Setup | None, need_bytes: int) -> int | None:
    """What `setup` needs on that card, as a format without a kernel there is loaded; None where it does not fit."""
    with suppress(WorkbookError):  # such as no kernel for BF16
        need = need_bytes if setup is None else peak_bytes(setup, room.card)
        return need if room.verdict(need) is Verdict.FITS else None
    return None


def format_fits(
    setup: Setup,
    capacity_bytes: int,
    offers: Iterable[Fit] | None = None,
    gpu: str | Device | None = None,
    reserve_bytes: int | None = 0,
) -> str:
    """The list as text: a line for each change with its peak, and under it what it costs and the flags that set it.

    `capacity_bytes` and `reserve_bytes` are as in `changes`.
    """
    need = peak_bytes(setup, gpu)
    if need <= capacity_bytes:
        return f"Fits already, with {format_bytes(capacity_bytes - need)} to spare."
    offers = list(changes(setup, capacity_bytes, gpu) if offers is None else offers)
    over = f"{format_bytes(need)} is {format_bytes(need - capacity_bytes)} too much."
    if not offers:
        return f"{over} No change that is known here makes it fit: offload it, or split the model over GPUs."
    lines = [f"{over} What would fit, cheapest first:", ""]
    for number, fit in enumerate(offers, 1):
        lines += [
            f"{number:>3}. {format_bytes(fit.peak_bytes):>11}  {fit.change}",
            f"{'costs':>16}  {fit.costs}",
            f"{'flags':>16}  {fit.flags}",
        ]
    taken = "The CUDA context and fragmentation take their part on top of each of these peaks."
    room = Room(device(gpu or reference_of(setup)), reserve_bytes, setup.ranks if isinstance(setup, TrainSetup) else 1)
    kept = f"Kept of a card for {room.reserve.told}: {room.kept_told}."
    holes = f"Holes in PyTorch's default segments can take {HOLES_PERCENT} % of a step's tensors again: chapter 03."
    more = (kept if room.reserve_bytes else taken, *((holes,) if isinstance(setup, TrainSetup) else ()))
    return "\n".join([*lines, "", *(without_cuda(device(gpu) if gpu else None) or more)])
