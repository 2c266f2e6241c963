"""Functions that the tests send to ranks, and what they ask about processes."""

from __future__ import annotations

import ctypes
import os
import re
import time

import torch
import torch.distributed as dist

from helpers.lesson.ranks import Ranks, kept, reaper


def total(value: int) -> torch.Tensor:
    """The sum over ranks of (rank + 1) * value, twice."""
    found = torch.full((2,), (dist.get_rank() + 1) * value)
    dist.all_reduce(found)
    return found


def keep(name: str, value: object) -> None:
    kept[name] = value


def recall(name: str) -> object:
    return kept[name]


def greet() -> None:
    print("hello from", dist.get_rank())


def environment() -> dict[str, str]:
    return dict(os.environ)


def one_raises() -> None:
    if dist.get_rank() == 1:
        raise ValueError("boom")
    dist.barrier()


def all_raise() -> None:
    raise ValueError(f"boom on {dist.get_rank()}")


def one_ends_itself(code: int) -> None:
    if dist.get_rank() == 1:
        os._exit(code)
    dist.barrier()


def one_is_killed(sig: int) -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), sig)
    dist.barrier()


def one_collective_too_few() -> None:
    if dist.get_rank() == 0:
        dist.barrier()


def one_sleeps(seconds: float) -> None:
    if dist.get_rank() == 1:
        time.sleep(seconds)


def crashes() -> None:
    if dist.get_rank() == 1:
        ctypes.string_at(0)
    dist.barrier()


def one_loops() -> None:
    while dist.get_rank() == 1:
        kept["n"] = kept.get("n", 0) + 1


def holds_the_interpreter() -> None:
    """Backtracking in `re` never gives the lock back: no other Python thread of the process runs."""
    if dist.get_rank() == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")


def everything_of(ranks: Ranks) -> tuple[str, str]:
    """The mark and the folder of a set of ranks: with them a test asks what is left of it."""
    engines = ranks._group.engines
    return engines.mark, engines.folder


def left_of(mark: str, folder: str) -> list[object]:
    """What is still there, all of which should be gone."""
    return [*reaper.marked(mark), *([folder] if os.path.exists(folder) else [])]
