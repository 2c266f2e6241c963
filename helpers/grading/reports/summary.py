"""What the instructor reads first: how the class did, question by question, and whom to look at."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from ..judging.results import ATTENTION, NOT_SUBMITTED, OUTCOMES, UNREADABLE, GradedQuestion, Result
from ..text import one_line, page
from .feedback import FULL, SIGNS, STANDINGS, standing
from .gradebook import names, store
from .late import final_score, lateness, unknown
from .manual import marks
from .similar import Alike

ERROR_CHARS = 300
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[-+]?\d[\d_,.]*(?:e[-+]?\d+)?")
_NUMBERS = re.compile(r"#(?:[\s,]+#)+")
WIDTH, HEIGHT, LEFT, TOP, BASE = 720, 190, 8, 24, 146  # of the histogram (px); its bars stand on BASE
MOST_BARS = 21
MOST_ALIKE = 30


@dataclass(frozen=True)
class QuestionSummary:
    """One question over those who could be read: how many stand where, the commonest error and how many made it."""

    key: str
    title: str
    points: float
    standings: Mapping[str, int]
    error: str
    error_count: int
    failed: int

    @property
    def learners(self) -> int:
        return sum(self.standings.values())

    @property
    def pass_percent(self) -> float:
        """Learners with all points, in per cent of all."""
        return 100 * self.standings[FULL] / self.learners if self.learners else 0.0


def write(results: Sequence[Result], out: Path, manifest: Mapping[str, object], alike: Alike | None = None) -> None:
    """Write summary.html into the folder `out`; it links to the pages in feedback/.

    `manifest` tells `title` and `lab`, and of the run `seed`, `sandbox`, `versions`, `reference`, `started` and
    `finished`: what it lacks is left out. Means, the histogram and pass rates are of those who could be read.
    """
    readable = [result for result in results if result.status not in (UNREADABLE, NOT_SUBMITTED)]
    scores = [final_score(result) for result in readable]
    points = max((result.points for result in results), default=0)
    values = {
        "title": str(manifest.get("title") or manifest.get("lab", "")),
        "results": results,
        "names": names(results),
        "readable": readable,
        "attention": [result for result in results if result.status == ATTENTION],
        "unreadable": [result for result in results if result.status == UNREADABLE],
        "absent": [result for result in results if result.status == NOT_SUBMITTED],
        "final": {result.slug: final_score(result) for result in results},
        "late": [
            (result, found) for result in results if (found := lateness(result)) and found.is_known and found.note
        ],
        "unknown": unknown(results),
        "alike": alike or Alike(),
        "most_alike": MOST_ALIKE,
        "by_hand": [(result, key, mark) for result in results for key, mark in marks(result).items()],
        "points": points,
        "mean": mean(scores) if scores else None,
        "median": median(scores) if scores else None,
        "bars": histogram(scores, points),
        "width": WIDTH,
        "height": HEIGHT,
        "base": BASE,
        "questions": question_summaries(readable),
        "standing": standing,
        "standings": STANDINGS,
        "signs": SIGNS,
        "facts": _facts(manifest),
    }
    store(out / "summary.html", page("summary.html.j2", **values))


def question_summaries(results: Sequence[Result]) -> list[QuestionSummary]:
    """One for each question that occurs, in order."""
    by_key: dict[str, list[GradedQuestion]] = {}
    for result in results:
        for question in result.questions:
            by_key.setdefault(question.key, []).append(question)
    return [_summary(questions) for questions in by_key.values()]


def alike(message: str) -> str:
    """What a message has in common with those of the same mistake on other numbers.

    >>> alike("block 7 of [1, 2, 3] is written to") == alike("block 12 of [4, 5] is written to")
    True
    """
    return _NUMBERS.sub("#", _NUMBER.sub("#", one_line(message, ERROR_CHARS)))


def _summary(questions: Sequence[GradedQuestion]) -> QuestionSummary:
    counted = Counter(standing(question) for question in questions)
    failed = [one for one in questions if one.outcome not in ("passed", "not started")]
    messages = [one.message or OUTCOMES.get(one.outcome, one.outcome) for one in failed]
    [(commonest, count)] = Counter(map(alike, messages)).most_common(1) or [("", 0)]
    error = one_line(next((message for message in messages if alike(message) == commonest), ""), ERROR_CHARS)
    first, where = questions[0], {name: counted[name] for name in STANDINGS}
    return QuestionSummary(first.key, first.title, first.points, where, error, count, len(failed))


def _facts(manifest: Mapping[str, object]) -> list[tuple[str, str]]:
    """What was recorded of the run, as (name, text), in a fixed order."""
    recorded = ("lab", "seed", "sandbox", "reference", "versions", "started", "finished")
    return [(name, _text(manifest[name])) for name in recorded if manifest.get(name) not in (None, "", {})]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@dataclass(frozen=True)
class Bar:
    """One bar: which scores, how many, and where it is drawn (px)."""

    label: str
    count: int
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def histogram(scores: Sequence[float], points: float) -> list[Bar]:
    """A bar for each whole score where they fit, else for equal steps of whole points; the last holds full marks.

    >>> [(bar.label, bar.count) for bar in histogram([0, 1, 1.5, 2], 2)]
    [('0', 1), ('1', 2), ('2', 1)]
    >>> [bar.label for bar in histogram([], 40)][:3]
    ['0–1', '2–3', '4–5']
    """
    step = max(1, math.ceil((points + 1) / MOST_BARS))
    last = math.floor(points / step)
    counts = [0] * (last + 1)
    for score in scores:
        counts[min(last, max(0, math.floor(score / step)))] += 1
    across, highest = (WIDTH - 2 * LEFT) / len(counts), max(1, *counts)
    bars = []
    for at, count in enumerate(counts):
        tall = (BASE - TOP) * count / highest
        place = (LEFT + at * across + 2, BASE - tall, across - 4, tall)
        bars.append(Bar(_label(at, step, points), count, *(round(pixels, 1) for pixels in place)))
    return bars


def _label(at: int, step: int, points: float) -> str:
    first, last = at * step, min(at * step + step - 1, math.ceil(points))
    return f"{first}" if first >= last else f"{first}–{last}"
