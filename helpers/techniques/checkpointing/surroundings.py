"""What a forward pass depends on besides its inputs. A second run is only the same if all of it is as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The random states, of the CPU and of every GPU, and autocast, as they are when `now()` is called.

    Dropout asks the random state which values to drop. Without it the second run drops others, and the gradients
    are those of a function that never was.
    """

    cpu_rng: Tensor
    cuda_rng: list[Tensor]
    autocast: dict[str, torch.dtype | None]

    @classmethod
    def now(cls) -> Surroundings:
        on_gpu = torch.cuda.is_initialized()
        kinds = ("cpu", "cuda") if on_gpu else ("cpu",)
        autocast = {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if on_gpu else [], autocast)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """As it was then; and afterwards as it was just now, so that the step's later dropouts are not repeats."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=range(len(self.cuda_rng))))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
            torch.set_rng_state(self.cpu_rng)
            if self.cuda_rng:
                torch.cuda.set_rng_state_all(self.cuda_rng)
            yield
