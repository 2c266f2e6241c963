"""A cache over denoising steps: what attention and MLPs computed at one step stands in for them at the next few.

Neighbouring steps of a diffusion model compute nearly the same, so every `every`-th step computes and the others read.
It is paid in memory: two tensors of batch x tokens x hidden for each layer, alive from one step to the next.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...catalog.errors import require_whole


class StepCache:
    """Hand it to the model at each step, `begin_step()` before: `cache(layer, what, compute)` computes or reads."""

    def __init__(self, every: int) -> None:
        self.every = require_whole("every", every, 1, unit="steps")
        self.kept: dict[tuple[int, str], Tensor] = {}
        self._step = -1

    @classmethod
    def off(cls) -> StepCache:
        """One that never keeps anything."""
        return cls(1)

    def begin_step(self) -> None:
        self._step += 1
        if self._step % self.every == 0:
            self.kept.clear()

    def __call__(self, layer: int, what: str, compute: Callable[[], Tensor]) -> Tensor:
        if self.every == 1:
            return compute()
        if (layer, what) not in self.kept:
            self.kept[layer, what] = compute()
        return self.kept[layer, what]
