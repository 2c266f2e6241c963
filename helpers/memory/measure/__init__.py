"""What this machine really does: bytes and seconds, measured on the device at hand. Imports torch.

    from helpers.memory import measure
    measure.training_step(setup).peak_bytes     # a real training step, every storage counted
    measure.sweep().levels                      # the caches of this machine, found by their speed
    measure.roofline().roof.ridge               # FLOPs per byte from which on compute is the limit

`training` watches a step, `cap` makes any machine run out of memory at a chosen size, `traffic` counts what kernels
read and write; `clock` times, `sweep`, `copies` and `roofline` are what it times.
"""

from .cap import capped
from .clock import default_device, fastest, settle
from .copies import Copy, copies
from .roofline import PROBES, Point, Roofline, default_format, roofline
from .sweep import Level, Sweep, sweep
from .traffic import Traffic
from .training import step, training_step

__all__ = [
    "PROBES",
    "Copy",
    "Level",
    "Point",
    "Roofline",
    "Sweep",
    "Traffic",
    "capped",
    "copies",
    "default_device",
    "default_format",
    "fastest",
    "roofline",
    "settle",
    "step",
    "sweep",
    "training_step",
]
