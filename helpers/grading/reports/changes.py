"""What a regrade changed: whose points, in which question, and why; printed, and in changes.csv.

published.json keeps what was published last, and every change since the first time: changes.csv is written whole from
it, so a copy that a spreadsheet has saved in its own way does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ..judging.results import Result
from ..text import number
from .gradebook import names, store, write_table
from .late import final_score, lateness
from .manual import marks

TOTAL = "total"
COLUMNS = ("when", "learner", "question", "before", "after", "why")
BY_HAND, TAKEN_BACK = "points were given by hand", "points given by hand were taken back"
NOTEBOOK, REFERENCE = "another notebook was handed in", "the worked lab, its seed or a version is another"
AGAIN, GONE, IN_TIME = "graded again", "no longer in the class", "nothing is deducted for being late any more"
MOST_PRINTED = 20


@dataclass(frozen=True)
class PointsChange:
    """One learner's points, of a question or in TOTAL, before and after (text, as in the tables), and the reason."""

    when: str
    learner: str
    question: str
    before: str
    after: str
    why: str


def record(
    results: Sequence[Result],
    waiting: Sequence[Result],
    digests: Mapping[str, str],
    reference: str,
    out: Path,
    now: str,
) -> list[PointsChange]:
    """Compare with what was published last, keep what is published now, write changes.csv; the changes of this time.

    `digests` has, by slug, the SHA-256 of the notebook; `reference` is the digest of what it was compared with. Who
    is `waiting` to be graded keeps what was published. The first time nothing is a change.
    """
    before = _stored(out / "published.json")
    shown = names([*results, *waiting])
    after = {one.slug: _published(one, shown[one.slug], digests.get(one.slug, ""), reference) for one in results}
    later = {one.slug for one in waiting}
    kept = {slug: row for slug, row in before["learners"].items() if slug in later and slug not in after}
    new = list(_changes(before["learners"], after, later, now))
    history = [*before["changes"], *map(asdict, new)]
    store(out / "published.json", json.dumps({"learners": kept | after, "changes": history}, indent=1) + "\n")
    if history:
        write_table(out / "changes.csv", COLUMNS, [[one[column] for column in COLUMNS] for one in history])
    return new


def told(changes: Sequence[PointsChange]) -> list[str]:
    """The lines to print: one for each learner whose total is another."""
    totals = [one for one in changes if one.question == TOTAL]
    if not totals:
        return []
    learners = f"{len(totals)} learner{' has' if len(totals) == 1 else 's have'} other points than before (changes.csv)"
    lines = [f"  {one.learner}: {one.before} → {one.after or 'none'}: {one.why}" for one in totals[:MOST_PRINTED]]
    more = [f"  and {len(totals) - MOST_PRINTED} more"] if len(totals) > MOST_PRINTED else []
    return [learners, *lines, *more]


def _published(result: Result, name: str, notebook: str, reference: str) -> dict:
    late = lateness(result)
    return {
        "learner": name,
        "notebook": notebook,
        "reference": reference,
        "questions": {one.key: number(one.earned) for one in result.questions},
        "by_hand": {key: number(mark.points) for key, mark in marks(result).items() if mark.points is not None},
        "late": late.note if late else "",
        TOTAL: number(final_score(result)),
    }


def _changes(
    before: Mapping[str, dict], after: Mapping[str, dict], later: set[str], now: str
) -> Iterator[PointsChange]:
    for slug, old in before.items():
        new = after.get(slug)
        if new is None:
            if slug not in later:
                yield PointsChange(now, old["learner"], TOTAL, old[TOTAL], "", GONE)
            continue
        reasons = []
        for key in dict.fromkeys([*old["questions"], *new["questions"]]):
            points = old["questions"].get(key, ""), new["questions"].get(key, "")
            if points[0] != points[1]:
                reasons.append(_why(key, old, new))
                yield PointsChange(now, new["learner"], key, *points, reasons[-1])
        if old["late"] != new["late"]:
            reasons.append(new["late"] or IN_TIME)
        if old[TOTAL] != new[TOTAL]:
            yield PointsChange(
                now, new["learner"], TOTAL, old[TOTAL], new[TOTAL], "; ".join(dict.fromkeys(reasons)) or AGAIN
            )


def _why(key: str, old: dict, new: dict) -> str:
    if old["by_hand"].get(key) != new["by_hand"].get(key):
        return BY_HAND if key in new["by_hand"] else TAKEN_BACK
    if old["notebook"] != new["notebook"]:
        return NOTEBOOK
    return REFERENCE if old["reference"] != new["reference"] else AGAIN


def _stored(path: Path) -> dict:
    """What was published last; of a file that is missing or damaged, nothing."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        keys = {"learner", "notebook", "reference", "questions", "by_hand", "late", TOTAL}
        whole = all(keys <= set(row) for row in found["learners"].values())
        if whole and all(set(COLUMNS) <= set(one) for one in found["changes"]):
            return found
    return {"learners": {}, "changes": []}
