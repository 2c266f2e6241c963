"""Watching a step: at every allocation, which phase runs and which module is at work."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ...catalog.errors import WorkbookError
from ..breakdown import Part, Phase
from .leaves import leaves
from .meter import Meter, holds_no_memory
from .timeline import Measurement, PartOf, account

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | Mapping[object, torch.optim.Optimizer] | None


class Watch:
    """Knows, at every allocation, which phase runs and which module is at work. `model` may be None.

    `optimizer` is one, several, or a dict of them; one that makes its states while it is watched joins them.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: Optimizers,
        device: torch.device,
        foreign_bytes: int = 0,
        meter: Meter | None = None,
        found: WeakSet[torch.optim.Optimizer] | None = None,
    ) -> None:
        self.model, self.given = model, listed(optimizer)
        self.found = WeakSet() if found is None else found  # none of them is kept alive by being watched
        self.uncounted: list[str] = []  # optimizers that step with states which the meter may never have seen
        self.device, self.foreign_bytes = device, foreign_bytes
        self.names = {module: name for name, module in model.named_modules()} if model else {}
        self.parameter_names = {id(p): name for name, p in model.named_parameters()} if model else {}
        self.stack: list[str] = []
        self.after_backward = False  # from optimizer.step() until a module runs again: the gradients go then
        self.meter = meter or Meter()
        self.meter.where = self._where

    def measure(self, run: Callable[[], object], seconds: float | None, part_of: PartOf | None = None) -> Measurement:
        gc.collect()
        adopt(self.meter, self.model, self.optimizers)
        before = len(self.meter.events)
        hidden_bytes = self._run(run)
        self.meter.stop()
        self.require_all_counted()
        events, kind = self.meter.events, str(self.device.type)
        return account(events, before, self.vocab, hidden_bytes, kind, seconds, part_of)

    def _run(self, run: Callable[[], object]) -> int:
        """Run under the meter; return the bytes that only the CUDA allocator saw."""
        on_cuda = self.device.type == "cuda"
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        with self.hooked(), self.meter:
            run()
        if not on_cuda:
            return 0
        return max(0, torch.cuda.max_memory_allocated(self.device) - self.foreign_bytes - self.meter.peak_bytes)

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that were passed, and those that have been found."""
        return list(dict.fromkeys((*self.given, *self.found)))

    @property
    def vocab(self) -> int | None:
        return getattr(getattr(self.model, "config", None), "vocab_size", None)

    def _where(self) -> tuple[str, str]:
        if self.after_backward:
            return Phase.OPTIMIZER, ""
        # -1 outside a backward pass; inside one, a module at work means that checkpointing recomputes it
        phase = Phase.FORWARD if torch._C._current_graph_task_id() == -1 else Phase.BACKWARD
        return phase, self.stack[-1] if self.stack else ""

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        handles += [
            p.register_post_accumulate_grad_hook(self._got_gradient)
            for p in (self.model.parameters() if self.model else ())
            if p.requires_grad
        ]
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
            self.meter.relabel([parameter.grad], Part.GRADIENTS)
            self.meter.name(parameter.grad, self.parameter_names.get(id(parameter), ""))

    def _optimizer_begins(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if optimizer not in self.optimizers:
            if any(state.numel() and self.meter.block_of(state) is None for state in tensors_in(optimizer.state)):
                self.uncounted.append(type(optimizer).__name__)
            self.found.add(optimizer)
        self.meter.stepping = True
        if torch._C._current_graph_task_id() == -1:
            self.after_backward = True
            return
        # It steps inside the backward, from a hook that came before `_got_gradient`, and then frees the gradients
        self.meter.relabel(gradients_of(optimizer), Part.GRADIENTS)

    def require_all_counted(self) -> None:
        """WorkbookError if an optimizer has stepped whose states were made before, and which nobody named."""
        if self.uncounted:
            what = f"{self.uncounted[0]} has states from before that are not counted: it steps, and was not passed"
            do = "pass all that step, as in [first, second], or let a warm-up step find them"
            raise WorkbookError(what, "every optimizer of the step", do)

    def _optimizer_ends(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self.meter.stepping = False
        self.meter.relabel(tensors_in(optimizer.state), Part.OPTIMIZER)


def listed(optimizer: Optimizers) -> list[torch.optim.Optimizer]:
    """The optimizers of one, of several, or of a dict's values, each once; WorkbookError for what is none.

    >>> layer = nn.Linear(1, 1)
    >>> len(listed({"weights": torch.optim.SGD([layer.weight]), "biases": torch.optim.SGD([layer.bias])}))
    2
    """
    given = optimizer.values() if isinstance(optimizer, Mapping) else optimizer
    several = list(given) if isinstance(given, Iterable) else [] if given is None else [given]
    for one in several:
        if not isinstance(one, torch.optim.Optimizer):
            expected = "a torch.optim.Optimizer, several, or a dict of them"
            raise WorkbookError(f"an optimizer is a {type(one).__name__}", expected, "pass what steps in your loop")
    return list(dict.fromkeys(several))


@contextlib.contextmanager
def finding(found: WeakSet[torch.optim.Optimizer]) -> Iterator[None]:
    """Optimizers that step in here are added to `found`, which keeps none of them alive."""
    handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: found.add(optimizer))
    try:
        yield
    finally:
        handle.remove()


def adopt(meter: Meter, model: nn.Module | None, optimizers: Optimizers) -> None:
    """Count what is alive between two steps: weights, states, and master copies that only the optimizers know."""
    if model is not None:
        meter.adopt((tensor for _, tensor in weights_of(model)), Part.PARAMETERS)
        meter.adopt((p.grad for p in model.parameters() if p.grad is not None), Part.GRADIENTS)
    for optimizer in listed(optimizers):
        updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        meter.adopt((*tensors_in(optimizer.state), *updated), Part.OPTIMIZER)
        meter.adopt(gradients_of(optimizer), Part.GRADIENTS)


def gradients_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    updated = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return (parameter.grad for parameter in updated if parameter.grad is not None)


def weights_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, and what bitsandbytes keeps beside them: scales and code tables."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield name, tensor
        yield from ((name, beside) for beside in attached_tensors(tensor))


def attached_tensors(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """What bitsandbytes hangs on a weight: a Params4bit's QuantState, nested ones too, and an Int8Params' scales."""
    found, state = [getattr(weight, "SCB", None)], getattr(weight, "quant_state", None)
    while state is not None:
        found += [getattr(state, name, None) for name in ("absmax", "code", "offset")]
        state = getattr(state, "state2", None)  # gone once a CPU has unfolded it
    yield from (tensor for tensor in found if isinstance(tensor, torch.Tensor))


def tensors_in(state: dict) -> list[torch.Tensor]:
    """The tensors of an optimizer's state, however it nests them: galore-torch keeps its projector in an object.

    Of torchao's low-bit states, the plain tensors inside.
    """
    return [tensor for value in leaves(dict(state)) for tensor in _within(value)]


def _within(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor) and hasattr(value, "__tensor_flatten__") and not holds_no_memory([type(value)]):
        yield from (tensor for name in value.__tensor_flatten__()[0] for tensor in _within(getattr(value, name)))
    elif isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from (tensor for held in vars(value).values() for tensor in _within(held))
