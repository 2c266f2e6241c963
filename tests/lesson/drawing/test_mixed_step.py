"""A drawn step: as many boxes of each kind as the scheduler's plan has tokens, and the words say so."""

from __future__ import annotations

from collections import Counter

import pytest

from helpers.lesson.drawing.marks import Box
from helpers.lesson.drawing.mixed_step import mixed_step
from helpers.lesson.drawing.pictures import MARGIN, WIDTH
from helpers.techniques.scheduling import Policy, Scheduler


def plan_of(prompts: tuple[int, ...], budget: int, steps: int):
    """The plan after so many steps, the prompts there from the second one on but for the first."""
    scheduler = Scheduler(Policy(token_budget=budget), blocks=60, block_size=4)
    scheduler.submit(range(prompts[0]), new_tokens=9)
    for step in range(steps):
        plan = scheduler.schedule(now=step)
        scheduler.complete(plan, dict.fromkeys(scheduler.generates(plan), 0), now=step)
        if not step:
            for tokens in prompts[1:]:
                scheduler.submit(range(tokens), new_tokens=9)
    return scheduler.schedule(now=steps)


@pytest.mark.parametrize(("prompts", "budget", "steps"), [((9, 5, 30), 16, 2), ((4, 60), 8, 1), ((3,), 16, 1)])
def test_each_token_of_the_plan_is_a_box_in_its_row_and_in_the_step(prompts, budget, steps):
    plan = plan_of(prompts, budget, steps)
    card = mixed_step("A step", plan, budget)
    boxes = [mark for mark in card.marks if isinstance(mark, Box)]
    counted = Counter(one.kind for one in boxes if one.kind)
    known = sum(chunk.sequence.known for chunk in plan.chunks)
    expected = {"now": plan.new_tokens, "packed": plan.new_tokens, "free": budget - plan.new_tokens}
    expected |= {"pool": plan.context_tokens - plan.new_tokens, "later": known - plan.context_tokens}
    assert counted == Counter(expected)
    assert max(one.x + one.width for one in boxes) <= WIDTH - MARGIN
    assert f"Together {plan.new_tokens} of {budget} tokens" in card.alt


def test_the_step_has_the_sequences_one_behind_the_other_in_their_colours():
    plan = plan_of((9, 5, 30), 16, 2)
    packed = [mark for mark in mixed_step("A step", plan, 16).marks if isinstance(mark, Box) and mark.kind == "packed"]
    assert [one.x for one in packed] == sorted(one.x for one in packed)
    fills = [one.fill for one in packed]
    lengths = [fills.count(fill) for fill in dict.fromkeys(fills)]
    assert lengths == [chunk.tokens for chunk in plan.chunks]
