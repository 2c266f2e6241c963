"""ZeRO stage 3: parameters are sharded too, and each layer is whole only while it computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...catalog.errors import WorkbookError
from .ddp import Make
from .flat import Unit, same_start, trainable
from .shard import Shard, clip_shards
from .stages import Zero2


class Zero3(Zero2):
    """Stage 3: a layer is gathered before its forward, released after it, and gathered once more for its backward.

    `layers` are the modules that come and go, in the order in which they run; a decoder's own list where it is left
    out. What is in none of them (embedding, final norm, head), or in two, is the root unit: gathered once a step.
    While one layer computes, the next is already on its way: two are whole at a time.
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
        same_start(model)
        self.model, self.clip = model, clip
        layers = list(decoder_layers(model) if layers is None else layers)
        root, *groups = units(model, layers)
        self.running = [Unit(group) for group in groups]
        self.roots = [Unit(group) for group in [root] if group]
        self.flats = self.running + self.roots
        self.shards = [Shard(unit.shard, master, host) for unit in self.flats]
        self.optimizer = make([shard.parameter for shard in self.shards])
        self.watch_arrivals()
        model.register_forward_pre_hook(self.fetch_root)
        for at, (layer, unit) in enumerate(zip(layers, self.running, strict=True)):
            after, before = self.running[at + 1 : at + 2], self.running[max(0, at - 1) : at]
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

    def send(self, unit: Unit, shard: Shard) -> None:
        super().send(unit, shard)
        unit.release()

    def release(self) -> None:
        """Keep shards only: after a step, or after a forward that no backward follows."""
        for unit in self.flats:
            unit.release()


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
    """Have `unit` whole now, and `soon` on its way."""
    unit.gather()
    unit.wait()
    for one in soon:
        one.gather()


def in_backward() -> bool:
    """Whether autograd runs: a forward that happens now recomputes a checkpoint, and its weights are still needed."""
    return torch._C._current_graph_task_id() != -1


def units(model: nn.Module, layers: list[nn.Module]) -> list[list[nn.Parameter]]:
    """The trainable parameters as [the root's, the first layer's, ...]; one that two layers share is the root's."""
    owners = Counter(p for layer in layers for p in trainable(layer))
    alone = [[p for p in trainable(layer) if owners[p] == 1] for layer in layers]
    inside = {p for group in alone for p in group}
    return [[p for p in trainable(model) if p not in inside], *alone]


def decoder_layers(model: nn.Module) -> nn.Module:
    """The list of layers that holds most of the model's parameters."""
    lists = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    if not lists:
        raise WorkbookError(
            f"{type(model).__name__} has no list of layers",
            "a model with an nn.ModuleList",
            "pass layers=[...], the modules that are to be gathered one after the other",
        )
    return max(lists, key=lambda found: sum(p.numel() for p in trainable(found)))
