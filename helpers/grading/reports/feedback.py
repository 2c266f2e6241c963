"""What each learner reads: one page with their points, what each check found, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..judging.results import ATTENTION, NOT_SUBMITTED, UNREADABLE, GradedQuestion, Result
from ..text import page, plain, shortened
from .gradebook import names, store
from .late import final_score, lateness
from .manual import JUDGED, Mark, marks

MESSAGE_CHARS, MESSAGE_LINES, WARNINGS = 3000, 60, 20
# A line of a check's message that says what came is set apart from one that says what should have.
_EXPECTED = re.compile(r"\s*(expected|wanted|right)\s*:", re.IGNORECASE)
_YOURS = re.compile(r"\s*(yours|you have|got|found)\s*:", re.IGNORECASE)
FULL, PART, NONE, OPEN = "full", "part", "none", "open"
STANDINGS = {FULL: "all points", PART: "some points", NONE: "no points", OPEN: "not started"}
SIGNS = {FULL: "✓", PART: "◐", NONE: "✗", OPEN: "○"}

# For the learner: the outcome, and the next thing to do about it.
OUTCOME_WORDS = {
    "passed": ("All checks passed", ""),
    "not started": ("Not started", "Write your answer into its cell, then run the cells below it."),
    "missing": (
        "The answer cell is missing",
        "The notebook that arrived did not have this cell. Copy it from a fresh lab, put your answer in, submit again.",
    ),
    "wrong": ("A check failed", "The check tried your answer, and this is the first thing that it found:"),
    "did not run": (
        "Your answer raised an error",
        "Restart the kernel, run all cells from the top, and mend the first that fails.",
    ),
    "hung": (
        "Ran into the time limit",
        "Look for a loop that never ends, and for work that grows much faster than its input.",
    ),
    "died": (
        "Ended the kernel",
        "Python stopped while this ran: out of memory, a crash in compiled code, or a call such as exit().",
    ),
    "flooded": ("Printed too much", "Take the prints out of your answer: the check prints what it needs."),
    "not reached": (
        "Was not reached",
        "Something before it stopped the run, so nothing is known about this answer yet. Mend that first.",
    ),
    NOT_SUBMITTED: ("Nothing was handed in", ""),
}


@dataclass(frozen=True)
class QuestionCard:
    """One question as the page shows it: its number on the page, its standing, the outcome and advice in words."""

    number: int
    question: GradedQuestion
    standing: str
    sign: str
    outcome: str
    advice: str
    message: tuple[tuple[str, str], ...]
    mark: Mark | None


def write(results: Sequence[Result], out: Path, *, lab: str, title: str) -> None:
    """Write feedback/<slug>.html into the folder `out`, one page for each result, and delete pages of nobody.

    `lab` is the lab's stem ('13_paged_kv'), whose number is what `workbook check` takes; `title` is its heading. A
    page holds nothing of another learner, no seed, and for 'attention' no reason: that is for the instructor.
    """
    shown = names(results)
    here = {f"{result.slug}.html" for result in results}
    for old in (out / "feedback").glob("*.html"):
        if old.name not in here:  # somebody who has left, or is called otherwise now
            old.unlink()
    for result in results:
        html = page("feedback.html.j2", **_values(result, shown[result.slug], lab, title))
        store(out / "feedback" / f"{result.slug}.html", html)


def _values(result: Result, name: str, lab: str, title: str) -> dict[str, object]:
    found, late = marks(result), lateness(result)
    is_closed = result.status in (UNREADABLE, NOT_SUBMITTED)
    cards = [_card(at, one, found.get(one.key)) for at, one in enumerate(result.questions, start=1)]
    return {
        "title": title,
        "name": name,
        "result": result,
        "score": final_score(result),
        "late": late.note if late and late.is_known else "",
        # Of a notebook that nobody could read, or that is not there, a list of its questions says nothing.
        "cards": [card for card in cards if card.mark or not is_closed],
        "passed": sum(card.standing == FULL for card in cards),
        "unfinished": [card for card in cards if card.standing != FULL],
        "is_closed": is_closed,
        "unreadable": result.status == UNREADABLE,
        "absent": result.status == NOT_SUBMITTED,
        "attention": result.status == ATTENTION,
        "warnings": [shortened(plain(one), 500) for one in result.warnings[:WARNINGS]],
        "lab_number": lab.partition("_")[0],
    }


def _card(at: int, question: GradedQuestion, mark: Mark | None) -> QuestionCard:
    outcome, advice = OUTCOME_WORDS.get(question.outcome, (question.outcome, ""))
    by_hand = mark is not None and mark.points is not None
    if by_hand:
        outcome, advice = "Points given by your instructor", ""
    # What a person has judged needs no word on why no check could.
    silent = question.outcome in ("passed", "not started") or (by_hand and question.outcome not in JUDGED)
    message = () if silent else message_lines(question.message)
    where = standing(question)
    return QuestionCard(at, question, where, SIGNS[where], outcome, advice, message, mark)


def message_lines(message: str) -> tuple[tuple[str, str], ...]:
    r"""A message as (kind, line), kind 'expected', 'yours' or ''; long ones without their middle.

    >>> message_lines("of 3 blocks\n  expected: 2\n  yours:    5")
    (('', 'of 3 blocks'), ('expected', '  expected: 2'), ('yours', '  yours:    5'))
    """
    lines = shortened(plain(message).strip("\n"), MESSAGE_CHARS).split("\n") if message.strip() else []
    if len(lines) > MESSAGE_LINES:
        tail = MESSAGE_LINES // 3
        left_out = f"… ({len(lines) - MESSAGE_LINES} lines left out) …"
        lines = [*lines[: MESSAGE_LINES - tail], left_out, *lines[-tail:]]
    return tuple((_kind(line), line) for line in lines)


def _kind(line: str) -> str:
    return "expected" if _EXPECTED.match(line) else "yours" if _YOURS.match(line) else ""


def standing(question: GradedQuestion) -> str:
    """'full', 'part' or 'none' of the points, or 'open' where nothing was handed in for it."""
    if question.earned >= question.points and (question.points or question.passed):
        return FULL
    if question.earned > 0:
        return PART
    return OPEN if question.outcome in ("not started", "missing", NOT_SUBMITTED) else NONE
