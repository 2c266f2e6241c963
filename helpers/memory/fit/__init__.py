"""What makes a setup fit a device: changes, cheapest first, each with the peak it leads to. Closed form, no torch.

    from helpers.memory.fit import changes, told
    setup = TrainSetup("llama-3.2-1b", micro_batch=4)
    print(told(setup, device("rtx-4090").capacity_bytes))

`training` and `serving` hold the ladders, `change` what a rung is. Imports catalog and memory.
"""

from .change import Fit, changes, peak_bytes, told
from .serving import serving_changes
from .training import accumulated_peak_bytes, ladder, training_changes

__all__ = [
    "Fit",
    "accumulated_peak_bytes",
    "changes",
    "ladder",
    "peak_bytes",
    "serving_changes",
    "told",
    "training_changes",
]
