"""FP8 training by the field's engines: what to use at work. Each is imported when it is asked for, and not before.

Both keep the weights, the optimizer's states and what lies between the layers in BF16 or FP32, and cast to FP8 around
each product of a linear layer: inputs and weights to E4M3, gradients to E5M2 unless the recipe says otherwise.
torchao finds a tensor's scale anew at every cast, which reads it twice, and saves the layer's input as it came: no byte
of activations is spared. Transformer Engine saves the FP8 copies, and can take scales from earlier steps, or blocks of
32 with the GPUs that know MXFP8.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from ...catalog.errors import WorkbookError, require_name, require_package, require_whole
from ...memory.measure import steps
from ...memory.step.refusals import FLOAT8_MULTIPLE

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
FP8_CAPABILITY = (8, 9)


def has_fp8() -> bool:
    """Whether a GPU is here whose tensor cores multiply FP8: Ada, Hopper, Blackwell."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FP8_CAPABILITY


def torchao_float8(model: nn.Module, recipe: str = "tensorwise") -> nn.Module:
    """`model`, changed in place, with torchao's Float8Linear where `memory.measure.steps.in_float8` puts it.

    "rowwise" has a scale for each row and rounds scales to powers of two; "rowwise_with_gw_hp" computes the weights'
    gradients in BF16. Where no GPU with FP8 is here, torchao casts to FP8 and multiplies in the tensor's own type: the
    rounding is the same and nothing is faster. For speed it wants torch.compile.
    """
    require_name("recipe", recipe, RECIPES)
    return steps.in_float8(model, recipe, emulate=not has_fp8())


def transformer_engine(model: nn.Module) -> nn.Module:
    """`model`, changed in place, with Transformer Engine's Linear for every linear layer, by Accelerate.

    It needs a GPU with FP8. Forward passes are run inside `transformer_engine_steps()`, backward passes outside of it.
    """
    require_package("transformer_engine.pytorch", "this engine", "install transformer_engine[pytorch] on a GPU machine")
    if not has_fp8():
        raise WorkbookError("no GPU with FP8 here", "an Ada, Hopper or Blackwell GPU", "use torchao_float8(model)")
    _require_multiples(model)  # Accelerate stops at the first that does not fit, silently
    from accelerate.utils import convert_model

    with torch.no_grad():
        convert_model(model, _convert_ln=False)
    return model


def transformer_engine_steps(history: int = 16, margin: int = 0) -> AbstractContextManager[Any]:
    """The context in which Transformer Engine's layers use FP8, with scales from the last `history` steps."""
    require_whole("history", history)
    require_whole("margin", margin, 0)
    do = "install transformer_engine[pytorch] on a GPU machine"
    engine: Any = require_package("transformer_engine.pytorch", "this engine", do)
    recipes: Any = require_package("transformer_engine.common.recipe", "this engine", do)
    recipe = recipes.DelayedScaling(margin=margin, amax_history_len=history, amax_compute_algo="max")
    if hasattr(engine, "autocast"):
        return engine.autocast(enabled=True, recipe=recipe)
    return engine.fp8_autocast(enabled=True, fp8_recipe=recipe)  # its older name


def _require_multiples(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and any(side % FLOAT8_MULTIPLE for side in module.weight.shape):
            what, do = (
                f"{name} has a weight of shape {list(module.weight.shape)}",
                "torchao_float8(model) leaves it as it is",
            )
            raise WorkbookError(what, f"sides that {FLOAT8_MULTIPLE} divides", do)
