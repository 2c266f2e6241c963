"""Numbers in fewer bits, in training: formats, loss scaling, BF16 weights that keep learning, FP8 with its scales.

    from helpers.techniques import precision
    precision.rounded(torch.tensor([0.1, 1e-8]), "fp16")            # what FP16 would keep
    optimizer = precision.BF16Adam(model.parameters(), lr=3e-5, keep="stochastic")

`codes` encodes and decodes, to the bit as torch does; `loss_scaling` and `bf16` train. Imports torch; engines only
when asked.
"""

from .bf16 import BF16Adam, KahanSum, stochastically_rounded, with_values
from .codes import decode, encode, rounded
from .loss_scaling import LossScaler
