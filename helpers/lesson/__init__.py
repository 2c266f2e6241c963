"""What a notebook shows: predictions, checks, pictures, calculators. Imports catalog and memory.

    from helpers.lesson import check, compare, plots, predict
    guess = predict("peak of one step", unit="MiB", guess=None)
    check("the peak", measured=step.peak_bytes, predicted=budget.peak_bytes, rel=0.02)

matplotlib and ipywidgets are imported when something is drawn, not before; what draws, and the models behind it, when
somebody asks for it. A rank imports this package, too, and needs neither.
"""

from typing import TYPE_CHECKING

from ..catalog.lazy import lazy
from . import claims, tracebacks
from .asking import asked, reference
from .choosing import choose, settle
from .drawn_inputs import draw
from .fill_in import fill_in
from .machine import machine
from .predict import Prediction, check, check_speed, compare, predict
from .recorded import recorded, recorded_table

if TYPE_CHECKING:
    from . import job, service
    from .drawing import pareto, plots, rooflines, speeds

__getattr__ = lazy(__name__)
tracebacks.hide_checks()  # at import: a learner may run a check before any other cell of ours
