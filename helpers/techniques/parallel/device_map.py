"""`device_map="auto"` on a machine that need not exist: where each module would lie, and which GPU computes when.

The rule is Transformers' own, called with a table of memory sizes on a model without memory. It fills one device after
the other and divides no layer, so one GPU computes at a time, and the others hold weights: a pipeline with a single
micro-batch. Imports torch and Transformers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

from torch import Tensor, nn

from ...catalog.errors import WorkbookError, require_name, require_package, require_whole
from ...catalog.logs import quiet

Device = int | str  # a GPU by its number, "cpu", "disk"
WAYS = ("auto", "sequential")


@dataclass(frozen=True)
class DeviceRoom:
    """What lies on one device, in bytes, and the room that is left of what it was given; None on a disk."""

    device: Device
    modules: tuple[str, ...]
    held_bytes: int
    room_bytes: int | None


@dataclass(frozen=True)
class Turn:
    """Modules that run one after another: weights on `device`, computed on `computes`.

    What lies on the host or a disk is copied to the first GPU each time that it runs, and dropped there.
    """

    device: Device
    computes: Device
    modules: tuple[str, ...]
    weight_bytes: int


@dataclass(frozen=True)
class DeviceMap:
    """`by_module` is what `from_pretrained(..., device_map=...)` would make; `rooms` and `turns` explain it."""

    by_module: Mapping[str, Device]
    rooms: tuple[DeviceRoom, ...]
    turns: tuple[Turn, ...]

    @property
    def busy(self) -> dict[Device, Fraction]:
        """The share of time in which each device computes, if time goes with the weights that are read, as in decoding.

        The shares add up to 1: there is no moment at which two of them compute. What lies on the host takes longer
        than that, for it is copied.
        """
        total = sum(turn.weight_bytes for turn in self.turns)
        shares: dict[Device, Fraction] = {room.device: Fraction(0) for room in self.rooms if room.device != "disk"}
        for turn in self.turns:
            shares[turn.computes] = shares.get(turn.computes, Fraction(0)) + Fraction(turn.weight_bytes, total)
        return shares

    @property
    def copied_bytes(self) -> int:
        """Weights that come to the GPU from the host or the disk in each forward pass."""
        return sum(turn.weight_bytes for turn in self.turns if turn.device != turn.computes)


def device_map(model: nn.Module, max_memory: Mapping[Device, int], how: str = "auto") -> DeviceMap:
    """Where Transformers would put the modules of a PreTrainedModel, which may lie on the meta device.

    `max_memory` in bytes: {0: 24 * GIB, 1: 24 * GIB, "cpu": 64 * GIB}. "auto" gives each GPU but the last its share and
    a quarter more than a layer, so that the last may stay empty; "sequential" fills each before the next. The first GPU
    and the host keep room for the largest layer that is not placed yet, in case that it must be copied there: so a host
    that is small is left empty, and the disk is taken.
    """
    sizes = _checked(model, max_memory)
    require_name("way", how, WAYS)
    rule = require_package("transformers.integrations.accelerate", "a device map")
    whole = getattr(model, "_no_split_modules", None) or set()
    with quiet(Warning):  # no word of devices that this machine does not have
        given = rule.get_balanced_memory(model, dict(sizes), whole) if how == "auto" else dict(sizes)
        found = rule.infer_auto_device_map(model, given, no_split_module_classes=whole)
    rooms = tuple(_room(model, device, found, sizes) for device in [*sizes, *({"disk"} & set(found.values()))])
    gpus = [device for device in sizes if isinstance(device, int)]
    return DeviceMap(dict(found), rooms, tuple(_turns(model, found, gpus[0] if gpus else "cpu")))


def _room(model: nn.Module, device: Device, found: Mapping[str, Device], sizes: Mapping[Device, int]) -> DeviceRoom:
    names = tuple(name for name, where in found.items() if where == device)
    held = _bytes(tensor for name in names for tensor in _tensors(model, name))
    return DeviceRoom(device, names, held, sizes[device] - held if device in sizes else None)


def _turns(model: nn.Module, found: Mapping[str, Device], main: Device) -> Iterator[Turn]:
    """Modules with weights in the order in which they stand in the model, which is that of a decoder's forward."""
    order = [name for name, _ in model.named_modules()] + [name for name, _ in model.named_parameters()]
    ordered = sorted(found, key=order.index)
    weights = {name: [t for t in _tensors(model, name) if isinstance(t, nn.Parameter)] for name in ordered}
    for device, names in groupby(filter(weights.get, ordered), key=found.__getitem__):
        modules = tuple(names)
        size = _bytes(tensor for name in modules for tensor in weights[name])
        yield Turn(device, device if isinstance(device, int) else main, modules, size)


def _tensors(model: nn.Module, name: str) -> list[Tensor]:
    """Parameters and buffers under a name of the map, which may be that of a parameter."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if name in parameters:
        return [parameters[name]]
    module = model.get_submodule(name)
    return [*module.parameters(), *module.buffers()]


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Each tensor once: tied ones lie together."""
    return sum(size for size in {id(tensor): tensor.nbytes for tensor in tensors}.values())


def _checked(model: nn.Module, max_memory: Mapping[Device, int]) -> dict[Device, int]:
    do = 'pass max_memory={0: 24 * 2**30, 1: 24 * 2**30, "cpu": 64 * 2**30}'
    if not isinstance(max_memory, Mapping) or not max_memory:
        raise WorkbookError(f"max_memory is {max_memory!r}", "bytes by device", do)
    if not hasattr(model, "_no_split_modules"):
        what, expected = f"{type(model).__name__} is no PreTrainedModel", "a model of Transformers"
        raise WorkbookError(what, expected, "build it from a config under torch.device('meta')")
    for device, size in max_memory.items():
        if device != "cpu" and (isinstance(device, bool) or not isinstance(device, int) or device < 0):
            raise WorkbookError(f"the device {device!r}", 'a GPU by its number from 0, or "cpu"; a disk is added', do)
        require_whole(f"max_memory[{device!r}]", size, least=0, unit="bytes", do=do)
    return {device: max_memory[device] for device in sorted(max_memory, key=lambda device: (device == "cpu", device))}
