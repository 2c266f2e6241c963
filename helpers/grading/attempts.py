"""Several attempts of one learner: with `attempts = "best"` in the due policy each is graded, and the best one counts.

An attempt before the last is graded under a slug of its own, ada~1, so that its result is kept like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .intake.submissions import LearnerNotebook
from .judging.results import GRADED, Result
from .reports.late import final_score


def every_attempt(everybody: Sequence[LearnerNotebook]) -> list[LearnerNotebook]:
    """Each learner's notebook, and those of the other attempts that hold one, in the order of the class."""
    found = []
    for one in everybody:
        others = [(number, other) for number, other in enumerate(one.attempts, start=1) if other.path]
        found += [replace(other, slug=f"{one.slug}~{number}") for number, other in others if other.path != one.path]
        found.append(one)
    return found


def learner_slug(slug: str) -> str:
    """Whose attempt it is."""
    return slug.partition("~")[0]


def best(results: Sequence[Result]) -> dict[str, str]:
    """By learner's slug, the slug of the attempt with the most points after the deduction; of equal ones the last.

    `results` have their lateness, and come in the order of `every_attempt`. One that a person must look at counts
    only where there is no other.
    """
    chosen: dict[str, Result] = {}
    for one in results:
        slug = learner_slug(one.slug)
        if slug not in chosen or _order(one) >= _order(chosen[slug]):
            chosen[slug] = one
    return {slug: one.slug for slug, one in chosen.items()}


def _order(result: Result) -> tuple[bool, float]:
    return result.status == GRADED, final_score(result)


def chosen(
    results: Sequence[Result], notebooks: Mapping[str, LearnerNotebook], which: Mapping[str, str]
) -> tuple[list[Result], dict[str, LearnerNotebook]]:
    """One result and one notebook for each learner, those of the attempt that counts, under the learner's slug."""
    of_attempt = {attempt: slug for slug, attempt in which.items()}
    rows = [_named(one, of_attempt[one.slug]) for one in results if one.slug in of_attempt]
    return rows, {slug: replace(notebooks[attempt], slug=slug) for slug, attempt in which.items()}


def _named(result: Result, slug: str) -> Result:
    """The result under the learner's slug; of an attempt before the last the learner reads which one counts."""
    number = result.slug.partition("~")[2]
    told = (f"attempt {number} counts: no later one has more points",) if number else ()
    return replace(result, slug=slug, warnings=(*result.warnings, *told))
