"""Knowing, during the backward pass, when the last gradient of a group is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn


class GradReadyCounter:
    """Calls `complete()` as soon as every one of `parameters` has its gradient, in every backward pass."""

    def __init__(self, parameters: Iterable[nn.Parameter], complete: Callable[[], None]) -> None:
        self.complete, self.expected, self.here = complete, 0, 0
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._one)
            self.expected += 1

    def _one(self, parameter: nn.Parameter) -> None:
        self.here += 1
        if self.here == self.expected:
            self.flush()

    def flush(self) -> None:
        """Call `complete()` for a group of which the loss used a part only: no more gradients will come."""
        if self.here:
            self.here = 0
            self.complete()
