"""What allocates, counted as it happens: a meter on storages, and the timeline that it makes. Imports torch when asked.

    from helpers.memory.meter import Meter
    with Meter() as meter:
        train_step()
    meter.peak_bytes

`meter` counts, and `beside` what no operator makes: arrays; `places` keeps device, host, file pages and disk apart.
`process` sees memory in any form, to a mebibyte; `exports` refuses work elsewhere. `watch` names phases and
modules, `timeline` turns events into a Measurement; `memory_budget` holds a block of code to a limit, and
`pytest_plugin` makes a fixture of that; `baseline` compares a run with an earlier one. Imports catalog and breakdown.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .exports import TorchAlone
    from .host_objects import Beside
    from .memory_budget import Report
    from .meter import FreshMeter, Meter
    from .places import Place, PlacesMeter
    from .process import ProcessGrowth
    from .timeline import AllocationEvent, Measurement, StorageLifetime, Timeline
    from .watch import Watch


__getattr__ = lazy(__name__)
