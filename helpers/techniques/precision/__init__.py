"""Numbers in fewer bits, in training: formats, loss scaling, BF16 weights that keep learning, FP8 with its scales.

    from helpers.techniques import precision
    precision.rounded(torch.tensor([0.1, 1e-8]), "fp16")            # what FP16 would keep
    optimizer = precision.BF16Adam(model.parameters(), lr=3e-5, keep="stochastic")

`codes` encodes and decodes, to the bit as torch does. `gradients` shows what FP16 loses of them, `loss_scaling` saves
it; `bf16` trains weights of 16 bits; `scaling` has FP8. `engines` are the field's, imported when they are asked for.
Formats whose neighbours share a scale, MXFP8 to NVFP4, are in `quantization.blocks`.
"""

from . import engines, gradients
from .bf16 import BF16Adam, KahanSum, stochastically_rounded, with_values
from .codes import decode, encode, rounded
from .loss_scaling import LossScaler
from .scaling import DelayedScale, Scaled, plain_product, product
