"""Forgers of recorded answers: the lines under `judged` come from the learner's kernel, so they may be anything.

Their `pack` is wrong, all else is right; what they print stays in the check of `pack`, or in what it names.
"""

from __future__ import annotations

from tests.grading.corpus.case import ANY, FORGING, NOT_PASSED, Case, row
from tests.grading.corpus.edits import RIGHT, WRONG_ANSWERS, Build, answered

ITEM = "recorded answers"
NAMED_RIGHT = RIGHT["pack"].replace("def pack", "def right")
# The check weighs a right plan, and prints what it must; what is recorded is for the judge alone to refuse.
OWN_JUDGED = """def judged(answer, *arguments):
    sizes, capacity = arguments
    print({})
    return right(sizes, capacity)


def pack(sizes, capacity):
    return None"""


# What is printed for each plan: an expression, in which `right` makes right plans.
LINES = {
    "only the check sees a right plan": '"judged: [[0]]"',
    "no line": '"nothing"',
    "two lines a plan": 'f"judged: {right(sizes, capacity)}\\njudged: [[0]]"',
    "nothing": '"judged:"',
    "no JSON": '"judged: {not json"',
    "NaN": '"judged: [[NaN]]\\njudged: NaN"',
    "infinity": '"judged: [[1e999, -1e999, Infinity]]"',
    "an int of 5,000 digits": '"judged: [[" + "9" * 5000 + "]]"',
    "5,000 brackets": '"judged: " + "[" * 5000 + "]" * 5000',
    "50 MB": '"judged: [" + "0," * 25_000_000 + "0]"',
    "10,000 lines": '"judged: [[0]]\\n" * 10_000',
    "every item twice": 'f"judged: {right(sizes, capacity) * 2}"',
    "an item more": 'f"judged: {[*right(sizes, capacity), [len(sizes)]]}"',
    "negative positions": 'f"judged: {[[item - len(sizes) for item in one] for one in right(sizes, capacity)]}"',
    "floats for positions": 'f"judged: {[[float(item) for item in one] for one in right(sizes, capacity)]}"',
    "a line without its end": '"judged: [[0], ", end=""',
    "a line in parts": 'f"judged: {right(sizes, capacity)}", "[[0]]"',
    "another end of line": '"x\\u2028judged: [[0]]\\x0bjudged: [[0]]\\x85judged: [[0]]\\x1ejudged: [[0]]"',
    "a carriage return": 'f"judged: [[0]]\\rjudged: {right(sizes, capacity)}\\b\\b"',
    "an object for a list": '"judged: {\\"0\\": [0]}"',
    "keys twice": '"judged: {\\"a\\": 1, \\"a\\": [[0]]}"',
    "a mark within": '"judged: judged: [[0]]"',
    "terminal escapes": '"\\x1b[2Kjudged: [[0]]\\x1b[1A"',
}
# The check weighs the list that it passed, and the learner's code has that list.
SHRINKS = """def pack(sizes, capacity):
    sizes[:] = [1] * len(sizes)
    return [list(range(len(sizes)))] if sizes else []"""
WIDENS = """import sys


def pack(sizes, capacity):
    frame = sys._getframe(1)
    while "loads" not in frame.f_globals:
        frame = frame.f_back
    frame.f_globals["capacity"] = type("int", (int,), {"__format__": lambda self, form: str(capacity)})(10**9)
    return [list(range(len(sizes)))] if sizes else []"""
REPLAYS = """import json
import os

os.environ["WORKBOOK_JUDGED"] = json.dumps(["[[0], [1], [2], [3]]", "[[0]]", "[]"] + ["[[0]]"] * 3)


def pack(sizes, capacity):
    return None"""
FROM_A_THREAD = """import threading
import time


def speak():
    for _ in range(400):
        time.sleep(0.01)
        print("judged: [[0]]", flush=True)


threading.Thread(target=speak, daemon=True).start()"""
SPEAKS_FIRST = f"""{NAMED_RIGHT}


def pack(sizes, capacity):
    print("judged: [[0]]")
    return right(sizes, capacity)"""
ON_STDERR = """import sys


def pack(sizes, capacity):
    print("judged: [[0]]", file=sys.stderr)
    return [list(range(len(sizes)))] if sizes else []"""
DISPLAYED = """from IPython.display import display


def pack(sizes, capacity):
    display({"text/plain": "judged: [[0]]"}, raw=True)
    return [list(range(len(sizes)))] if sizes else []"""


def _recording(lines: str) -> Build:
    return answered(pack=f"{NAMED_RIGHT}\n\n\n{OWN_JUDGED.format(lines)}")


_WRONG_PLANS: tuple[tuple[str, Build], ...] = (
    *((name, _recording(lines)) for name, lines in LINES.items()),
    ("shrinks the sizes", answered(pack=SHRINKS)),
    ("widens the bins", answered(pack=WIDENS)),
    ("replays plans of its own", answered(pack=REPLAYS)),
    ("on stderr", answered(pack=ON_STDERR)),
    ("displayed", answered(pack=DISPLAYED)),
)
CASES = (
    *(Case(f"judged: {name}", FORGING, ITEM, build, row(pack=NOT_PASSED)) for name, build in _WRONG_PLANS),
    Case("judged: a line too many", FORGING, ITEM, answered(pack=SPEAKS_FIRST), row(pack=ANY)),
    Case(
        "judged: in another answer",
        FORGING,
        ITEM,
        answered(pages='print("judged: [[0]]")\n\n\n' + RIGHT["pages"], pack=WRONG_ANSWERS["pack"]),
        row(pack=NOT_PASSED),
    ),
    Case(
        "judged: in another check",
        FORGING,
        ITEM,
        answered(
            pages='def pages(tokens, page_tokens):\n    print("judged: [[0]]")\n    return -(-tokens // page_tokens)',
            pack=WRONG_ANSWERS["pack"],
        ),
        row(pages=ANY, pack=NOT_PASSED),
    ),
    Case(
        "judged: from a thread",
        FORGING,
        ITEM,
        answered(window=f"{FROM_A_THREAD}\n\n\n{RIGHT['window']}", pack=WRONG_ANSWERS["pack"]),
        row(window=ANY, transfer=ANY, pack=NOT_PASSED, chain=ANY),
    ),
)
