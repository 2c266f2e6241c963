"""How a question's outcome is put to people: where it stands, in words, and what to do next."""

from __future__ import annotations

from helpers.course.grade.model import Question

FULL, PART, NONE, OPEN = "full", "part", "none", "open"
STANDINGS = {FULL: "all points", PART: "some points", NONE: "no points", OPEN: "not started"}
SIGNS = {FULL: "✓", PART: "◐", NONE: "✗", OPEN: "○"}

# For the learner: the outcome, and the next thing to do about it.
OUTCOME_WORDS = {
    "passed": ("All checks passed", ""),
    "not started": ("Not started", "Write your answer into its cell, then run the check below it."),
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
}


def standing(question: Question) -> str:
    """'full', 'part' or 'none' of the points, or 'open' where nothing was handed in for it."""
    if question.earned >= question.points and (question.points or question.passed):
        return FULL
    if question.earned > 0:
        return PART
    return OPEN if question.outcome in ("not started", "missing") else NONE
