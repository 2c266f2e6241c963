"""The field's engines for weights and activations that leave the device, with bytes that can be counted on any machine.

    with engines.cpu_offload(model): model.generate(ids)                    # weights on the host, a module at a time
    with engines.disk_offload(model, "weights"): model.generate(ids)        # weights in files
    with engines.dispatch(model, {"model": "device", "lm_head": "cpu"}): ...  # a place for each module
    with engines.save_on_cpu(): loss = model(ids, labels=ids).loss          # activations on the host

The first three are Hugging Face accelerate's. It fetches what a module needs when the module is called, waits for the
copy, and drops it when the module returns: `WeightStreamer` with one buffer, and with the buffer allocated anew each
time. Closed, each gives the model its own parameters back. `device` is where the model computes, by default where it
is. A CPU may play it: accelerate would then compute with the host's tensors and copy nothing, so each fetch is made a
copy here, and a `PlacesMeter` shows what a GPU would hold.

A cache that leaves the device is `kv_cache.transformers_cache(model, "offloaded")`, Transformers' own, on a GPU, and
`kv_cache.cache_of(model, "offloaded")` anywhere. The engines that train are in `engines_training`.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from ...catalog.errors import WorkbookError, require_name, require_package
from ...catalog.logs import quiet
from ...memory.meter.places import Place, at, on_disk

TIERS = ("device", "cpu", "disk")  # accelerate's words; "device" is where the model computes
Device = torch.device | str | None
Folder = str | Path


@contextlib.contextmanager
def cpu_offload(model: nn.Module, device: Device = None, preload_module_classes: Sequence[str] = ()) -> Iterator[None]:
    """accelerate's `cpu_offload`: all weights on the host, and on the device those of the module that runs.

    A module here is one that owns weights, as a Linear: the device's peak is the largest of them. Classes named in
    `preload_module_classes`, as "LlamaDecoderLayer", arrive whole: fewer waits, and a peak of one layer. At work:
    `accelerate.cpu_offload(model, "cuda")`. Its host copy is not pinned, so a copy waits for the CPU as well.
    """
    place = _device(model, device)
    weights = _on_host(dict(model.named_parameters(remove_duplicate=False)), place)
    options = {"state_dict": weights, "preload_module_classes": list(preload_module_classes)}
    with _hooked(model, place, functools.partial(_loaded().cpu_offload, model, place, **options)):
        yield


@contextlib.contextmanager
def disk_offload(
    model: nn.Module, folder: Folder, device: Device = None, preload_module_classes: Sequence[str] = ()
) -> Iterator[None]:
    """accelerate's `disk_offload`: a file for each weight in `folder`, and on the device those of the module that runs.

    A file holds the values alone, to the byte; `index.json` has the shapes. A fetch maps the file, copies it into host
    memory and from there to the device: of the host it takes one weight at a time, beside the file pages that the
    system keeps. The folder is a new or an empty one, and is emptied at the end. At work:
    `accelerate.disk_offload(model, folder, "cuda")`, or `from_pretrained(..., device_map="auto", offload_folder=...)`.
    """
    place, classes = _device(model, device), list(preload_module_classes)
    attach = functools.partial(_loaded().disk_offload, model, str(folder), place, preload_module_classes=classes)
    with _files(folder, model.state_dict()), _hooked(model, place, attach, folder):
        yield


@contextlib.contextmanager
def dispatch(
    model: nn.Module, device_map: Mapping[str, str], folder: Folder | None = None, device: Device = None
) -> Iterator[None]:
    """accelerate's `dispatch_model`: each module where `device_map` says, "device", "cpu" or "disk".

    The map names modules as `model.named_modules()` does, and covers every weight. What is on "cpu" or "disk" is
    fetched a module at a time, as by `cpu_offload` and `disk_offload`; what is on the "device" stays there. At work:
    `from_pretrained(..., device_map=...)`, in which a GPU is a number, and `device_map="auto"` fills the GPUs in order,
    then the host, then the disk.
    """
    place, tiers = _device(model, device), _by_tier(model, device_map, folder)
    places = {name: place if tier == "device" else tier for name, tier in device_map.items()}
    options: dict[str, Any] = {"main_device": place, "force_hooks": True, "offload_dir": folder}
    options["state_dict"] = _on_host(tiers["cpu"], place)
    attach = functools.partial(_loaded().dispatch_model, model, places, **options)
    with _files(folder, tiers["disk"]), _hooked(model, place, attach, folder, stay=tiers["device"].values()):
        yield


def save_on_cpu() -> saved_tensors_hooks:
    """`torch.autograd.graph.save_on_cpu`: what operators save for backward waits in host memory, pinned with a GPU.

    Each saved tensor goes out by itself and whole, parameters too, and a tensor that three operators save goes three
    times: `checkpointing.NaiveOffload`. On a CPU, PyTorch's hook gives backward the host's own copy, which would leave
    the device nothing to count; here the device gets one.
    """
    hooks = torch.autograd.graph.save_on_cpu(pin_memory=True)  # which without a GPU is a plain copy
    pack, unpack = hooks.pack_hook, hooks.unpack_hook

    def out(tensor: Tensor) -> Any:
        with at(Place.HOST):
            return pack(tensor)

    def back(packed: Any) -> Tensor:
        tensor = unpack(packed)
        return tensor.clone() if tensor.device.type == "cpu" else tensor

    return saved_tensors_hooks(out, back)


class Fetched(Mapping[str, Tensor]):
    """The map from which accelerate's hook takes weights, with its copies where a meter sees them.

    What it gives lies on the host: in the host's own copy, or in one that was just read from a file's pages. Where a
    CPU plays the device, accelerate would go on to compute with that, so it gets another copy.
    """

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self.weights, self.plays = weights, device.type == "cpu"

    def __getitem__(self, name: str) -> Tensor:
        with at(Place.HOST):
            host = _unseen(self.weights.__getitem__, name).detach()  # which shows it to the meter
        return host.clone() if self.plays else host

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)


def _on_host(weights: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Weights on the host by name. They are copies where they come from the device; tied weights are one here too."""
    copies: dict[Tensor, Tensor] = {}
    with at(Place.HOST):
        for weight in weights.values():
            if weight not in copies:
                copies[weight] = weight.detach().to("cpu", copy=device.type == "cpu")
    return {name: copies[weight] for name, weight in weights.items()}


def _loaded() -> ModuleType:
    return require_package("accelerate", "this engine")


def _device(model: nn.Module, device: Device) -> torch.device:
    """Where the model computes; WorkbookError for a model without weights, or one that is offloaded already."""
    _loaded()
    first = next(model.parameters(), None)
    if first is None:
        raise WorkbookError("the model has no weights", "a model with parameters", "pass load().model")
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        do = "leave the engine that it is in first, or load the model afresh"
        raise WorkbookError("accelerate has hooks on this model already", "a model without them", do)
    return torch.device(device) if device is not None else first.device


@contextlib.contextmanager
def _hooked(
    model: nn.Module,
    device: torch.device,
    attach: Callable[[], object],
    folder: Folder | None = None,
    stay: Iterable[Tensor] = (),
) -> Iterator[None]:
    """The model with accelerate's hooks, and afterwards with its own parameters again. `stay` are those on the device.

    accelerate itself leaves new parameters, which are no longer tied, and of which an optimizer does not know.
    """
    own = [(module, name, p) for module in model.modules() for name, p in module._parameters.items() if p is not None]
    devices, hooks = {p: p.device for _, _, p in own}, list[Any]()
    attributes = {module: set(vars(module)) for module in model.modules()}
    try:
        for parameter in stay:
            parameter.data = parameter.data.to(device)
        with quiet():  # accelerate warns that parameters are on the meta device, as they were asked to be
            _unseen(attach)
        for path in Path(folder).glob("*.dat") if folder is not None else ():
            on_disk(path)
        for module, name, parameter in own:
            if module._parameters[name] is not parameter:
                parameter.data = parameter.data.new_empty(0)
        hooks = [hook for module in model.modules() for hook in _hooks(module)]
        for hook in hooks:
            hook.weights_map = Fetched(hook.weights_map, device)
            hook.post_forward = functools.partial(_unseen, hook.post_forward)
        yield
    finally:
        for hook in hooks:
            del hook.post_forward  # which held the hook, and that the host's weights
        _loaded().hooks.remove_hook_from_submodules(model)
        for module, names in attributes.items():  # accelerate leaves a `forward` on every module that it touched
            for name in set(vars(module)) - names:
                delattr(module, name)
        for module, name, parameter in own:
            parameter.data = module._parameters[name].data.to(devices[parameter])  # type: ignore[union-attr]
            module._parameters[name] = parameter


def _hooks(module: nn.Module) -> list[Any]:
    """accelerate's hooks that drop a module's weights again."""
    hook = getattr(module, "_hf_hook", None)
    return [one for one in getattr(hook, "hooks", [hook]) if getattr(one, "offload", False)]


def _unseen(function: Callable[..., Any], *args: Any) -> Any:
    """To drop a weight, accelerate puts one on the meta device in its place: that has no bytes for a meter to count."""
    with _disable_current_modes():
        return function(*args)


@contextlib.contextmanager
def _files(folder: Folder | None, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """A folder in which accelerate can write `weights`, if there are any, and which is empty again afterwards.

    accelerate takes any index.json that it finds for this model's, without a word. It writes through mapped pages: on
    a full disk the system ends the process.
    """
    size_bytes = sum(weight.nbytes for weight in weights.values())
    del weights  # which would keep them on the device
    if folder is not None and size_bytes:
        require_room(Path(folder), size_bytes)
        if any(Path(folder).iterdir()):
            what = f"{folder} has files in it, and accelerate would compute with weights that it finds there"
            raise WorkbookError(what, "a new folder, or an empty one", "name another folder")
    try:
        yield
    finally:
        for path in Path(folder).iterdir() if folder is not None and size_bytes else ():
            path.unlink()
            on_disk(path)


def require_room(folder: Path, size_bytes: int) -> None:
    """WorkbookError for a folder, made if need be, in which `size_bytes` cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as problem:
        what = f"{folder} cannot be written: {problem.strerror}"
        raise WorkbookError(what, "a folder that can be written", "name another folder") from None
    if free < size_bytes:
        what = f"{folder} has {free:,} bytes free, and it would take {size_bytes:,}"
        raise WorkbookError(what, "room for all of them", "free some room, or name another disk")


def _by_tier(
    model: nn.Module, device_map: Mapping[str, str], folder: Folder | None
) -> dict[str, dict[str, nn.Parameter]]:
    """The weights of each tier by name; WorkbookError for a map that accelerate would refuse or misread."""
    modules = dict(model.named_modules())
    for name, tier in device_map.items():
        require_name("module", name, modules)
        require_name("tier", tier, TIERS)
    found: dict[str, dict[str, nn.Parameter]] = {tier: {} for tier in TIERS}
    for name, weight in model.named_parameters(remove_duplicate=False):
        owners = [owner for owner in device_map if not owner or name.startswith(f"{owner}.")]
        if not owners:
            do = 'name its module, or one around it: "" is the whole model'
            raise WorkbookError(f"the map has no place for {name}", "a place for every weight", do)
        found[device_map[max(owners, key=len)]][name] = weight
    if found["disk"] and folder is None:
        raise WorkbookError("there are weights for the disk, and no folder", "a folder", 'pass folder="weights"')
    return found
