"""Autograd adds two gradients in place where nobody else holds the first; a mode that watches hides that."""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple

import torch

ADD = torch.ops.aten.add.Tensor


class GradientSum(NamedTuple):
    """Two gradients that autograd has just added, and could have added in place.

    It does where nobody else holds the first one. That cannot be asked from here, and shows at once: if nobody does,
    the first is freed as soon as the sum is there.
    """

    made: int  # this and `first` by their storage's address in C++
    first: int
    events: int  # how many there were when it was made
    peak_bytes: int  # before it was made


def adds_gradients(first: torch.Tensor, second: object, *_: object) -> bool:
    """Whether autograd adds two gradients, and `first` may take their sum when no mode watches.

    The conditions are those of can_accumulate_inplace in torch/csrc/autograd/input_buffer.cpp. A view may not take it:
    its base holds its storage.
    """
    return (
        not torch.is_grad_enabled()
        and isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and first.layout == torch.strided
        and torch.ops.aten.is_non_overlapping_and_dense(first)
        and not first._is_view()
        and _asked_by_autograd()
    )


def _asked_by_autograd() -> bool:
    """Whether the nearest frame that is no part of a mode is `backward`'s, or there is none: a GPU has a thread of
    autograd's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _belongs_to_a_mode(frame):
        frame = frame.f_back
    return frame is None or frame.f_code is torch.autograd.graph._engine_run_backward.__code__


def _belongs_to_a_mode(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return module == __name__ or module.startswith("torch._") or frame.f_code.co_name == "__torch_dispatch__"
