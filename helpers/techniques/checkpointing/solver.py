"""The cheapest checkpointing that fits: least recomputed FLOPs for a byte budget, exact for a chain. No torch.

    plan = solve(layers, budget_bytes=2 * 2**30)        # layers: LayerCosts, from layer_costs(model, run)
    apply(model, plan.segments)

A plan cuts the chain into segments; one layer alone may take any policy it has a cost for, several layers together keep
the input of the first. `chain` says what a plan costs. Checkpoints within checkpoints are not tried: Griewank and
Walther's revolve (2000) and rotor (Beaumont et al. 2019, arXiv:1911.13214) need them, to go below `least_bytes` here.
Checkmate (Jain et al. 2020, arXiv:1910.02653) solves any graph with an integer program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ...catalog.policies import PolicySegment
from ..pareto import Path, unbeaten_paths
from .chain import ChainCost, LayerChoice, LayerCost, price, price_segment

Edges = list[
    list[tuple[PolicySegment, LayerChoice]]
]  # by first layer: every segment that may begin there, with its price


@dataclass(frozen=True)
class CheckpointPlan:
    """The segments of a chain, and what they cost. Prints one line for each run of equal segments."""

    segments: tuple[PolicySegment, ...]
    price: ChainCost

    def __str__(self) -> str:
        kinds: list[tuple[str, int, int]] = []
        for segment in self.segments:
            kind = f"{segment.how} x {segment.stop - segment.start}"
            start = kinds.pop()[1] if kinds and kinds[-1][0] == kind else segment.start
            kinds.append((kind, start, segment.stop))
        return "\n".join(f"layers {start} to {stop - 1}: {kind}" for kind, start, stop in kinds)


def solve(layers: Sequence[LayerCost], budget_bytes: int, head_bytes: int = 0) -> CheckpointPlan:
    """The plan with the fewest recomputed FLOPs whose peak is at most `budget_bytes`; of equals, what stores least.

    Dynamic programming from the first layer to the last. Of all plans for the layers up to here only those are kept
    that no other beats in both stored bytes and FLOPs: what comes later asks for nothing else. Raises WorkbookError,
    with the least possible budget, where nothing fits.

    >>> one = LayerCost(10, 100, False, 50, {"none": LayerChoice(100, 110), "full": LayerChoice(10, 120, 40)})
    >>> print(solve([one] * 4, budget_bytes=250))
    layers 0 to 1: full x 1
    layers 2 to 3: none x 1
    """
    edges, needs = _prepared(layers, head_bytes)
    if isinstance(budget_bytes, bool) or not isinstance(budget_bytes, (int, float)) or not budget_bytes >= needs[0]:
        do = f"pass budget_bytes={needs[0]}, or make the micro-batch smaller"
        raise WorkbookError(f"a budget of {budget_bytes!r} bytes", f"at least {needs[0]:,}: no plan needs less", do)
    enough_flops = _uniform_flops(layers, budget_bytes, head_bytes)
    fronts: list[list[Path[PolicySegment]]] = [[Path(0, 0)], *([] for _ in layers)]
    for start in range(len(layers)):
        fronts[start] = unbeaten_paths(path for path in fronts[start] if path.price <= enough_flops)
        for segment, choice in edges[start]:
            fronts[segment.stop] += _longer(fronts[start], segment, choice, budget_bytes, needs[segment.stop])
    best = min(fronts[-1], key=lambda path: (path.price, path.nbytes))
    segments = tuple(best.choices())
    return CheckpointPlan(segments, price(layers, segments, head_bytes))


def least_bytes(layers: Sequence[LayerCost], head_bytes: int = 0) -> int:
    """The smallest budget that some plan fits, whatever it recomputes."""
    return _prepared(layers, head_bytes)[1][0]


def pareto_plans(layers: Sequence[LayerCost], head_bytes: int = 0, points: int = 16) -> list[CheckpointPlan]:
    """The bargain between memory and time: the best plans for `points` budgets, those that buy no FLOPs left out.

    The budgets run from the least possible to what a chain needs that recomputes nothing.
    """
    least = least_bytes(layers, head_bytes)
    most = price(layers, [PolicySegment(at, at + 1, "none") for at in range(len(layers))], head_bytes).peak_bytes
    budgets = {least + (most - least) * step // max(1, points - 1) for step in range(points)}
    plans: list[CheckpointPlan] = []
    for budget in sorted(budgets):
        plan = solve(layers, budget, head_bytes)
        if not plans or plan.price.recompute_flops < plans[-1].price.recompute_flops:
            plans.append(plan)
        if not plan.price.recompute_flops:
            break
    return plans


def _prepared(layers: Sequence[LayerCost], head_bytes: int) -> tuple[Edges, list[int]]:
    """All segments with their prices, and for each place in the chain the least that the layers from there on need.

    That is max(need of the segment itself, what it stores + the need of all after it), for the best segment.
    """
    if not layers:
        raise WorkbookError("a chain without layers", "at least one", "pass what layer_costs(model, run) returned")
    edges: Edges = [[] for _ in layers]
    needs = [0] * len(layers) + [head_bytes]
    for start in reversed(range(len(layers))):
        alone = (PolicySegment(start, start + 1, how) for how in layers[start].choices)
        together = (PolicySegment(start, stop) for stop in range(start + 2, len(layers) + 1))
        edges[start] = [(segment, price_segment(layers, segment)) for segment in (*alone, *together)]
        needs[start] = min(
            max(choice.backward_bytes, choice.stored_bytes + needs[segment.stop]) for segment, choice in edges[start]
        )
    return edges, needs


def _uniform_flops(layers: Sequence[LayerCost], budget_bytes: int, head_bytes: int) -> float:
    """What it costs to treat all layers alike, the cheapest way that fits: no path need cost more."""
    common = set.intersection(*(set(layer.choices) for layer in layers))
    plans = ([PolicySegment(at, at + 1, how) for at in range(len(layers))] for how in common)
    prices = [price(layers, plan, head_bytes) for plan in plans]
    return min((found.recompute_flops for found in prices if found.peak_bytes <= budget_bytes), default=math.inf)


def _longer(
    paths: Iterable[Path[PolicySegment]], segment: PolicySegment, choice: LayerChoice, budget: int, need_after: int
) -> Iterator[Path[PolicySegment]]:
    """Every path with `segment` added, unless it or anything that could follow would not fit."""
    own = max(choice.backward_bytes, choice.stored_bytes + need_after)
    for path in paths:
        if path.nbytes + own > budget:
            return  # paths are sorted by stored bytes
        yield path.then(segment, choice.stored_bytes, choice.recompute_flops)
