"""What each layer of a model costs, measured by running it: bytes by the meter, FLOPs by PyTorch's counter.

    layers = layer_costs(model, lambda: model(ids, use_cache=False))
    solve(layers, budget_bytes=...)

Inside `helpers.memory.trace.fake("cpu")` the same code takes no memory: a 7B model's costs in seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count, flop_registry

from ...catalog.errors import WorkbookError
from ...memory.breakdown import rounded
from ...memory.meter.meter import Meter
from ...memory.meter.timeline import AllocationEvent
from ...memory.meter.watch import adopt
from .chain import LayerChoice, LayerCost
from .patched import checkpointed, decoder_layers

_aten = torch.ops.aten
CHOICES = ("none", "full", "selective", "selective:matmuls", "selective:attention")


class _Done(Exception):  # noqa: N818 - nothing went wrong
    """The last layer has been reached: what comes after it in the model need not run."""


def layer_costs(model: nn.Module, run: Callable[[], object], choices: Sequence[str] = CHOICES) -> list[LayerCost]:
    """The costs of every layer of `model`'s chain, with the inputs that `run()`, a forward, gives it.

    Each layer runs forward and backward by itself, for each of `choices` (policies of single layers), so that no more
    than one layer's activations are alive at a time. Layers that look alike are measured once. Sizes are those of the
    meter: what a kernel allocates within itself is not in them. Raises WorkbookError.
    """
    found: list[LayerCost] = []
    alike: dict[tuple, LayerCost] = {}
    layers = decoder_layers(model)

    def measured(layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if not args or not isinstance(args[0], Tensor):
            what, expected = f"{type(layer).__name__} is called without a hidden state", "a tensor as first argument"
            raise WorkbookError(what, expected, "pass a decoder whose layers take their input by position")
        key = _looks(layer, (args, kwargs))
        if key not in alike:
            alike[key] = _layer_cost(layer, args, kwargs, ("none", "full", *choices))
        found.append(alike[key])
        if layer is layers[-1]:
            raise _Done

    with contextlib.ExitStack() as hooks, contextlib.suppress(_Done), torch.no_grad():
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(measured, with_kwargs=True))
        run()
    return found


def _looks(layer: nn.Module, given: Any) -> tuple:
    """Its modules with their settings, its parameters and its inputs: equal for layers that cost the same."""
    parameters = tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in layer.named_parameters())
    inputs = tuple((v.shape, v.dtype) if isinstance(v, Tensor) else type(v) for v in tree_leaves(given))
    return repr(layer), parameters, inputs


def _layer_cost(layer: nn.Module, args: tuple, kwargs: dict, choices: Sequence[str]) -> LayerCost:
    with torch.no_grad():
        forward_flops = flops_of(lambda: layer.forward(*args, **kwargs))
    seen = {how: _bytes_of(layer, args, kwargs, how) for how in dict.fromkeys(choices)}
    flops = {how: _flops_of(layer, args, kwargs, how) for how in seen}
    priced = {how: replace(choice, recompute_flops=flops[how] - flops["none"]) for how, (choice, _) in seen.items()}
    plain, keeps_input = seen["none"]
    return LayerCost(rounded(args[0].nbytes), plain.stored_bytes, keeps_input, forward_flops, priced)


class _Before(torch.autograd.Function):
    """Stands for the layers before: makes the hidden state, and drops its gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, hidden: Tensor) -> Tensor:
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, None


class _After(torch.autograd.Function):
    """Stands for the layers after: keeps nothing of the output, and makes its gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.like = {"size": output.shape, "dtype": output.dtype, "device": output.device}
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.ones(**ctx.like)


def _flops_of(layer: nn.Module, args: tuple, kwargs: dict, how: str) -> int:
    """By itself: the counter holds tensors, and would be seen by the meter."""
    anchor = torch.zeros((), requires_grad=True)
    with _alone(layer), checkpointed(nn.Sequential(layer), how):
        return flops_of(lambda: _forward(layer, anchor, args, kwargs)[0].backward())


def _bytes_of(layer: nn.Module, args: tuple, kwargs: dict, how: str) -> tuple[LayerChoice, bool]:
    """Forward and backward of one layer, as in the middle of a chain: nobody else holds its input or its output.

    Its bytes, and whether it keeps its input.
    """
    anchor, unit = torch.zeros((), requires_grad=True), torch.ones((), dtype=args[0].dtype)
    with _alone(layer), checkpointed(nn.Sequential(layer), how), Meter() as meter:
        adopt(meter, layer, None)
        meter.adopt((t for t in tree_leaves((args, kwargs, anchor, unit)) if isinstance(t, Tensor)), "given")
        given_bytes = meter.live_bytes
        end, key = _forward(layer, anchor, args, kwargs)
        given_bytes += rounded(end.nbytes)
        stored_bytes, keeps_input = meter.live_bytes - given_bytes, key in meter.live
        born = len(meter.events)
        end.backward(unit.to(end.dtype))
        meter.relabel((p.grad for p in layer.parameters() if p.grad is not None), "gradients")
    meter.stop()
    return LayerChoice(stored_bytes, _most(meter.events, born) - given_bytes), keeps_input


@contextlib.contextmanager
def _alone(layer: nn.Module) -> Iterator[None]:
    """With autograd, and without the gradients that the layer has already; those are put back."""
    gradients = [(p, p.grad) for p in layer.parameters()]
    layer.zero_grad(set_to_none=True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _forward(layer: nn.Module, anchor: Tensor, args: tuple, kwargs: dict) -> tuple[Tensor, int]:
    """The end of a small graph, the only thing that holds it, and the key of the layer's input in a meter."""
    hidden = _Before.apply(anchor, args[0])
    key = hidden.untyped_storage()._cdata
    output = layer.forward(hidden, *args[1:], **kwargs)
    return _After.apply(output if isinstance(output, Tensor) else output[0]), key


def _most(events: Sequence[AllocationEvent], born: int) -> int:
    """The most bytes alive from event `born` on, without the gradients of parameters: those are there to stay."""
    live = most = 0
    for number, event in enumerate(events):
        if event.block.category != "gradients":
            live += event.sign * event.block.size_bytes
        most = max(most, live) if number >= born - 1 else most
    return most


def flops_of(step: Callable[[], object]) -> int:
    """FLOPs of the matrix products, convolutions and attention kernels of `step()`. Pointwise operators count nothing.

    >>> layer = torch.nn.Linear(10, 20, bias=False)
    >>> flops_of(lambda: layer(torch.ones(5, 10)))
    2000
    """
    with flop_counter() as counter:
        step()
    return counter.get_total_flops()


def flop_counter() -> FlopCounterMode:
    """PyTorch's counter, with two kernels that cost nothing to it: CPUs' attention, and grouped products of experts.

    Of a convolution by groups its backward counts the products of all channels with all; here those of each group.
    """
    sdpa = "_scaled_dot_product_{}_attention{}"
    mapping = {}
    for end in ("", "_backward"):
        for kernel in ("flash", "efficient", "cudnn"):
            name = sdpa.format(kernel, end)
            mapping[getattr(_aten, name)] = _with_heads_of_the_query(flop_registry[getattr(_aten, name)], bool(end))
        for_cpu = sdpa.format("flash", f"_for_cpu{end}")
        mapping[getattr(_aten, for_cpu)] = mapping[getattr(_aten, sdpa.format("flash", end))]
    mapping[_aten._grouped_mm] = _grouped_product
    mapping[_aten.convolution_backward] = _convolution_backward
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _convolution_backward(out: Sequence[int], x: Sequence[int], weight: Sequence[int], *others: Any, **_: Any) -> int:
    """As often as the forward, for each gradient that is wanted, of x and of the weight."""
    transposed, wanted = others[4], others[-1]
    return sum(wanted[:2]) * conv_flop_count(list(x), list(weight), list(out), transposed=transposed)


def _grouped_product(left: Sequence[int], right: Sequence[int], *_: object, **__: object) -> int:
    """Each row meets one expert's matrix; in the gradient of the matrices each column of `left` one row of `right`."""
    return 2 * left[0] * left[1] * right[-1]


def _with_heads_of_the_query(formula: Callable, backward: bool) -> Callable:
    """`formula` for grouped queries too, which PyTorch 2.11 refuses: their kernels compute as if each had keys.

    The arguments are (query, key, value, ...), behind the gradient of the output in `backward`.
    """

    def count(*given: Any, **kwargs: Any) -> int:
        args = list(given)
        query = args[backward]
        for at in (1 + backward, 2 + backward):
            args[at] = args[at][:, :1].expand(-1, query.shape[1], -1, -1)
        return formula(*args, **kwargs)

    vars(count)["_get_raw"] = True  # the registered formula takes tensors; the counter would turn them into shapes
    return count
