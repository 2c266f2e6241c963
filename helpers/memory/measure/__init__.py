"""What this machine really does: bytes and seconds, measured on the device at hand. Imports torch.

    from helpers.memory import measure
    measure.training_step(setup).peak_bytes     # a real training step, every storage counted
    measure.sweep().levels                      # the caches of this machine, found by their speed
    measure.roofline().roof.ridge               # FLOPs per byte from which on compute is the limit

`training` watches a step, which `steps` builds with one of `optimizers`; `cap` makes any machine run out of memory at a
chosen size, `traffic` counts what kernels read and write; `ranks` tells what one of several ranks holds and sends, and
`collectives_alone` refuses what it would not see; `clock` times what `levels` (caches), `links` (copies) and `probes`
(operators under their roof) run.
"""

from .cap import capped
from .clock import default_device, fastest, graphed, settle
from .collectives_alone import CollectivesAlone
from .levels import MeasuredLevel, Sweep, one_thread, sweep
from .links import LinkCopy, copies
from .probes import PROBES, MeasuredRoofline, ProbePoint, default_format, matrix_format, roofline
from .ranks import Collectives, RankStep, held, rank_step
from .traffic import Traffic
from .training import step, training_step
