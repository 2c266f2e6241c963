"""`%%peak --trace`: a cell's peak, predicted. Its Python runs, on tensors without values and without memory.

The notebook's names are copied first: models, optimizers and tensors as twins without memory, whatever holds them, and
functions of the notebook so that they use the twins. What the cell sets is thrown away with them.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import re
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

from ..catalog.devices import Device, detect, device
from ..memory.breakdown import format_bytes

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from ..memory.trace import Trace

MOST_LINES = 5
IPYTHONS = {"In", "Out", "exit", "quit", "open", "get_ipython"}
CUDA = re.compile(r"cuda(:\d+)?")


def predict(shell: InteractiveShell, cell: str, gpu: str | None) -> tuple[int, str]:
    """(bytes beyond what was there before, the same in words). The GPU's kernels count where one is named or here.

    WorkbookError for a cell that asks for a tensor's value.
    """
    import torch

    from ..memory import trace

    card = device(gpu) if gpu else detect()
    tree = _on_no_device(ast.parse(shell.transform_cell(cell)))
    code = compile(tree, "the cell", "exec")
    with trace.fake("cuda" if card else "cpu", card):
        names = _twins(shell.user_ns)
        with contextlib.redirect_stdout(io.StringIO()), _moved_nowhere():
            models = [value for value in names.values() if isinstance(value, torch.nn.Module)]
            optimizers = [value for value in names.values() if isinstance(value, torch.optim.Optimizer)]
            largest = max(models, key=lambda one: sum(p.numel() for p in one.parameters()), default=None)
            found = trace.record(lambda: exec(code, names), largest, optimizers, warmup=0)
    before = sum(event.sign * event.block.size_bytes for event in found.events[: found.first])
    peak_bytes = max(0, found.peak_bytes - before)
    return peak_bytes, _page(found, peak_bytes, card)


def _page(found: Trace, peak_bytes: int, card: Device | None) -> str:
    where = f" on the {card.title}" if card else ""
    lines = [f"predicted peak{where}: {format_bytes(peak_bytes)} beyond what was there before; nothing was computed"]
    old = {id(event.block) for event in found.events[: found.first]}
    new = [block for block in found.at_peak if id(block) not in old]
    if new:
        lines.append("largest tensors that the cell makes, live at the peak:")
    for block in new[:MOST_LINES]:
        lines.append(f"  {format_bytes(block.size_bytes):>11}  {block.category}: {block.owner or 'the cell itself'}")
    return "\n".join(lines)


class _OnNoDevice(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if isinstance(node.value, str) and CUDA.fullmatch(node.value):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node


def _on_no_device(tree: ast.Module) -> ast.Module:
    """The cell with "cpu" where it says "cuda": tensors without memory lie on no device, and a trace wants one kind."""
    return ast.fix_missing_locations(_OnNoDevice().visit(tree))


@contextlib.contextmanager
def _moved_nowhere() -> Iterator[None]:
    """`.cuda()` gives back what it is called on."""
    import torch

    def stay(self: Any, *args: object, **kwargs: object) -> Any:
        return self

    with mock.patch.object(torch.Tensor, "cuda", stay), mock.patch.object(torch.nn.Module, "cuda", stay):
        yield


def _twins(names: Mapping[str, Any]) -> dict[str, Any]:
    """The notebook's names, its tensors without memory, inside `fake()`; what cannot be copied is shared."""
    import torch

    from ..memory.trace.fake import twin

    memo: dict[int, Any] = {}

    def without_memory(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if id(tensor) not in memo:
            memo[id(tensor)] = new = twin(tensor.detach() if not tensor.is_leaf else tensor)
            new.requires_grad_(tensor.requires_grad) if tensor.is_floating_point() else new
            if tensor.is_leaf and tensor.grad is not None:
                new.grad = without_memory(tensor.grad, memo)
        return memo[id(tensor)]

    found: dict[str, Any] = {}
    with (
        mock.patch.object(torch.Tensor, "__deepcopy__", without_memory),
        mock.patch.object(torch.nn.Parameter, "__deepcopy__", without_memory),
    ):
        for name, value in names.items():
            found[name] = value if _is_shared(name, value) else _copied(value, memo)
    for name, value in found.items():
        if isinstance(value, FunctionType) and value.__globals__ is names:
            found[name] = _rebound(value, found)
        elif isinstance(value, torch.device) or (isinstance(value, str) and CUDA.fullmatch(value)):
            found[name] = "cpu"
    return found


def _is_shared(name: str, value: object) -> bool:
    return name.startswith("_") or name in IPYTHONS or isinstance(value, ModuleType | FunctionType | type)


def _copied(value: object, memo: dict[int, Any]) -> object:
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # a generator, a lock, a file: whatever refuses is not a tensor's holder that a step needs
        return value


def _rebound(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """A function of the notebook that looks its names up among the twins."""
    new = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    new.__kwdefaults__ = function.__kwdefaults__
    return new
