"""Ranks over machines that this one can only imagine."""

from __future__ import annotations

from helpers.lesson.ranks.seating import Seat, address, by_rank, environments, fitting_backend, threads


def seat(engine: int, host: str, gpus: int = 0, cores: int = 8) -> Seat:
    return Seat(engine, 1000 + engine, host, gpus, cores)


TWO_NODES = [seat(0, "b"), seat(1, "a"), seat(2, "b"), seat(3, "a")]


def test_ranks_of_a_machine_are_neighbours():
    assert [(one.host, one.engine) for one in by_rank(TWO_NODES)] == [("a", 1), ("a", 3), ("b", 0), ("b", 2)]


def test_two_nodes_are_told_what_torchrun_would_tell_them():
    found = environments(by_rank(TWO_NODES), 29400, "nccl")
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in found] == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    common = {"MASTER_ADDR": "a", "MASTER_PORT": "29400", "WORLD_SIZE": "4"}
    assert all(one == common | {"RANK": one["RANK"], "LOCAL_RANK": one["LOCAL_RANK"]} for one in found)


def test_one_node_stays_within_itself():
    seats = [seat(0, "a"), seat(1, "a")]
    assert address(seats) == environments(seats, 1, "gloo")[0]["MASTER_ADDR"] == "127.0.0.1"
    assert environments(seats, 1, "gloo")[1]["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in environments(seats, 1, "nccl")[1]


def test_nccl_needs_a_gpu_for_each_rank():
    assert fitting_backend([seat(0, "a", gpus=2), seat(1, "a", gpus=2)]) == "nccl"
    assert fitting_backend([seat(0, "a", gpus=1), seat(1, "a", gpus=1)]) == "gloo"
    assert fitting_backend([seat(0, "a", gpus=1), seat(1, "b", gpus=1)]) == "nccl"
    assert fitting_backend([seat(0, "a", gpus=1), seat(1, "b")]) == "gloo"


def test_ranks_share_the_cores_of_their_machine():
    assert threads([seat(0, "a"), seat(1, "a"), seat(2, "b", cores=2)]) == [4, 4, 2]
    assert threads([seat(i, "a", cores=2) for i in range(4)]) == [1, 1, 1, 1]
