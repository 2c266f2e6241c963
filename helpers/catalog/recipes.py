"""Precision recipes: the bytes each keeps for a parameter, as explicit choices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Bytes kept for each parameter by a mixed-precision recipe; the optimizer's states come on top.

    `weight_bytes` are the weights the forward reads, `grad_bytes` their gradient, `master_bytes` a separate
    FP32 copy that the optimizer updates (0: it updates the weights themselves). `activation_format` names
    what the matrix products compute in; `linear_format` what those of the decoder's linear layers do, where it differs.
    `autocast` says that torch.autocast casts what products read.
    """

    name: str
    weight_bytes: int
    grad_bytes: int
    master_bytes: int
    activation_format: str
    linear_format: str = ""
    autocast: bool = False

    @property
    def optimized_bytes(self) -> int:
        """Bytes of the value that the optimizer updates, and so of each of its ordinary states."""
        return self.master_bytes or self.weight_bytes


PRECISIONS: dict[str, Precision] = {
    recipe.name: recipe
    for recipe in (
        Precision("fp32", 4, 4, 0, "fp32"),  # 8 bytes, 16 with Adam's two states
        Precision("bf16", 2, 2, 0, "bf16"),  # 4 bytes, 8 with Adam, whose small updates may round to nothing
        # torch.autocast: only the products and what they save are BF16, and a copy of each weight, cast on the way
        Precision("autocast-bf16", 4, 4, 0, "bf16", autocast=True),
        # Trainer of Transformers with bf16=True on a model loaded in BF16, as Transformers 5 loads most: autocast
        # finds nothing to cast in products, and Adam's states are BF16 as in "bf16". Powers and norms are FP32 all the
        # same, which shows in GPT-2 and OPT.
        Precision("autocast-bf16-on-bf16", 2, 2, 0, "bf16", autocast=True),
        # Megatron-LM: an FP32 main gradient and an FP32 master copy beside the weights: 10 bytes, 18 with Adam
        Precision("megatron-bf16", 2, 4, 4, "bf16"),
        # torchao.float8: all that is kept is BF16; each product of a linear layer casts what it reads, and forgets it
        Precision("torchao-fp8", 2, 2, 0, "bf16", linear_format="fp8-e4m3"),
    )
}
