"""PyTorch's own solver: `torch.compile` given a memory budget decides, operator by operator, what backward recomputes.

    found = activation_memory_budget(model, lambda compiled: compiled(x).sum(), fraction=0.5)
    found.saved_bytes, found.flops

It sees single operators of one graph where `solve` sees layers, so it finds finer cuts, and it weighs saved bytes, not
the peak. `fraction` is of what it would save by itself, whose cut already recomputes what is cheap. Needs no C++
compiler: the graphs are run as they are. The setting, `torch._functorch.config.activation_memory_budget`, is private.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from ...catalog.errors import WorkbookError
from .costs import flop_counter


@dataclass(frozen=True)
class CompiledStep:
    """What the graphs that PyTorch cut save for backward, parameters excluded, and their FLOPs in both directions."""

    saved_bytes: int
    flops: int


def activation_memory_budget(model: nn.Module, run: Callable[[Callable], Tensor], fraction: float) -> CompiledStep:
    """One compiled step of `model` under `fraction` (0 to 1) of the memory; `run(compiled)` makes the loss.

    A few seconds. A model that breaks the graph is cut graph by graph. No dispatch mode, such as a Meter or a FLOP
    counter, may be active: `torch.compile` would run eagerly and say nothing. Raises WorkbookError.
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
        expected = "a fraction from 0 (save nothing) to 1"
        raise WorkbookError(f"a memory budget of {fraction!r}", expected, "pass fraction=0.5")
    from torch._functorch import config

    flops: list[int] = []
    torch._dynamo.reset()  # else an earlier budget's graphs are taken
    with warnings.catch_warnings(), config.patch(activation_memory_budget=float(fraction)):
        warnings.filterwarnings("ignore", "Guards may run slower", RuntimeWarning)  # on Python 3.13.0; nothing is timed
        saved, loss = _saved_by(lambda: run(torch.compile(model, backend=_counting(flops))), model)
    loss.backward()
    if not flops:
        expected = "no Meter and no FLOP counter at work"
        raise WorkbookError("torch.compile compiled nothing", expected, "call activation_memory_budget outside of them")
    return CompiledStep(saved, sum(flops))


def _counting(flops: list[int]) -> Callable:
    """A backend that cuts as `torch.compile` does, notes the FLOPs of each graph, and runs it as it is."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable:
        def counted(*args: Any) -> Any:
            with flop_counter() as counter:
                outputs = graph(*args)
            flops.append(counter.get_total_flops())
            return outputs

        return make_boxed_func(counted)

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=min_cut_rematerialization_partition)


def _saved_by(run: Callable[[], Tensor], model: nn.Module) -> tuple[int, Tensor]:
    """Bytes of the storages that the graphs save, parameters and buffers excluded; and the loss."""
    ours = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in ours:
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    return sum(sizes.values()), loss
