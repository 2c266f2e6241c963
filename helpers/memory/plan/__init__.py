"""The planner: from a goal and the cards at hand to the plans that work, cheapest first. No torch.

    from helpers.memory.plan import Cards, ServeGoal, TrainGoal, plan_serving, plan_training
    print(training_report(plan_training(TrainGoal("llama-3-70b", tokens=10**12), [Cards("h100", 1024)])))
    plan_serving(ServeGoal("llama-3-70b", users=200, latency_s=0.05), [Cards("h100", 8)]).plans[0]

`goal` says what is wanted, `machine` what can be had. `layouts` enumerates ways to train, `training` has their bytes
and `step` their seconds, and `search` sorts and tries them; `serving` and `serve_search` do the same for a service.
`seconds` holds the efficiencies that every time rests on. `minimum` says what would do where nothing does, `report` and
`report_serving` make the text, `as_json` JSON, `export` the files that engines read. `frontier` says what more money
buys, `serve_frontier` the same of a service. `confirm` traces a plan (with torch), `published` has runs of others to be
scored on. Imports catalog, budget and fit; those two also trace and accuracy.
"""

from .frontier import cheapest_within, frontier
from .goal import ServeGoal, TrainGoal
from .machine import Cards
from .minimum import least_for_serving, least_for_training
from .report import training_report
from .report_serving import serving_report
from .search import TrainAnswer, TrainPlan, plan_training
from .seconds import Efficiency, Seconds, Shares
from .serve_search import ServeAnswer, ServePlan, plan_serving
from .training import Layout
