"""Ranks over several machines, on paper."""

from __future__ import annotations

from helpers.lesson.ranks.placement import (
    Placement,
    by_rank,
    choose_backend,
    master_address,
    rank_environments,
    threads_per_rank,
)


def placed(engine: int, host: str, gpus: int = 0, cores: int = 8) -> Placement:
    return Placement(engine, 1000 + engine, host, gpus, cores)


TWO_NODES = [placed(0, "b"), placed(1, "a"), placed(2, "b"), placed(3, "a")]


def test_ranks_of_a_machine_are_neighbours():
    assert [(placement.host, placement.engine) for placement in by_rank(TWO_NODES)] == [
        ("a", 1),
        ("a", 3),
        ("b", 0),
        ("b", 2),
    ]


def test_two_nodes_get_the_environment_of_torchrun():
    found = rank_environments(by_rank(TWO_NODES), 29400, "nccl")
    assert [(rank["RANK"], rank["LOCAL_RANK"]) for rank in found] == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    common = {"MASTER_ADDR": "a", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}
    assert all(rank == common | {"RANK": rank["RANK"], "LOCAL_RANK": rank["LOCAL_RANK"]} for rank in found)


def test_one_node_stays_within_itself():
    placements = [placed(0, "a"), placed(1, "a")]
    assert master_address(placements) == rank_environments(placements, 1, "gloo")[0]["MASTER_ADDR"] == "127.0.0.1"
    assert rank_environments(placements, 1, "gloo")[1]["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in rank_environments(placements, 1, "nccl")[1]


def test_nccl_needs_a_gpu_for_each_rank():
    assert choose_backend([placed(0, "a", gpus=2), placed(1, "a", gpus=2)]) == "nccl"
    assert choose_backend([placed(0, "a", gpus=1), placed(1, "a", gpus=1)]) == "gloo"
    assert choose_backend([placed(0, "a", gpus=1), placed(1, "b", gpus=1)]) == "nccl"
    assert choose_backend([placed(0, "a", gpus=1), placed(1, "b")]) == "gloo"


def test_ranks_share_the_cores_of_their_machine():
    assert threads_per_rank([placed(0, "a"), placed(1, "a"), placed(2, "b", cores=2)]) == [4, 4, 2]
    assert threads_per_rank([placed(i, "a", cores=2) for i in range(4)]) == [1, 1, 1, 1]
