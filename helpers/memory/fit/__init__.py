"""What makes a setup fit a device: changes, cheapest first, each with the peak it leads to. Closed form, no torch.

    from helpers.memory.fit import changes, format_fits
    setup = TrainSetup("llama-3.2-1b", micro_batch=4)
    print(format_fits(setup, device("rtx-4090").capacity_bytes))

`room` decides what fits a device, and `reserves` what is kept of it for what PyTorch does not count; `ladders` holds
the changes of a training step and of a serving replica, `offers` what of them fits. Imports catalog and budget.
"""

from .ladders import Fit, adapted, ladder, training_changes
from .offers import changes, format_fits, peak_bytes
from .replicas import serving_changes
from .reserves import Reserve, reserve, reserve_growth
from .room import Room, Verdict
