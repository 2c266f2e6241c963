"""Two small diffusion models, and a cache over denoising steps. Imports memory; torch.

    from helpers.techniques.diffusion import UNet
    UNet(UNetShape())(torch.randn(4, 3, 32, 32), torch.arange(4))

`unet` is convolutional with attention at the lowest resolution, `dit` a transformer over patches; `step_cache` keeps
what a step computed for the steps that follow. Their bytes: `memory.other_shapes`.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .dit import DiT
    from .step_cache import StepCache
    from .unet import UNet


__getattr__ = lazy(__name__)
