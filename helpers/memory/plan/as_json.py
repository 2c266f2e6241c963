"""An answer as plain figures, for JSON: bytes, seconds, dollars. Every name is there, whatever was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from .minimum import Offer, least_for_serving, least_for_training
from .report import failure_told
from .report_serving import serve_failure_told
from .search import TrainAnswer, TrainPlan
from .seconds import Seconds
from .serve_search import ServeAnswer, ServePlan


def training_figures(answer: TrainAnswer) -> Mapping[str, object]:
    failed = answer.next_cheaper
    return {
        "model": answer.goal.model.name,
        "tokens": answer.goal.tokens,
        "considered": answer.considered,
        "plans": [_trained(plan) for plan in answer.plans],
        "next_cheaper_fails": failure_told(failed, answer) if failed else None,
        "least_that_would_do": [] if answer.plans else _offers(least_for_training(answer)),
    }


def serving_figures(answer: ServeAnswer) -> Mapping[str, object]:
    failed = answer.next_cheaper
    return {
        "model": answer.goal.model.name,
        "users": answer.goal.users,
        "considered": answer.considered,
        "plans": [_served(plan) for plan in answer.plans],
        "next_cheaper_fails": serve_failure_told(failed) if failed else None,
        "least_that_would_do": [] if answer.plans else _offers(least_for_serving(answer)),
    }


def _trained(plan: TrainPlan) -> dict[str, object]:
    return {
        "card": plan.cards.device.name,
        "cards": plan.ranks,
        "layout": {**asdict(plan.layout), "engine": str(plan.layout.engine)},
        "peak_bytes": plan.need.total,
        "parts": dict(plan.need.parts),
        "stage": plan.need.stage,
        "moment": plan.need.moment,
        "host_bytes": plan.need.host.total,
        "spare_bytes": plan.spare_bytes,
        "step_s": _interval(plan.step.total),
        "step_parts_s": {name: _interval(time) for name, time in plan.step.parts.items()},
        "steps": plan.steps,
        "limit": plan.step.limit,
        "hours": _interval(plan.hours),
        "dollars": _interval(plan.cost) if plan.cost else None,
        "gives_up": plan.layout.compromises,
    }


def _served(plan: ServePlan) -> dict[str, object]:
    return {
        "card": plan.cards.device.name,
        "cards": plan.ranks,
        "layout": asdict(plan.layout),
        "replicas": plan.replicas,
        "users_each": plan.users,
        "most_users_each": plan.most_users,
        "rank_bytes": plan.parts.total,
        "parts": dict(plan.parts),
        "spare_bytes": plan.spare_bytes,
        "first_token_s": _interval(plan.first_token),
        "next_token_s": _interval(plan.between_tokens),
        "dollars_per_hour": plan.per_hour,
        "tokens_per_s": plan.tokens_per_s,
        "gives_up": plan.layout.compromises,
    }


def _offers(offers: list[Offer]) -> list[dict[str, object]]:
    return [{"what": one.words, "cards": one.plan.ranks, "card": one.plan.cards.device.name} for one in offers]


def _interval(time: Seconds) -> dict[str, float]:
    return time._asdict()
