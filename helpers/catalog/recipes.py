"""Precision recipes and optimizers: the bytes each keeps for a parameter, as explicit choices."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

SMALLEST_8BIT_TENSOR = 4096  # bitsandbytes: min_8bit_size; smaller tensors keep FP32 states


@dataclass(frozen=True)
class Precision:
    """Bytes kept for each parameter by a mixed-precision recipe; the optimizer's states come on top.

    `weight_bytes` are the weights the forward reads, `grad_bytes` their gradient, `master_bytes` a separate
    FP32 copy that the optimizer updates (0: it updates the weights themselves). `activation_format` names
    what the matrix products compute in; `linear_format` what those of the decoder's linear layers do, where it differs.
    """

    name: str
    weight_bytes: int
    grad_bytes: int
    master_bytes: int
    activation_format: str
    linear_format: str = ""

    @property
    def optimized_bytes(self) -> int:
        """Bytes of the value that the optimizer updates, and so of each of its ordinary states."""
        return self.master_bytes or self.weight_bytes


@dataclass(frozen=True)
class Optimizer:
    """The states an optimizer keeps, and the hidden copies it makes while it steps.

    `states` copies of the parameters in the dtype of the updated weights, unless they are stored in 8-bit blocks of
    `block_values`, or `factored` into one row and one column. `peak_copies` are whole-model temporaries during
    `step()`; `peak_tensor_copies` are temporaries of the size of the one tensor being updated.
    """

    name: str
    states: int
    peak_copies: int
    peak_tensor_copies: int
    block_values: int = 0
    factored: bool = False

    def state_bytes(self, shape: tuple[int, ...], optimized_bytes: int) -> int:
        """Bytes of the states of one parameter tensor of `shape`, of `optimized_bytes` per updated value.

        The step counter (4 bytes a tensor, on the host by default) is left out.

        >>> OPTIMIZERS["adamw"].state_bytes((4096, 4096), optimized_bytes=4) == 8 * 4096 * 4096
        True
        >>> OPTIMIZERS["adafactor"].state_bytes((4096, 11008), optimized_bytes=4)
        60416
        """
        values = prod(shape)
        if self.factored and len(shape) > 1:
            # row_var keeps every dimension but the last, col_var every one but the last but one
            return (values // shape[-1] + values // shape[-2]) * optimized_bytes
        if self.block_values:
            if values < SMALLEST_8BIT_TENSOR:
                return self.states * 4 * values
            return self.states * (values + 4 * -(-values // self.block_values))
        return self.states * values * optimized_bytes


PRECISIONS: dict[str, Precision] = {
    recipe.name: recipe
    for recipe in (
        Precision("fp32", 4, 4, 0, "fp32"),  # 8 bytes, 16 with Adam's two states
        Precision("bf16", 2, 2, 0, "bf16"),  # 4 bytes, 8 with Adam, whose small updates may round to nothing
        # torch.autocast: only the products and what they save are BF16, and a copy of each weight, cast on the way
        Precision("autocast-bf16", 4, 4, 0, "bf16"),
        # Megatron-LM: an FP32 main gradient and an FP32 master copy beside the weights: 10 bytes, 18 with Adam
        Precision("megatron-bf16", 2, 4, 4, "bf16"),
        # torchao.float8: all that is kept is BF16; each product of a linear layer casts what it reads, and forgets it
        Precision("torchao-fp8", 2, 2, 0, "bf16", linear_format="fp8-e4m3"),
    )
}

# PyTorch's default on CUDA; at the peak of step() the square roots of all second moments are a copy of the parameters
_FOREACH = Optimizer("adamw-foreach", 2, 1, 0)

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer("sgd", 0, 0, 0),
    "sgd-momentum": Optimizer("sgd-momentum", 1, 0, 0),
    "adamw": _FOREACH,
    "adamw-foreach": _FOREACH,
    "adamw-fused": Optimizer("adamw-fused", 2, 0, 0),  # AdamW(fused=True): one kernel updates without a copy
    "adamw-8bit": Optimizer("adamw-8bit", 2, 0, 0, block_values=256),  # bitsandbytes: an FP32 scale per 256 values
    "adafactor": Optimizer("adafactor", 1, 0, 1, factored=True),  # torch.optim's; a vector keeps its whole state
}
