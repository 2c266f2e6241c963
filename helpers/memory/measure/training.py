"""Measure a training step where it runs: on a GPU by its allocator and the meter, on a CPU by the meter alone."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...catalog.errors import WorkbookError
from ...catalog.setup import TrainSetup
from ..meter import Meter
from ..steps import training_run
from ..timeline import BACKWARD, FORWARD, OPTIMIZER, Measurement, account


def step(
    run: Callable[[], object],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    warmup: int = 1,
) -> Measurement:
    """Run `run()`, one whole training step of yours, and account for every byte of it.

    `run` takes no arguments and does forward, backward and `optimizer.step()` as your code does. `warmup` steps come
    first, unmeasured: the first step of a run is different, because the optimizer makes its states there
    (`warmup=0` shows it; `seconds` is steady from `warmup=2`). Sizes are rounded to 512 bytes, as CUDA rounds them.
    Raises WorkbookError.

    >>> layer = nn.Linear(256, 256, bias=False)
    >>> measured = step(lambda: layer(torch.ones(2, 256)).sum().backward(), layer)
    >>> measured.parts["parameters"]
    262144
    """
    if not callable(run):
        raise WorkbookError(f"run is a {type(run).__name__}", "a function without arguments that makes one training "
                            "step", "pass the function itself: step(train_step, model, optimizer)")  # fmt: skip
    if not isinstance(model, nn.Module):
        raise WorkbookError(f"model is a {type(model).__name__}", "a torch.nn.Module", "pass the model you train")
    device = _device_of(model)
    foreign_bytes = _foreign_bytes(model, optimizer, device)
    seconds = None
    for _ in range(warmup):
        seconds = _timed(run, device)
    return _Watch(model, optimizer, device, foreign_bytes).measure(run, seconds)


def training_step(setup: TrainSetup, device: str | None = None, warmup: int = 1) -> Measurement:
    """Build the model of `setup` with random weights and measure a real training step of it on this machine.

    `device` is "cuda" where there is a GPU, else "cpu". Raises WorkbookError when the run would not fit.
    """
    prepared = training_run(setup, device)
    return step(prepared.step, prepared.model, prepared.optimizer, warmup)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise WorkbookError("the model has no parameters", "a model that trains something", "pass the model you train")
    return parameter.device


def _adopt(meter: Meter, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Count what is alive between two steps: weights, states, and master copies that only the optimizer knows."""
    meter.adopt((*model.parameters(), *model.buffers()), "parameters")
    meter.adopt((p.grad for p in model.parameters() if p.grad is not None), "gradients")
    if optimizer is not None:
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        meter.adopt((*_tensors(optimizer.state), *updated), "optimizer")
        meter.adopt((p.grad for p in updated if p.grad is not None), "gradients")


def _foreign_bytes(model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device) -> int:
    """Bytes that this process has allocated on a GPU for something else than this model and optimizer.

    cuBLAS workspaces of earlier cells are dropped first: this step makes its own, and they are counted.
    """
    if device.type != "cuda":
        return 0
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    owned = Meter()
    _adopt(owned, model, optimizer)
    owned.stop()
    return torch.cuda.memory_allocated(device) - owned.live_bytes


class _Watch:
    """Knows, at every allocation, which phase runs and which module is at work."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device, foreign_bytes: int
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.device, self.foreign_bytes = device, foreign_bytes
        self.names = {module: name for name, module in model.named_modules()}
        self.stack: list[str] = []
        self.after_backward = False  # from optimizer.step() until a module runs again: the gradients go then
        self.meter = Meter(where=self._where)

    def measure(self, run: Callable[[], object], seconds: float | None) -> Measurement:
        gc.collect()
        _adopt(self.meter, self.model, self.optimizer)
        born = len(self.meter.events)
        hidden_bytes = self._run(run)
        self.meter.stop()
        return account(self.meter.events, born, self._vocab(), hidden_bytes, str(self.device.type), seconds)

    def _run(self, run: Callable[[], object]) -> int:
        """Run under the meter; return the bytes that only the CUDA allocator saw."""
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        with self._hooked(), self.meter:
            run()
        if not on_cuda:
            return 0
        return max(0, torch.cuda.max_memory_allocated(self.device) - self.foreign_bytes - self.meter.peak_bytes)

    def _vocab(self) -> int | None:
        return getattr(getattr(self.model, "config", None), "vocab_size", None)

    def _where(self) -> tuple[str, str]:
        if self.after_backward:
            return OPTIMIZER, ""
        # -1 outside a backward pass; inside one, a module at work means that checkpointing recomputes it
        phase = FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD
        return phase, self.stack[-1] if self.stack else ""

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        handles += [p.register_post_accumulate_grad_hook(self._got_gradient)
                    for p in self.model.parameters() if p.requires_grad]  # fmt: skip
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: tuple) -> None:
        self.after_backward = False
        self.stack.append(self.names.get(module, type(module).__name__))

    def _leave(self, module: nn.Module, args: tuple, output: object) -> None:
        self.stack.pop()

    def _got_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:  # a hook of the reader's may have moved it already
            self.meter.relabel([parameter.grad], "gradients")

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.after_backward = True

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.meter.relabel(_tensors(optimizer.state), "optimizer")


def _tensors(state: dict) -> list[torch.Tensor]:
    """The tensors of an optimizer's state, however it nests them."""
    return [value for value in torch.utils._pytree.tree_leaves(dict(state)) if isinstance(value, torch.Tensor)]
