"""One rank of several, traced: by hand, and beside real ranks."""

from __future__ import annotations

import contextlib
import math
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from helpers.catalog.errors import WorkbookError
from helpers.memory import trace
from helpers.memory.breakdown import Part, Phase
from helpers.memory.meter.meter import local
from helpers.memory.meter.timeline import live_after
from tests.memory.trace import rank_cases

CASES = [("plain", True), ("plain", False), ("mixed", True), ("mixed", False)]


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


@pytest.mark.parametrize(("policy", "reshard"), CASES)
def test_a_traced_rank_of_fsdp2_is_a_real_one_to_the_byte(ranks, policy, reshard):
    for rank, real in enumerate(ranks.run(rank_cases.second_step, policy, reshard)):
        with trace.fake("cpu", ranks=ranks.count, rank=rank):
            traced = rank_cases.second_step_traced(policy, reshard)
        assert traced == real


def split(rows: int, ranks: int, rank: int) -> int:
    """Rows of one rank: as many as fit in equal parts, the last ranks what is left."""
    each = -(-rows // ranks)
    return max(0, min(each, rows - rank * each))


def rounded(numbers) -> int:
    """Bytes of as many FP32 tensors."""
    return sum(-(-4 * number // 512) * 512 for number in numbers)


@pytest.mark.parametrize(("ranks", "rank"), [(2, 0), (2, 1), (4, 3), (7, 6)])
def test_a_rank_holds_its_rows_of_each_weight(ranks, rank):
    """FSDP2 pads the storage of a shard to that of the first rank; a state has no padding, and a rank may have none."""
    with trace.fake("cpu", ranks=ranks, rank=rank):
        model, optimizer = rank_cases.sharded(ranks, "plain", True, "meta")
        shapes = [tuple(parameter.shape) for parameter in model.parameters()]
        backward, update = rank_cases.halves(model, optimizer)
        found = trace.record(lambda: (backward(), update()), model, optimizer, warmup=1)
    held = live_after(found.events)
    padded = [-(-rows // ranks) * math.prod(rest) for rows, *rest in shapes]
    owned = [split(rows, ranks, rank) * math.prod(rest) for rows, *rest in shapes]
    rotary = 2 * 512  # the inverse frequencies, and what Transformers calls the original ones
    assert sum(b.size_bytes for b in held if b.category == Part.PARAMETERS) == rounded(padded) + rotary
    steps = 512 * len(shapes)
    assert sum(b.size_bytes for b in held if b.category == Part.OPTIMIZER) == 2 * rounded(owned) + steps


def mlp_on_meta() -> nn.Sequential:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 128))


def test_tensor_parallel_layers_take_their_part():
    with trace.fake("cpu", ranks=4) as session:
        mesh, model = init_device_mesh("cpu", (4,)), mlp_on_meta()
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        model.to_empty(device="cpu")
        assert session.meter.live_bytes == 4 * (256 * 128 + 128 + 128 * 128 + 128)
        names = trace.record(lambda: model(torch.zeros(8, 256)).sum().backward(), model).at_peak
    assert {block.owner for block in names if block.category == "parameters"} == {
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    }


def test_a_mesh_of_two_dimensions_shards_twice():
    with trace.fake("cpu", ranks=8) as session:
        mesh, model = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp")), mlp_on_meta()
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        model.to_empty(device="cpu")
        assert local(model[0].weight).shape == (64, 256)
        assert session.meter.live_bytes == 4 * (64 * 256 + 128 + 64 * 128 + 128)  # 64 biases are rounded to 128


def test_a_model_on_meta_takes_no_memory():
    with trace.fake("cpu") as session:
        model = mlp_on_meta()
        assert session.meter.live_bytes == 0
        model.to_empty(device="cpu")
        assert session.meter.live_bytes == sum(parameter.nbytes for parameter in model.parameters())


def test_the_group_is_gone_afterwards_whatever_happened():
    with contextlib.suppress(ZeroDivisionError), trace.fake(ranks=2):
        assert dist.get_world_size() == 2
        raise ZeroDivisionError
    assert not dist.is_initialized()
    with trace.fake(ranks=3, rank=2):
        assert (dist.get_rank(), dist.get_world_size()) == (2, 3)
        dist.destroy_process_group()
    assert not dist.is_initialized()
    with trace.fake():
        assert not dist.is_initialized()


def test_a_group_after_another_has_its_own_size():
    """DTensor remembers how it distributed things: a mesh of the same shape must not bring back a closed group."""
    for ranks in (2, 4, 2):
        with trace.fake("cpu", ranks=ranks):
            model = mlp_on_meta()
            fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
            model.to_empty(device="cpu")
            trace.record(lambda model=model: model(torch.zeros(4, 256)).sum().backward(), model)
            assert local(model[0].weight).shape == (512 // ranks, 256)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": True}, "ranks is True"),
        ({"ranks": 2.0}, "ranks is 2.0"),
        ({"ranks": 8, "rank": 8}, "0 to 7"),
        ({"ranks": 8, "rank": -1}, "rank is -1"),
        ({"rank": 1}, "rank 1 of no ranks"),
    ],
)
def test_a_rank_that_cannot_be_is_an_error(options, words):
    with pytest.raises(WorkbookError, match=words), trace.fake(**options):
        pass
    assert not dist.is_initialized()


def test_a_process_that_is_a_rank_already_is_an_error(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(os.fspath(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with pytest.raises(WorkbookError, match="process group already"), trace.fake(ranks=2):
            pass
        assert dist.get_backend() == "gloo"
    finally:
        dist.destroy_process_group()
    with trace.fake(ranks=2), pytest.raises(WorkbookError, match=r"fake\(\) inside fake"), trace.fake(ranks=2):
        pass


def test_tensors_that_dtensor_makes_to_learn_shapes_are_not_counted():
    """It does so for shapes that it has not seen yet: these are of no other test."""
    with trace.fake("cpu", ranks=4):
        with torch.device("meta"):
            model = nn.Linear(1031, 1048, bias=False)
        fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
        model.to_empty(device="cpu")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def step() -> None:
            model(torch.zeros(1, 1031)).sum().backward()
            optimizer.step()

        found = trace.record(step, model, optimizer, warmup=0)
    stepping = [event.block for event in found.events if event.phase == Phase.OPTIMIZER and event.sign > 0]
    assert stepping
    assert max(block.size_bytes for block in stepping) == 4 * 262 * 1031 // 512 * 512 + 512
