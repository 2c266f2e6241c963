"""peft's adapters on the same layers: what to use at work. Imported when it is asked for."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from ...catalog.errors import require_name, require_package, require_whole
from .model import KINDS, target_names


def peft(
    model: nn.Module,
    rank: int,
    targets: tuple[str, ...] = ("q_proj", "v_proj"),
    kind: str = "lora",
    alpha: float | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """`model`, changed in place, inside peft's wrapper, which freezes all but the adapters; arguments as in `adapt`.

    Adapters are FP32 on any base. For QLoRA pass what `quantization.engines.bitsandbytes_4bit` makes of a model;
    `peft.prepare_model_for_kbit_training` before that casts embeddings, norms and the head to FP32, and is not applied.
    """
    require_name("kind of adapter", kind, KINDS)
    require_whole("rank", rank)
    target_names(model, targets)
    engine: Any = require_package("peft", "this engine")
    how = {"lora_dropout": dropout, "use_dora": kind == "dora", "target_modules": list(targets)}
    with warnings.catch_warnings():  # Transformers' new name for a property that peft asks for
        warnings.simplefilter("ignore", FutureWarning)
        return engine.get_peft_model(model, engine.LoraConfig(r=rank, lora_alpha=alpha or rank, bias="none", **how))
