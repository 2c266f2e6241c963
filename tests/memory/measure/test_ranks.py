"""What collectives carry is counted whichever way they are called."""

from __future__ import annotations

import pytest

from tests.versions import since

outside_autograd = since(
    "torch", "2.13", "has no kernel for this operator but autograd's, which inference mode leaves out"
)


def sent(way: str) -> list[tuple[str, int]]:
    """On a rank: (kind, payload) of what one way of calling carries, of ten numbers in FP64 on each."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    from helpers.memory.measure.ranks import Collectives

    x, group = torch.ones(10, 1, dtype=torch.float64), dist.group.WORLD
    name, other = group.group_name, torch.empty(20, 1, dtype=torch.float64)
    ways = {
        "plain": lambda: dist.all_gather_into_tensor(other, x),
        "functional": lambda: functional.all_gather_tensor(x, 0, group),
        "with a gradient": lambda: functional.all_gather_tensor_autograd(x.requires_grad_(), 0, group),
        "autograd's own": lambda: torch.ops._c10d_functional_autograd.all_gather_into_tensor(x, group.size(), name),
        "reduce-scatter": lambda: functional.reduce_scatter_tensor(x, "sum", 0, group),
        "dtensor": lambda: torch.ops._dtensor.shard_dim_alltoall(x, 1, 0, name),
    }
    with torch.inference_mode(way == "autograd's own"), Collectives() as counted:
        found = ways[way]()
        found = found.wait() if hasattr(found, "wait") else found
    return [(call.kind, call.payload_bytes) for call in counted.traffic.calls]


@pytest.mark.parametrize(
    ("way", "carried"),
    [
        ("plain", ("all_gather", 160)),
        ("functional", ("all_gather", 160)),
        ("with a gradient", ("all_gather", 160)),
        pytest.param("autograd's own", ("all_gather", 160), marks=outside_autograd),
        ("reduce-scatter", ("reduce_scatter", 80)),
        ("dtensor", ("all_to_all", 80)),
    ],
)
def test_a_collective_is_counted_once_whichever_way_it_is_called(ranks2, way, carried):
    assert ranks2.run(sent, way) == [[carried]] * 2


def test_an_operator_that_is_not_known_is_told(ranks2):
    def unknown():
        import torch
        import torch.distributed as dist

        from helpers.memory.measure.ranks import Collectives

        with Collectives():
            dist.all_gather_coalesced([[torch.ones(1)] for _ in range(2)], [torch.ones(1)])

    with pytest.raises(Exception, match="that Collectives does not know: allgather_coalesced_"):
        ranks2.run(unknown)
