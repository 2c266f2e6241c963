"""Optimizers that keep less: 8-bit states, factored ones, one state for two, a low-rank space; a step inside backward.

    from helpers.techniques import optimizers
    optimizer = optimizers.AdamW8bit(model.parameters(), lr=1e-3)
    ...
    optimizers.state_bytes(optimizer)               # each kind of state, measured on its storages

`blockwise` packs 256 values that share a scale, `adam8bit` trains with it; `adafactor`, `lion`, `muon` and `galore` are
one idea each; `in_backward` frees every gradient at once. `engines` are the field's, imported when they are asked for.
"""

from . import engines
from .adafactor import Adafactor
from .adam8bit import AdamW8bit, Lion8bit
from .base import TensorOptimizer, state_bytes
from .blockwise import dequantized, dynamic_map, quantized
from .galore import Apollo, GaLore
from .in_backward import InBackward, step_in_backward
from .lion import Lion
from .make import make
from .muon import Muon, hidden_matrices
