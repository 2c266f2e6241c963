"""A change that fits, the larger devices, and the list as a person reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ...catalog.devices import DEVICES
from ...catalog.errors import WorkbookError
from ...catalog.setup import ServeSetup, TrainSetup
from ..closed_form import budget
from ..closed_form.breakdown import format_bytes

Setup = TrainSetup | ServeSetup
PRICE_CLASSES = ("lowest", "low", "middle", "high", "top")  # as in the catalogue, cheapest first


@dataclass(frozen=True)
class Fit:
    """A change under which a setup fits: the peak it leads to, what it costs, the fields of the setup that it sets."""

    change: str
    peak_bytes: int
    costs: str
    fields: Mapping[str, object] = field(default_factory=dict)
    device: str = ""

    @property
    def flags(self) -> str:
        """The change as flags of `workbook estimate`.

        >>> Fit("8-bit Adam", 1, "", {"optimizer": "adamw-8bit"}).flags
        '--optimizer adamw-8bit'
        """
        gpu = [f"--gpu {self.device}"] if self.device else []
        return " ".join([f"--{name.replace('_', '-')} {value}" for name, value in self.fields.items()] + gpu)

    @property
    def figures(self) -> dict[str, object]:
        """For JSON."""
        return {
            "change": self.change,
            "peak_bytes": self.peak_bytes,
            "costs": self.costs,
            "fields": dict(self.fields),
            "device": self.device or None,
        }


def peak_bytes(setup: Setup) -> int:
    """The predicted peak of either kind of setup, as `workbook estimate` prints it."""
    return budget.serve(setup).peak_bytes if isinstance(setup, ServeSetup) else budget.train(setup, True).peak_bytes


def changes(setup: Setup, capacity_bytes: int) -> Iterator[Fit]:
    """Every change that brings the peak to `capacity_bytes` or less, the cheapest first; none if it fits already.

    Cheap means: first what costs nothing, then time, then what rounds, then more GPUs, then another GPU. A change is
    left out when a part of it suffices. Raises WorkbookError for a capacity below one byte, and for a training setup
    without a closed form.
    """
    from .serving import serving_changes
    from .training import training_changes

    if isinstance(capacity_bytes, bool) or not isinstance(capacity_bytes, int) or capacity_bytes < 1:
        raise WorkbookError(
            f"the capacity is {capacity_bytes!r}",
            "a whole number of bytes from 1 up",
            "pass device('h100').capacity_bytes",
        )
    need = peak_bytes(setup)
    if need <= capacity_bytes:
        return
    yield from (serving_changes if isinstance(setup, ServeSetup) else training_changes)(setup, capacity_bytes)
    yield from islice(larger_devices(need, capacity_bytes), 2)


def larger_devices(need_bytes: int, capacity_bytes: int) -> Iterator[Fit]:
    """The smallest GPU that holds `need_bytes` of each price class, cheapest class first.

    A dearer one is named only when it is larger: it then leaves more to spare.
    """
    spare = max(need_bytes, capacity_bytes + 1)
    for price in PRICE_CLASSES:
        holding = [
            gpu
            for gpu in DEVICES.values()
            if gpu.price_class and gpu.price_class.value == price and not gpu.unified and gpu.capacity_bytes >= spare
        ]
        if holding:
            gpu = min(holding, key=lambda gpu: gpu.capacity_bytes)
            spare = gpu.capacity_bytes + 1
            yield Fit(gpu.title, need_bytes, f"price class {price}", device=gpu.name)


def told(setup: Setup, capacity_bytes: int, offers: Iterable[Fit] | None = None) -> str:
    """The list as text: a line for each change with its peak, and under it what it costs and the flags that set it."""
    need = peak_bytes(setup)
    if need <= capacity_bytes:
        return f"Fits already, with {format_bytes(capacity_bytes - need)} to spare."
    offers = list(changes(setup, capacity_bytes) if offers is None else offers)
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
    return "\n".join([*lines, "", "The CUDA context and fragmentation take their part on top of each of these peaks."])
