"""What this machine really does: bytes and seconds, measured on the device at hand. Imports torch.

    from helpers.memory import measure
    measure.training_step(setup).peak_bytes     # a real training step, every storage counted
    measure.sweep().levels                      # the caches of this machine, by their speed
    measure.roof("cuda", "bf16").ridge          # what its memory and its arithmetic reach at best

`training` watches a step, `cap` makes any machine run out of memory at a chosen size, `traffic` counts what kernels
read and write; `clock` times, `sweep`, `copies` and `roofline` are what it times.
"""

from .cap import capped
from .training import step, training_step

__all__ = ["capped", "step", "training_step"]
