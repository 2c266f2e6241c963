"""What the optimizers here have in common: one tensor after the other, and states that keep their type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_number


class TensorOptimizer(torch.optim.Optimizer):
    """An optimizer that updates one tensor at a time; every byte that it keeps lies in `state`.

    A subclass has `begin(weight, group)`, the states of a tensor before its first step, and
    `update(weight, grad, state, group)`, which changes weight and states in place.
    """

    def __init__(self, parameters: Iterable[Any], lr: float, **settings: Any) -> None:
        require_number("lr", lr, expected="a learning rate above 0", do="pass lr=1e-3")
        for beta in settings.get("betas", ()):
            if not 0 <= beta < 1:
                raise WorkbookError(f"betas are {settings['betas']}", "from 0 up, below 1", "pass betas=(0.9, 0.999)")
        super().__init__(parameters, {"lr": lr, **settings})

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step over all weights that have a gradient. A closure is called first, and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    require_dense(weight.grad)
                    state = self.state[weight]
                    if not state:
                        state.update({"step": 0} | self.begin(weight, group))
                    state["step"] += 1
                    self.update(weight, weight.grad, state, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimizer's, but the states keep their type: torch would cast 8-bit codes to the weight's.

        What tensors share, such as a table of levels, they share again.
        """
        super().load_state_dict(state_dict)
        copies: dict[tuple[int, torch.device], Tensor] = {}
        weights = (weight for group in self.param_groups for weight in group["params"])
        for number, weight in enumerate(weights):
            for name, saved in state_dict["state"].get(number, {}).items():
                if isinstance(saved, Tensor):
                    key = id(saved), weight.device
                    if key not in copies:
                        copies[key] = saved.to(weight.device, copy=True)
                    self.state[weight][name] = copies[key]


def state_bytes(*optimizers: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of each kind of state that `optimizers` keep, by its name there; a storage counts once, and whole.

    What lies in other objects counts, too (galore-torch keeps its projection in one), and so do step counters that are
    tensors. A view counts as all of what it shows a part of, for all of that stays in memory.

    >>> weight = torch.nn.Parameter(torch.ones(100))
    >>> weight.grad, optimizer = torch.ones(100), torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    >>> optimizer.step()
    >>> state_bytes(optimizer)
    {'momentum_buffer': 400}
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                for tensor in tensors_within(value):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in seen:
                        seen.add(storage._cdata)
                        found[name] = found.get(name, 0) + storage.nbytes()
    return found


def tensors_within(value: object) -> Iterator[Tensor]:
    """The plain tensors that a value holds: inside lists, dicts, objects, and wrappers such as torchao's."""
    if isinstance(value, Tensor) and not hasattr(value, "__tensor_flatten__"):
        yield value
    elif isinstance(value, Tensor):
        wrapper: Any = value
        yield from tensors_within([getattr(wrapper, name) for name in wrapper.__tensor_flatten__()[0]])
    elif isinstance(value, dict):
        yield from tensors_within(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_within(part)
    elif hasattr(value, "__dict__"):
        yield from tensors_within(list(vars(value).values()))


def require_dense(grad: Tensor) -> None:
    if grad.is_sparse:
        raise WorkbookError("a sparse gradient", "dense ones", "build the embedding without sparse=True")


def require_matrix(weight: Tensor, optimizer: str) -> Tensor:
    """`weight` if it is a matrix; else a WorkbookError that says which optimizer takes the rest."""
    if weight.dim() != 2:
        what = f"a weight of shape {tuple(weight.shape)}"
        raise WorkbookError(what, f"matrices, for which {optimizer} is made", "give the rest to torch.optim.AdamW")
    return weight
