"""Tensors without memory: a place where PyTorch runs and nothing is allocated, and models of any size inside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode

from .dtensors import on_parts
from .quantized import is_unpacked, packed

# The old tensor, which keeps its id its own, and the new one, by that id.
Swapped = dict[int, tuple[torch.Tensor, torch.Tensor]]


def without_memory(model: nn.Module, mode: FakeTensorMode, made: Swapped | None = None) -> nn.Module:
    """Give a model built on the meta device fake parameters and buffers, ties kept; inside `mode`.

    In the order of `Module._apply`, children first: the order in which `model.cuda()` allocates. `made` are twins that
    are there already.
    """
    with mode:
        return _swap(model, on_parts(twin), {} if made is None else made)


def _swap(
    module: nn.Module, new: Callable[[torch.Tensor], torch.Tensor], made: Swapped, recurse: bool = True
) -> nn.Module:
    """Put `new(tensor)` in the place of each parameter and buffer, one for all places of a tied one."""
    for child in module.children() if recurse else ():
        _swap(child, new, made)
    held: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
    for tensors in held:
        for name, tensor in tensors.items():
            if tensor is not None:
                if id(tensor) not in made:
                    made[id(tensor)] = tensor, new(tensor)
                tensors[name] = made[id(tensor)][1]
    return module


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """The same without memory; of a weight of bitsandbytes' Linear4bit what that keeps of it."""
    if is_unpacked(tensor):
        return packed(tensor)
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return nn.Parameter(new, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def convert(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    """`Module._apply` for fake parameters: `.to(dtype)` and `.half()` put new ones in place of the old, ties kept.

    The real one swaps the tensors' insides, which those of fake tensors do not allow.
    """

    def converted(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            new = on_parts(fn)(tensor)
        if new is tensor or not isinstance(tensor, nn.Parameter):
            return new
        return nn.Parameter(new, requires_grad=tensor.requires_grad)

    return _swap(module, converted, {}, recurse)


def _one_sequence(*args: object, **kwargs: object) -> None:
    """What Transformers finds in a row that holds one sequence. A Mock in its place would keep its arguments alive."""


def _known(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`torch.linspace` with values that can be asked for: encoders read from it how often each layer is dropped."""

    def linspace(*args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.utils._python_dispatch._disable_current_modes():
            values = plain(*args, **kwargs).tolist()
        return torch.tensor(values, dtype=kwargs.get("dtype"))

    return linspace


def _only_in_bf16(can: Callable[..., bool]) -> Callable[..., bool]:
    """The grouped product of experts runs without memory in BF16 alone; Transformers' own stands in for it."""

    def grouped(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> bool:
        return weight.dtype == torch.bfloat16 and can(input, weight, offs)

    return grouped


def _for_the_other(ctx: Any, inputs: tuple, output: object) -> None:
    """What PyTorch's keeps, where Transformers' keeps both: each factor for the other's gradient."""
    tokens, weight, _ = inputs
    of_tokens, of_weight = ctx.needs_input_grad[:2]
    ctx.save_for_backward(tokens if of_weight else None, weight if of_tokens else None)
    ctx.forms = [(one.shape, one.stride()) for one in (tokens, weight)]


def _as_large(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
    """Its backward, which before Transformers 5.23 looks for each expert's tokens. A gradient lies as its factor."""
    wanted = zip(ctx.forms, ctx.needs_input_grad, strict=False)
    of_tokens, of_weight = (gradient.new_empty_strided(*form) if asked else None for form, asked in wanted)
    return of_tokens, of_weight, None


def _undrawn(tensor: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    return tensor


@contextlib.contextmanager
def as_on_a_device() -> Iterator[None]:
    """Keep what fake tensors do differently from those of a device out of the way.

    `Module._apply` is replaced by `convert`, `torch.linspace` knows its values, and weights are not drawn from a cut
    normal distribution, which looks at what it has drawn. On a device Transformers' `find_packed_sequence_indices`
    looks at the positions, finds one sequence in each row and returns nothing; without values it gives up and keeps a
    T x T mask.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "_apply", convert))
        stack.enter_context(mock.patch.object(torch, "linspace", _known(torch.linspace)))
        stack.enter_context(mock.patch.object(nn.init, "trunc_normal_", _undrawn))
        with contextlib.suppress(ImportError):
            from transformers import initialization, masking_utils

            drawn = {"trunc_normal_": _undrawn}
            stack.enter_context(mock.patch.dict(initialization.TORCH_INIT_FUNCTIONS, drawn))
            stack.enter_context(mock.patch.object(masking_utils, "find_packed_sequence_indices", _one_sequence))
        with contextlib.suppress(ImportError, AttributeError):  # AttributeError: a version without this function
            from transformers.integrations import moe

            stack.enter_context(mock.patch.object(moe, "_can_use_grouped_mm", _only_in_bf16(moe._can_use_grouped_mm)))
            product = OPDEFS["transformers::grouped_mm_fallback"]
            stack.enter_context(mock.patch.object(product, "_backward_fn", _as_large))
            stack.enter_context(mock.patch.object(product, "_setup_context_fn", _for_the_other))
        yield
