"""ZeRO stage 3: parameters are sharded too, and each layer is whole only while it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...catalog.errors import WorkbookError
from .ddp import Make
from .flat import FlatBucket, Unit, broadcast_model, trainable
from .stages import Shard, Zero2, clip_shards


class Zero3(Zero2):
    """Stage 3: a layer is gathered before its forward, released after it, and gathered once more for its backward.

    `layers` are the modules that are gathered and released, in the order in which they run; a decoder's own list where
    it is left out. What is in none of them (embedding, final norm, head), or in two, is the root unit: gathered once a
    step. While one layer computes, the next is already being gathered: two are whole at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Make,
        clip: float = float("inf"),
        layers: Iterable[nn.Module] | None = None,
        master: torch.dtype | None = None,
        host: bool = False,
        prefetch: bool = True,
    ) -> None:
        broadcast_model(model)
        layers = list(decoder_layers(model) if layers is None else layers)
        root, *groups = units(model, layers)
        running, roots = [Unit(group) for group in groups], [Unit(group) for group in [root] if group]
        super().__init__(model, make, clip, master=master, host=host, flats=[*running, *roots])
        self.roots = roots
        model.register_forward_pre_hook(self.fetch_root)
        for at, (layer, unit) in enumerate(zip(layers, running, strict=True)):
            after, before = running[at + 1 : at + 2], running[max(0, at - 1) : at]
            register_gather_hooks(layer, unit, after * prefetch, before * prefetch)
        self.release()

    def step(self) -> Tensor:
        """Nothing is gathered here: the next forward fetches what it needs, updated."""
        self.reduce()
        norm = clip_shards(self.shards, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for shard in self.shards:
            shard.publish()
        self.release()
        return norm

    def fetch_root(self, *_: object) -> None:
        for unit in self.roots:
            fetch(unit)

    def send(self, flat: FlatBucket, shard: Shard) -> None:
        super().send(flat, shard)
        flat.release()

    def release(self) -> None:
        """Keep shards only: after a step, or after a forward that no backward follows."""
        for flat in self.flats:
            flat.release()


def register_gather_hooks(layer: nn.Module, unit: Unit, after: list[Unit], before: list[Unit]) -> None:
    """Have `unit` whole while `layer` runs, and again from the moment that the gradient of its output arrives."""

    def enter(*_: object) -> None:
        fetch(unit, [] if in_backward() else after)

    def leave(_: nn.Module, args: tuple, output: object) -> None:
        if in_backward():
            return
        unit.release()
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda gradient: fetch(unit, before))

    layer.register_forward_pre_hook(enter)
    layer.register_forward_hook(leave)


def fetch(unit: Unit, soon: Iterable[Unit] = ()) -> None:
    """Have `unit` whole now, and begin to gather `soon`."""
    unit.gather()
    unit.wait()
    for later in soon:
        later.gather()


def in_backward() -> bool:
    """Whether autograd is running: a forward now recomputes a checkpoint, and its weights are still needed."""
    return torch._C._current_graph_task_id() != -1


def units(model: nn.Module, layers: list[nn.Module]) -> list[list[nn.Parameter]]:
    """The trainable parameters as [the root's, the first layer's, ...]; one that two layers share is the root's."""
    owners = Counter(p for layer in layers for p in trainable(layer))
    alone = [[p for p in trainable(layer) if owners[p] == 1] for layer in layers]
    inside = {p for group in alone for p in group}
    return [[p for p in trainable(model) if p not in inside], *alone]


def decoder_layers(model: nn.Module) -> nn.ModuleList | nn.Sequential:
    """The list of layers that holds most of the model's parameters."""
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    if not lists:
        do = "pass layers=[...], the modules that are to be gathered one after the other"
        raise WorkbookError(f"{type(model).__name__} has no list of layers", "a model with an nn.ModuleList", do)
    return max(lists, key=lambda found: sum(p.numel() for p in trainable(found)))
