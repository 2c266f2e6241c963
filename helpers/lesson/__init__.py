"""What a notebook shows: predictions, checks, pictures, calculators. Imports catalog and memory.

    from helpers.lesson import check, compare, plots, predict
    guess = predict("peak of one step", unit="MiB", guess=None)
    check("the peak", measured=step.peak_bytes, predicted=budget.peak_bytes, rel=0.02)

matplotlib and ipywidgets are imported when something is drawn, not before.
"""

from . import claims, job, service, tracebacks
from .asking import asked, reference
from .choosing import choose, settle
from .drawing import pareto, plots, rooflines, speeds
from .drawn_inputs import draw
from .fill_in import fill_in
from .machine import machine
from .predict import Prediction, check, check_speed, compare, predict
from .recorded import recorded, recorded_table

tracebacks.hide_checks()  # at import: a learner may run a check before any other cell of ours
