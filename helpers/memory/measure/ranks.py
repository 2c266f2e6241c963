"""What one rank holds, at rest and at the peak of a step, and what its collectives carry. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ..breakdown import Breakdown
from ..meter.leaves import leaves
from ..meter.meter import FreshMeter, wraps_others
from ..step.ranks.zero import Collective, Traffic

Holds = Callable[[], Mapping[str, Iterable[torch.Tensor]]]

# The operators under torch.distributed's functions, and under those of functional collectives (DTensor).
KINDS = {
    name: kind
    for kind, names in {
        "all_reduce": "allreduce_ allreduce_coalesced_ all_reduce all_reduce_ all_reduce_coalesced "
        "all_reduce_coalesced_",
        "all_gather": "_allgather_base_ allgather_ allgather_into_tensor_coalesced_ all_gather_into_tensor "
        "all_gather_into_tensor_out all_gather_into_tensor_coalesced",
        "reduce_scatter": "_reduce_scatter_base_ reduce_scatter_ reduce_scatter_tensor_coalesced_ "
        "reduce_scatter_tensor reduce_scatter_tensor_out reduce_scatter_tensor_coalesced",
        "broadcast": "broadcast_ broadcast",
        "reduce": "reduce_",
        "all_to_all": "alltoall_ alltoall_base_ all_to_all_single shard_dim_alltoall",
        "gather": "gather_",
        "scatter": "scatter_",
        "send": "send isend",
    }.items()
    for name in names.split()
}
SILENT = {"barrier", "monitored_barrier_", "wait_tensor", "recv_", "recv_any_source_", "irecv"}
SILENT |= {"_wrap_tensor_autograd", "mesh_get_process_group"}
# What autograd has of its own is another's where there is a gradient, and in inference mode it is all that is seen.
SPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"}


class Collectives(TorchDispatchMode):
    """Counts payloads while it is active: of this rank, in any engine, for it sees the operators below them all.

    `traffic` is what was carried. A payload is the larger of what goes in and what comes out: the whole buffer of a
    reduce-scatter or an all-gather. An operator that is not known raises: a count with a hole would look right.

    >>> with Collectives() as counted:                  # on two ranks
    ...     dist.all_reduce(torch.ones(1000))
    >>> counted.traffic.payload_bytes, counted.traffic.sent_bytes
    (4000, 4000)
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    @property
    def traffic(self) -> Traffic:
        return Traffic(tuple(self.calls))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if wraps_others(types):
            return NotImplemented
        space, _, name = func._schema.name.partition("::")
        carries = space in SPACES and name not in SILENT
        if carries:
            _require_known(name)  # before it runs: the other ranks wait for this one else
        result = func(*args, **(kwargs or {}))
        if carries:
            self.calls.append(_collective(name, args, result))
        return result


def _require_known(name: str) -> None:
    if name not in KINDS:
        raise NotImplementedError(f"a collective that Collectives does not know: {name}")


def _collective(name: str, args: tuple, result: object) -> Collective:
    """A functional collective takes no buffer for what comes out: that is its result."""
    sides = (*args, result)
    payload = max(sum(t.nbytes for t in leaves(side) if isinstance(t, torch.Tensor)) for side in sides)
    return Collective(KINDS[name], payload, _ranks(args))


def _ranks(args: tuple) -> int:
    """The size of the group that an operator was given: as an object, or by its name."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()):
            return dist.ProcessGroup.unbox(arg).size()
    names = [arg for arg in args if isinstance(arg, str)]
    if not names:
        return dist.get_world_size()
    return dist.distributed_c10d._resolve_process_group(names[-1]).size()  # type: ignore[arg-type] # NewType of str


@dataclass(frozen=True)
class RankStep:
    """One rank's step: bytes `before` it by category, its peak, and what its collectives carried."""

    before: Breakdown
    after_backward: Breakdown
    peak_bytes: int
    traffic: Traffic


def held(tensors: Mapping[str, Iterable[torch.Tensor]]) -> Breakdown:
    """Bytes by category; each storage once, in the first category that names it.

    Not rounded to blocks: a shard is what it is.

    >>> whole = torch.zeros(1000)
    >>> held({"parameters": [whole], "optimizer": [whole[:500], torch.zeros(10)]})
    Breakdown(parameters=4000, optimizer=40)
    """
    seen: set[int] = set()
    found = {}
    for category, members in tensors.items():
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in members}
        found[category] = sum(size for key, size in storages.items() if key not in seen)
        seen |= storages.keys()
    return Breakdown(found)


def rank_step(backward: Callable[[], object], step: Callable[[], object], holds: Holds) -> RankStep:
    """Run `backward()`, forward and backward on this rank's micro-batch, then `step()`, and account for both.

    `holds()` gives this rank's tensors by category now: the method of every engine in `helpers.techniques.zero`. What
    the backend allocates for itself is left out: gloo knows no reduce-scatter, and all-reduces a copy of the buffer.
    """
    before, meter = held(holds()), FreshMeter()
    for category, tensors in holds().items():
        meter.adopt(tensors, category)
    with meter, Collectives() as counted:
        backward()
        after_backward = held(holds())
        step()
    meter.stop()
    return RankStep(before, after_backward, meter.peak_bytes, counted.traffic)
