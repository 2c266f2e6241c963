"""Dynamic loss scaling: gradients of FP16 that would be too small are computed from a loss that was multiplied.

Micikevicius et al. 2017, "Mixed Precision Training", arXiv:1710.03740. A gradient is linear in the loss: of a loss
times 65,536 all gradients are 65,536 times as large, out of the range where FP16 has zeros and subnormals alone. They
are divided again, in FP32, before the optimizer reads them. A scale that is too large shows by itself: some gradient
becomes infinite. So the scale is doubled until that happens, and halved when it does; that step is skipped.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...catalog.errors import WorkbookError, require_number, require_whole

FP32_LARGEST = torch.finfo(torch.float32).max


class LossScaler:
    """As `torch.amp.GradScaler`, step by step, with the scale as a plain number.

        scaler.scaled(loss).backward()
        scaler.step(optimizer)          # divides the gradients; steps, unless one is infinite or NaN
        scaler.update()                 # halves the scale after a skipped step; doubles it after 2,000 good ones

    `skipped` counts the steps that were not taken. To clip gradients, call `unscale(optimizer)` first, then clip, then
    step. Factors that are powers of two change no digit of a gradient.
    """

    def __init__(
        self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, growth_interval: int = 2000
    ) -> None:
        require_number("scale", scale, expected="a number above 0", do="pass scale=2.0**16")
        require_number("growth - 1", growth - 1, expected="growth above 1", do="pass growth=2.0")
        require_number("backoff", backoff, below=1, expected="a number above 0 and below 1", do="pass backoff=0.5")
        require_whole("growth_interval", growth_interval)
        self.scale, self.growth, self.backoff, self.growth_interval = float(scale), growth, backoff, growth_interval
        self.skipped = 0
        self.good_steps = 0  # since the scale last changed
        self._finite: dict[int, bool] = {}  # of each optimizer whose gradients were divided since the last update
        self._stepped: set[int] = set()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss times the scale, in FP32, which a loss in FP16 becomes as well: it would soon be infinite."""
        return loss * torch.tensor(self.scale, device=loss.device)

    @torch.no_grad()
    def unscale(self, optimizer: Optimizer) -> bool:
        """Divides the optimizer's gradients by the scale, in place, once a step; True if all of them are finite."""
        if id(optimizer) in self._finite:
            do = "call update() after each step()"
            raise WorkbookError("these gradients are unscaled already", "one unscale() between two updates", do)
        grads = _require_gradients(optimizer)
        finite = all(bool(grad.isfinite().all()) for grad in grads)
        for grad in grads:
            grad.mul_(1 / self.scale)
        self._finite[id(optimizer)] = finite
        return finite

    def step(self, optimizer: Optimizer) -> bool:
        """Unscales, where that was not done; then the optimizer's step. False if it was skipped."""
        if id(optimizer) in self._stepped:
            raise WorkbookError("this optimizer has stepped already", "one step() between two updates", "call update()")
        if id(optimizer) not in self._finite:
            self.unscale(optimizer)
        self._stepped.add(id(optimizer))
        if self._finite[id(optimizer)]:
            optimizer.step()
            return True
        self.skipped += 1
        return False

    def update(self) -> None:
        """Backs off at once, grows after `growth_interval` good steps in a row, and never grows to infinity."""
        if not self._finite:
            raise WorkbookError("no gradient was looked at since the last update", "a step()", "call step() first")
        if not all(self._finite.values()):
            self.scale, self.good_steps = self.scale * self.backoff, 0
        else:
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                grown = self.scale * self.growth
                self.scale, self.good_steps = grown if grown <= FP32_LARGEST else self.scale, 0
        self._finite.clear()
        self._stepped.clear()


def _require_gradients(optimizer: Optimizer) -> list[Tensor]:
    """FP16 gradients are refused: divided in FP16, what scaling has saved becomes zero again."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if not grads:
        do = "call scaler.scaled(loss).backward() first"
        raise WorkbookError("no weight of this optimizer has a gradient", "gradients of a scaled loss", do)
    if any(grad.dtype == torch.float16 for grad in grads):
        do = "keep the weights in FP32 and compute under torch.autocast"
        raise WorkbookError("gradients in FP16, and so weights in FP16", "gradients in FP32 or BF16", do)
    return grads
