"""The field's optimizers for the same lists of parameters: what to use at work. Each is imported when it is asked for.

bitsandbytes' paged optimizers keep the states of tensors of 100,000 values or more in CUDA's managed memory. Its pages
move to the host when the GPU is full, and back over the link when a step touches them. So a peak that would not fit
becomes a slow step; where memory suffices, nothing moves and nothing is saved. On a CPU nothing pages.

torchao's states are wrapped tensors that train through torch.compile, which needs a C++ compiler on a CPU. It rounds
half up where ours rounds half down, and keeps tensors of odd sizes whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ...catalog.errors import require_name, require_package, require_whole

Optimizer = torch.optim.Optimizer
BITSANDBYTES = {
    "adamw-8bit": "AdamW8bit",
    "adamw-8bit-paged": "PagedAdamW8bit",
    "adamw-paged": "PagedAdamW32bit",
    "lion": "Lion32bit",
    "lion-8bit": "Lion8bit",
    "lion-8bit-paged": "PagedLion8bit",
}
TORCHAO = {"adamw-8bit": "AdamW8bit", "adamw-4bit": "AdamW4bit", "adamw-fp8": "AdamWFp8"}


def bitsandbytes(parameters: Iterable[Any], name: str = "adamw-8bit", lr: float = 1e-3, **settings: Any) -> Optimizer:
    """One of bitsandbytes' optimizers, by its name in BITSANDBYTES; `settings` go to it (`betas`, `min_8bit_size` …).

    Its two tables of levels, 1,024 bytes each, are shared by all tensors. On a CPU it rounds by a table of its own: see
    `blockwise.by_table`.
    """
    require_name("optimizer of bitsandbytes", name, BITSANDBYTES)
    engine: Any = require_package("bitsandbytes", "this optimizer")
    return getattr(engine.optim, BITSANDBYTES[name])(parameters, lr=lr, **settings)


def torchao(parameters: Iterable[Any], name: str = "adamw-8bit", lr: float = 1e-3, **settings: Any) -> Optimizer:
    """One of torchao's optimizers with states of few bits, by its name in TORCHAO.

    Every state has its own table of levels: 1,024 bytes in 8 bits, 64 in 4; FP8 needs none.
    """
    require_name("optimizer of torchao", name, TORCHAO)
    engine: Any = require_package("torchao.optim", "this optimizer")
    return getattr(engine, TORCHAO[name])(parameters, lr=lr, **settings)


def galore_torch(
    parameters: Iterable[Any], rank: int, lr: float = 1e-3, every: int = 200, scale: float = 0.25, **settings: Any
) -> Optimizer:
    """The authors' GaLore for matrices; its 8-bit variant does not run with bitsandbytes of today.

    Its projectors are slices of whole singular vectors, and keep those alive in FP32: min(n, m)^2 values for each
    matrix, whatever the rank. In BF16 they are copied, and take rank x min(n, m).
    """
    require_whole("rank", rank)
    engine: Any = require_package("galore_torch", "this optimizer", "pip install --no-deps galore-torch, restart")
    how = {"rank": rank, "update_proj_gap": every, "scale": scale, "proj_type": "std"}
    group = {"params": list(parameters), **how}
    return engine.GaLoreAdamW([group], lr=lr, no_deprecation_warning=True, **settings)


def transformers_adafactor(parameters: Iterable[Any], lr: float | None = None, **settings: Any) -> Optimizer:
    """Transformers' Adafactor, which finds its own learning rate where none is given.

    Its states have the shapes of torch's, but are FP32 whatever the weights are, with 4 bytes more for each tensor, its
    root mean square. `beta1=0.9` adds a first moment as large as the weights.
    """
    engine: Any = require_package("transformers.optimization", "this optimizer")
    relative = lr is None
    return engine.Adafactor(parameters, lr=lr, relative_step=relative, scale_parameter=relative, **settings)
