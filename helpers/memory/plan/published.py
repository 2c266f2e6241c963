"""Published runs as the planner sees them: does it call them feasible, are its bytes right, is its own plan as cheap?

    for row in scores(): print(row)

Five kinds of rows. Megatron-LM on eight B200 has bytes and seconds of a known layout; NVIDIA's guide and Llama 3's
paper have layouts alone. Model cards and papers have card hours or seconds of whole runs, and no layout that a closed
form here knows. torchtitan on 8 to 512 H100 has reserved bytes of layouts that no closed form here knows whole (its own
checkpointing policy, FP8, shards beside tensors in parallel): there the planner only says whether the run is possible
on those cards, and `accuracy.torchtitan` traces the bytes. Of services (`services`) only cards and formats are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from ...catalog.devices import Device, Figure
from ...catalog.devices import device as resolve_device
from ...catalog.errors import WorkbookError
from ...catalog.models import model
from ..accuracy.cases import cases
from .goal import ServeGoal, TrainGoal
from .machine import Cards
from .search import TrainPlan, plan_training
from .seconds import Efficiency, Seconds
from .serve_search import ServePlan, plan_serving
from .step import step_time
from .training import Job, Layout, StepEngine

_DATA = Path(__file__).parent / "data" / "published.json"
HOUR = 3600
WITHIN = 0.10  # of published bytes
# torchtitan's H100 has 96 GB of HBM2e; what PyTorch reports of it is not published, so this is the nominal figure
TORCHTITANS = Figure(96_000_000_000, "bytes", "convention", "96 GB, as its benchmarks/ name the card", "2024-12")


@dataclass(frozen=True)
class PublishedRun:
    """One run. `layout` is None where the source gives none, or none that a closed form here knows; `miss` is the
    reason where the planner is known to be wrong about it."""

    name: str
    card: str | Device
    cards: int
    goal: TrainGoal
    source: str
    layout: Layout | None = None
    peak_gib: float | None = None
    step_s: float | None = None
    card_hours: float | None = None
    miss: str = ""


@dataclass(frozen=True)
class Score:
    """The planner's verdict on one run.

    `feasible`: it calls the published layout, or where none is known the goal on those cards, possible. `error` is of
    the bytes, predicted over measured less 1. `cost_ratio` is its own best plan's card hours over the published ones,
    as an interval; `own_time` the published layout's step by its clock, for `step_s`. `why` says what it refused.
    """

    run: PublishedRun
    feasible: bool
    best: TrainPlan | None
    predicted_gib: float | None = None
    own_time: Seconds | None = field(default=None)
    cost_ratio: Seconds | None = field(default=None)
    why: str = ""

    @property
    def error(self) -> float | None:
        if self.predicted_gib is None or self.run.peak_gib is None:
            return None
        return self.predicted_gib / self.run.peak_gib - 1

    @property
    def as_cheap(self) -> bool | None:
        """Whether its own best plan costs no more than what was published; None where nothing was."""
        return None if self.cost_ratio is None else self.cost_ratio.middle <= 1

    @property
    def in_interval(self) -> bool | None:
        """Whether the published cost is inside the interval: of the layout where it is known, else of the best plan."""
        if self.own_time and self.run.step_s:
            return self.own_time.low <= self.run.step_s <= self.own_time.high
        return None if self.cost_ratio is None else self.cost_ratio.low <= 1 <= self.cost_ratio.high

    @property
    def is_miss(self) -> bool:
        """Infeasible, bytes a tenth off, a step outside of its interval; or, without a layout, a dearer best plan."""
        wrong_bytes = self.error is not None and abs(self.error) > WITHIN
        told = self.in_interval if self.run.layout and self.run.step_s else self.as_cheap
        return not self.feasible or wrong_bytes or told is False

    @property
    def figures(self) -> Mapping[str, object]:
        """Plain data: fractions for errors and costs, null for what is not known."""
        return {
            "name": self.run.name,
            "feasible": self.feasible,
            "error": self.error,
            "cost_ratio": self.cost_ratio and self.cost_ratio.middle,
            "step_s": self.run.step_s,
            "predicted_step_s": self.own_time and self.own_time._asdict(),
            "miss": self.run.miss if self.is_miss else None,
            "source": self.run.source,
        }

    def __str__(self) -> str:
        told = f"{self.run.name:58} {'feasible' if self.feasible else self.why or 'NOT FEASIBLE':12}"
        told += f" {self.error:+7.2%}" if self.error is not None else " " * 8
        if self.cost_ratio:
            low, middle, high = self.cost_ratio
            told += f"  best plan {middle:.2f} of its cost ({low:.2f} to {high:.2f})"
        if self.own_time and self.run.step_s:
            told += f"  step {self.run.step_s:.2f} s, here {self.own_time.low:.2f} to {self.own_time.high:.2f}"
        return (told + (f"  miss: {self.run.miss}" if self.is_miss else "")).rstrip()


@cache
def published() -> tuple[PublishedRun, ...]:
    """All rows, those of torchtitan last."""
    rows = json.loads(_DATA.read_text(encoding="utf-8"))["rows"]
    return (*map(_row, rows), *_torchtitans())


def scores() -> Iterator[Score]:
    """Every published run, scored; a second or so for each."""
    yield from map(score, published())


def score(run: PublishedRun, rates: Efficiency | None = None) -> Score:
    """The planner on one published run: its layout, and the best plan for the same goal on the same cards."""
    rates, cards = rates or Efficiency(), Cards(run.card, run.cards, per_hour=1.0)
    try:
        best = next(iter(plan_training(run.goal, [cards], rates).plans), None)
    except WorkbookError as refused:
        return Score(run, False, None, why=refused.what)
    ratio = best.card_hours.times(1 / theirs) if best and (theirs := _card_hours(run)) else None
    if run.layout is None:
        return Score(run, best is not None, best, cost_ratio=ratio)
    job = Job(run.goal.model, run.goal.sequence)
    need = job.need(run.layout, cards.device).total
    seconds = step_time(job, run.layout, cards, rates).total
    return Score(run, need <= cards.room_of(run.layout.ranks).for_tensors_bytes, best, need / 2**30, seconds, ratio)


def report(json_wanted: bool = False) -> int:
    """Print every run and service with the planner's verdict, then how many it gets right; return 0. A minute or so."""
    if json_wanted:
        print(json.dumps({"rows": [one.figures for one in scores()]}))
        return 0
    found = []
    for one in scores():
        found.append(one)
        print(one, flush=True)
    for service in services():
        print(f"{service.name:58} {'feasible' if service.plan else 'NOT FEASIBLE'}", flush=True)
    print(f"\n{summary(found)}")
    return 0


def summary(found: Sequence[Score]) -> str:
    """How many runs are called feasible, how near their bytes are, how many best plans cost no more."""
    errors = [abs(one.error) for one in found if one.error is not None]
    cheap = [one.as_cheap for one in found if one.as_cheap is not None]
    timed = [one for one in found if one.own_time and one.run.step_s]
    inside = sum(bool(one.in_interval) for one in timed)
    lines = [f"{sum(one.feasible for one in found)} of {len(found)} runs are called feasible."]
    if errors:
        near = sum(error <= WITHIN for error in errors)
        lines.append(f"{near} of {len(errors)} published peaks are within 10 %, the worst {max(errors):.2%} off.")
    lines.append(f"{sum(cheap)} of {len(cheap)} best plans cost no more than the run.")
    lines.append(f"{inside} of {len(timed)} steps of a known layout are inside their interval.")
    return "\n".join(lines)


@dataclass(frozen=True)
class PublishedService:
    """A service that somebody publishes as running: a model in a format on so many cards."""

    name: str
    card: str
    cards: int
    goal: ServeGoal
    source: str

    @property
    def plan(self) -> ServePlan | None:
        """The planner's cheapest on those cards; None where it calls the service impossible."""
        return next(iter(plan_serving(self.goal, [Cards(self.card, self.cards, per_hour=1.0)]).plans), None)


@cache
def services() -> tuple[PublishedService, ...]:
    """Published services, each for one user with 8,192 tokens, which the sources leave open."""
    found = []
    for row in json.loads(_DATA.read_text(encoding="utf-8"))["services"]:
        goal = ServeGoal(row["model"], weights=(row["weights"],), kv=("bf16",))
        name = f"{row['model']}, {row['weights']}, {row['cards']} x {row['card']}"
        found.append(PublishedService(name, row["card"], row["cards"], goal, row["source"]))
    return tuple(found)


def _card_hours(run: PublishedRun) -> float | None:
    """What the run took for the goal's tokens."""
    if run.step_s is None:
        return run.card_hours
    steps = -(-run.goal.tokens // (run.goal.sequences * run.goal.sequence))
    return steps * run.step_s * run.cards / HOUR


def _row(row: Mapping) -> PublishedRun:
    shape = model({**model(row["model"]).config, **row["changed"]}) if row["changed"] else model(row["model"])
    goal = TrainGoal(
        shape,
        tokens=row.get("tokens", 10**9),
        sequence=row["sequence"],
        batch_tokens=row["batch"] * row["sequence"],
        optimizers=("adamw-fused",),
    )
    layout = Layout(StepEngine.MEGATRON, **row["layout"]) if "layout" in row else None
    measured = {name: row.get(name) for name in ("peak_gib", "step_s", "card_hours")}
    miss = row.get("miss", "")
    return PublishedRun(row["name"], row["card"], row["cards"], goal, row["source"], layout, miss=miss, **measured)


def _torchtitans() -> Iterator[PublishedRun]:
    card = replace(resolve_device("h100"), capacity=TORCHTITANS)
    for case in cases("torchtitan"):
        setup = case.setup
        ranks = setup["fsdp"] * setup["tensor_parallel"] * setup["pipeline"] * setup["context_parallel"]
        goal = TrainGoal(
            setup["model"],
            sequence=setup["sequence"],
            batch_tokens=setup["batch"] * setup["fsdp"] * setup["sequence"],
            optimizers=("adamw-fused",),
        )
        yield PublishedRun(case.name, card, ranks, goal, case.source, peak_gib=case.figures["peak reserved"])
