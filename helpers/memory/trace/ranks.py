"""One rank of N in one process: a process group without other ranks, and meshes that can be built inside `fake()`.

    with trace.fake(ranks=8):
        mesh = init_device_mesh("cuda", (8,))
        with torch.device("meta"):
            model = MyModel()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        found = trace.record(step, model, optimizer)

The backend "fake" is PyTorch's own: a collective returns at once and leaves its output unfilled. What is allocated
for it is allocated as on a real rank. Stages of torch.distributed.pipelining run too, if that is imported before and
they are given the shapes of what they take and make.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import device_mesh
from torch.distributed.tensor import debug
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from ...catalog.errors import WorkbookError, require_whole

MOST_RANKS = 1 << 20
LEARNS_SHAPES = "_propagate_tensor_meta_non_cached"
USES_NUMBERS = ("__getitem__", "__repr__", "_flatten", "_unflatten", "get_coordinate")
FORGET = getattr(debug, "_clear_sharding_prop_cache", lambda: None)  # which not every version has
BATCH = "_batch_p2p"
YES = SimpleNamespace(item=lambda: 1)  # a vote of all stages


@contextlib.contextmanager
def rank_of(ranks: int, rank: int = 0) -> Iterator[None]:
    """Be rank `rank` of `ranks` until this is closed; the group is taken down then, whatever happened inside.

    `trace.fake(ranks=8)` opens it for you. WorkbookError in a process that has a process group already.
    """
    require_whole("ranks", ranks, most=MOST_RANKS)
    require_whole("rank", rank, 0, ranks - 1, do=f"the ranks of a group of {ranks} are 0 to {ranks - 1}")
    if dist.is_initialized():
        do = "trace in a process of its own, or after torch.distributed.destroy_process_group()"
        raise WorkbookError("this process has a process group already", "one that has none", do)
    from torch.testing._internal.distributed.fake_pg import FakeStore  # its import registers the backend "fake"

    FORGET()  # DTensor remembers answers with the mesh of a group that may be closed
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        with _outside_where_values_count():
            yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        FORGET()


@contextlib.contextmanager
def _outside_where_values_count() -> Iterator[None]:
    """Meshes keep the numbers of their ranks in tensors, and read them: these must have values inside `fake()`.

    A mesh "on cuda" becomes one on the CPU, where the fake tensors are. To learn what an operator returns, DTensor runs
    it once on whole tensors without memory, which are none of the reader's: that goes on outside of `fake()` too.
    """
    mesh, shapes = device_mesh.DeviceMesh, ShardingPropagator
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(mesh, "__init__", _built_with_values(mesh.__init__)))
        for name in USES_NUMBERS:
            stack.enter_context(mock.patch.object(mesh, name, _outside(getattr(mesh, name))))
        stack.enter_context(mock.patch.object(shapes, LEARNS_SHAPES, _outside(getattr(shapes, LEARNS_SHAPES))))
        pipelining = sys.modules.get("torch.distributed.pipelining")  # which takes half a second to import
        stages = getattr(pipelining, "PipelineStage", None)
        if hasattr(stages, "_warmup_forward_vote"):  # since PyTorch 2.12; earlier ones do not vote
            stack.enter_context(mock.patch.object(stages, "_warmup_forward_vote", _shapes_are_given))
            stack.enter_context(mock.patch.object(stages, "_warmup_backward_result", return_value=YES))
        if pipelining is not None:
            schedules = sys.modules["torch.distributed.pipelining.schedules"]
            stack.enter_context(mock.patch.object(schedules, BATCH, _holding(getattr(schedules, BATCH))))
        yield


class Works(list):
    """What a batch of sends and receives is waited for by; while it lives, so do their tensors.

    A fake group's works hold nothing. Gloo's hold their tensors until they are freed, and a schedule with several
    stages on a rank keeps the works of all its sends to the end of the step.
    """

    tensors: tuple[torch.Tensor, ...] = ()


def _holding(batch: Callable[..., list]) -> Callable[..., list]:
    @functools.wraps(batch)
    def batched(operations: list, *args: Any, **kwargs: Any) -> list:
        works = Works(batch(operations, *args, **kwargs))
        works.tensors = tuple(one.tensor for one in operations)
        return works

    return batched


def _shapes_are_given(stage: Any, has_backward: bool, received_acc: object = None) -> SimpleNamespace:
    """A pipeline's stages vote on whether all know their shapes, and tell each other if not: here nobody answers."""
    from torch.distributed.pipelining._utils import InferenceMode

    if InferenceMode.needs_dynamic(stage._user_meta, has_backward):
        what, do = f"stage {stage.stage_index} knows no shapes", "PipelineStage(..., input_args=..., output_args=...)"
        raise WorkbookError(what, "meta tensors of what it takes and makes: no other stage can be asked", do)
    return YES


def _built_with_values(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def constructed(self: object, device_type: str, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():
            ranks = kwargs.get("_rank_map")
            if isinstance(ranks, FakeTensor):  # init_device_mesh counts the ranks from 0
                kwargs["_rank_map"] = torch.arange(ranks.numel(), dtype=torch.int)
            construct(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return constructed


def _outside(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            return method(*args, **kwargs)

    return called
