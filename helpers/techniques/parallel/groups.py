"""Who shares a model: process groups, meshes of two dimensions, and how sizes are divided among ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ...catalog.errors import WorkbookError, require_whole
from .formula import part_of
from .operators import Group


def whole_world(group: Group | None = None) -> Group:
    """`group`, or all ranks; WorkbookError where no process group is."""
    if not dist.is_initialized():
        do = "run it with helpers.lesson.ranks.Ranks(n).run(...), or under torchrun"
        raise WorkbookError("there is no process group", "code that runs on a rank", do)
    return group or dist.distributed_c10d._get_default_group()


def part(size: int, group: Group) -> slice:
    """This rank's part of `size` rows or columns. Parts differ by one where `size` does not divide.

    301 over four ranks: 76, 75, 75, 75.
    """
    return part_of(size, group.size(), group.rank())


def mesh(**sizes: int) -> DeviceMesh:
    """A mesh with named dimensions, of which the last one's ranks are neighbours: `mesh(data=2, tensor=2)`.

    `mesh(...).get_group("tensor")` are the ranks that share a model, `get_group("data")` those that hold the same part.
    Raises WorkbookError on every rank where ranks disagree, or the sizes do not multiply to their number.
    """
    world = whole_world()
    for name, size in sizes.items():
        require_whole(name, size, unit="ranks", do="mesh(data=2, tensor=2)")
    require_agreement(sizes, world)
    if prod(sizes.values()) != world.size():
        product = " x ".join(str(size) for size in sizes.values())
        expected = f"sizes whose product is the number of ranks, {world.size()}"
        raise WorkbookError(f"a mesh of {product} is {prod(sizes.values())} ranks", expected, _fitting(sizes, world))
    device = "cuda" if "nccl" in dist.get_backend(world) else "cpu"
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def require_agreement(sizes: Mapping[str, object], group: Group) -> None:
    """Raise the same WorkbookError on every rank where one was given other sizes than the first.

    Without it, a collective would wait for ever, or add what does not belong together.
    """
    found: list[dict[str, object]] = [{} for _ in range(group.size())]
    dist.all_gather_object(found, dict(sizes), group=group)
    first, names = found[0], dist.get_process_group_ranks(group)
    for rank, other in zip(names, found, strict=True):
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name):
                what = f"rank {rank} has {name} = {other.get(name)}, and rank {names[0]} has {first.get(name)}"
                raise WorkbookError(what, "the same sizes on every rank", "pass all ranks the same arguments")


def require_same_model(model: nn.Module, sizes: Mapping[str, object], group: Group) -> None:
    """WorkbookError on every rank where a model's type, precision or shapes, or `sizes`, are not those of the first."""
    kind = {"model": type(model).__name__, "dtype": str(next(model.parameters()).dtype)}
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    require_agreement({**kind, **sizes, **shapes}, group)


def copy_weights(model: nn.Module, group: Group) -> None:
    """The weights of the group's first rank, on every rank."""
    with torch.no_grad():
        for tensor in model.parameters():
            dist.broadcast(tensor, group=group, group_src=0)


def require_same(what: str, tensors: Sequence[Tensor], group: Group, do: str) -> None:
    """Raise a WorkbookError on every rank where the ranks' `tensors` differ in size or values.

    Sixteen bytes travel: the largest of all ranks' checksums, and the smallest, negated.
    """
    checksum = hash(tuple(number for tensor in tensors for number in (*tensor.shape, _checksum(tensor))))
    both = torch.tensor([checksum, -checksum], device=tensors[0].device)
    dist.all_reduce(both, dist.ReduceOp.MAX, group=group)
    largest, smallest_negated = both.tolist()
    if largest != -smallest_negated:
        raise WorkbookError(f"{what} differ between the ranks", "the same on every rank of the group", do)


def average_gradients(model: nn.Module, group: Group) -> None:
    """Data parallelism in its plainest form: every rank of `group` holds the same part and has seen other samples.

    The copies must have begun equal: ranks that load one checkpoint do.
    """
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad.div_(group.size()), group=group)


def _checksum(tensor: Tensor) -> int:
    """Of whole numbers, each weighted by its place."""
    flat = tensor.flatten()
    return int((flat * torch.arange(1, len(flat) + 1, device=flat.device)).sum())


def _fitting(sizes: Mapping[str, int], world: Group) -> str:
    """The same mesh with its first dimension changed so that it fits; or with all ranks in one dimension."""
    (first, *_), inner = sizes, prod(list(sizes.values())[1:])
    fitting = {**sizes, first: world.size() // inner} if world.size() % inner == 0 else {first: world.size()}
    return f"mesh({', '.join(f'{name}={size}' for name, size in fitting.items())})"
