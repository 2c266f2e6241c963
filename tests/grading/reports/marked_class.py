"""Results to write about: a question, a learner and a class by keyword, and texts that attack whoever shows them."""

from __future__ import annotations

from helpers.grading.intake.owners import slug
from helpers.grading.judging.results import ATTENTION, UNREADABLE, GradedQuestion, Result

SCRIPT = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><svg onload='window.ran = 1'>"
BREAKOUT = "\"'></style></title></pre><script>window.ran = 1</script>{{ 7 * 7 }}{% raise %}&lt;b&gt;"
FETCHING = "<link rel=stylesheet href='http://127.0.0.1:9/x.css'><img src='http://127.0.0.1:9/x.png'>"
TERMINAL = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x07\x00\x9b2J\b"
TURNED = "abc\u202egnp.exe\u202c \u2066x\u2069 \u200f"
HOSTILE = (SCRIPT, BREAKOUT, FETCHING, TERMINAL, TURNED, "\ud800 lone surrogate", '=HYPERLINK("http://x")')
NAMES = (
    "<img src=x onerror=alert(1)>",
    "=SUM(A1)",
    "\x1b[31mada\x1b[0m",
    "ada\u202eeve",
    "-1",
    "José Ñandú",
    "a" * 500,
)
TITLES = {"twice": "1 · Twice", "pages": "2 · Pages", "half": "3 · Half"}
POINTS = {"twice": 2, "pages": 2, "half": 1}


def question(key: str, outcome: str = "passed", **more: object) -> GradedQuestion:
    """One question of the small lab; full points when passed, else none, unless `earned` says so."""
    earned = POINTS[key] if outcome == "passed" else 0
    return GradedQuestion(
        **{"key": key, "title": TITLES[key], "earned": earned, "points": POINTS[key], "outcome": outcome} | more
    )


def questions(*changed: GradedQuestion) -> tuple[GradedQuestion, ...]:
    """All three, passed but for those given."""
    given = {one.key: one for one in changed}
    return tuple(given.get(key, question(key)) for key in TITLES)


def result(learner: str, *changed: GradedQuestion, status: str = "graded", **more: object) -> Result:
    """A learner's result, everything passed but for the questions given."""
    return Result(learner, slug(learner), status, questions(*changed), **more)


def unreadable(learner: str, reason: str = "this is no notebook: invalid JSON in line 1") -> Result:
    """The row of a notebook that could not be read."""
    lost = [question(key, "not reached") for key in TITLES]
    return result(learner, *lost, status=UNREADABLE, reasons=(reason,))


def small_class() -> list[Result]:
    """Five learners, one of each kind."""
    wrong = question("pages", "wrong", message="5 tokens\n  expected: 2\n  yours:    1", hint="Use `math.ceil`.")
    died = question("half", "died", message="your code ended the kernel")
    return [
        result("ada", seconds=3.25),
        result("ben", wrong),
        result("cleo", question("twice", "not started"), question("pages", "wrong", earned=1, message="3 tokens: -1")),
        result("dan", died, status=ATTENTION, reasons=("half ended the kernel",)),
        unreadable("eve"),
    ]


def hostile_class() -> list[Result]:
    """A learner for each hostile name, with hostile texts wherever a learner's text can come to."""
    text = "\n".join(HOSTILE)
    return [
        Result(name, slug(name), status, tuple(_hostile_question(key, text) for key in TITLES), (text,), (text,))
        for name, status in zip(NAMES, [ATTENTION, UNREADABLE] * len(NAMES), strict=False)
    ]


def _hostile_question(key: str, text: str) -> GradedQuestion:
    return question(key, "wrong", message=text, hint=text, rubric=(text,), title=text)
