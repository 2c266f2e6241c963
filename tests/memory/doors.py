"""Ways around a meter that several of them must see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Door(torch.Tensor):
    """A tensor whose own dispatch does somebody's work: there a mode is off, unless it declined."""

    work: Callable[[], Any]

    @staticmethod
    def __new__(cls, work: Callable[[], Any]) -> Door:
        door = torch.Tensor._make_wrapper_subclass(cls, (1,))
        door.work = work
        return door

    def __init__(self, work: Callable[[], Any]) -> None: ...

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
        args[0].work()
        return torch.zeros(1)
