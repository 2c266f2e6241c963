"""Wrong answers that stop at being wrong: the exercise fails, the others pass, nobody need look."""

from __future__ import annotations

import random

from helpers.grading.judging.results import GRADED
from tests.grading.corpus import lab
from tests.grading.corpus.case import FAILED, WRONG, Case, Outcomes, row
from tests.grading.corpus.edits import RIGHT, WRONG_ANSWERS, answered, wrong_but

DID_NOT_RUN: Outcomes = frozenset({"did not run"})

CEIL_AS = "import math\n\n\ndef pages(tokens, page_tokens):\n    return {}"
RAISES_MARKUP = """def transfer_ms(size_bytes, link_bytes_per_s):
    raise ValueError("<script>alert(1)</script>\\x1b[2J\\x1b]0;title\\x07\\u202e =1+1")"""
RAISES_AT_LENGTH = "def transfer_ms(size_bytes, link_bytes_per_s):\n    raise ValueError('x' * 100_000)"
RAISES_UNPRINTABLE = """class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def transfer_ms(size_bytes, link_bytes_per_s):
    raise Unprintable"""
RAISES_UNENCODABLE = """def transfer_ms(size_bytes, link_bytes_per_s):
    raise ValueError("\\ud800\\udcff\\x00")"""
RECURSES = "def pages(tokens, page_tokens):\n    return pages(tokens, page_tokens)"
PLANS = {
    "every item in a bin of its own": "[[item] for item in range(len(sizes))]",
    "a bin too full": "[list(range(len(sizes)))]",
    "items left out": "[[item] for item in range(1, len(sizes))][:2]",
    "no plan": "None",
    "sizes for positions": "[[size] for size in sizes]",
    "texts for positions": "[[str(item)] for item in range(len(sizes))]",
    "a set, which is no plain data": "[{0}]",
    "a plan of megabytes": "[list(range(1_000_000))]",
    "a plan that holds itself": "(lambda plan: plan.append(plan) or plan)([])",
    "a plan nested deeply": "__import__('functools').reduce(lambda plan, _: [plan], range(50_000), [])",
    "a number that is none": "[[float('nan')]]",
}


def hard_coded(key: str, signature: str) -> str:
    """An answer that knows what the released lab shows, and nothing else."""
    known: dict[str, object] = {}
    answer = _run(RIGHT[key], {})[signature.partition("(")[0]]

    def seen(*arguments: object) -> object:
        return known.setdefault(repr(arguments), answer(*arguments))

    names = {"draw": lambda name: random.Random(f"0/{name}"), "asked": lambda one, *arguments: one(*arguments)}
    _run(lab.ASKS[key], names | {answer.__name__: seen})
    given = signature[signature.index("(") :]
    return f"def {signature}:\n    return {known!r}.get(repr({given}), 1)"


def _run(source: str, names: dict) -> dict:
    exec(source, names)
    return names


def _wrong(name: str, item: str, answers: dict[str, str], outcomes: Outcomes = FAILED) -> Case:
    return Case(name, WRONG, item, answered(**answers), row(**dict.fromkeys(answers, outcomes)), frozenset({GRADED}))


def _ceil_as(value: str) -> dict[str, str]:
    return {"pages": CEIL_AS.format(value)}


def _plan(value: str) -> dict[str, str]:
    return {"pack": f"def pack(sizes, capacity):\n    return {value}"}


def _rows() -> list[tuple]:
    """(name, item, answers, and what becomes of them where it is not 'wrong')."""
    return [
        ("floor for ceil", "floor for ceil", {"pages": WRONG_ANSWERS["pages"]}),
        ("always a page more", "floor for ceil", _ceil_as("tokens // page_tokens + 1")),
        ("rounded", "floor for ceil", _ceil_as("round(tokens / page_tokens)")),
        ("a float", "float for int", _ceil_as("float(-(-tokens // page_tokens))")),
        ("a bool", "float for int", _ceil_as("bool(tokens) if tokens <= page_tokens else -(-tokens // page_tokens)")),
        ("a syntax error", "syntax error", {"window": "def total(self) return 1"}, DID_NOT_RUN),
        ("an unclosed text", "syntax error", {"window": '"""never closed'}, DID_NOT_RUN),
        ("raises when defined", "exception", {"window": "class Window(Nothing):\n    pass"}, DID_NOT_RUN),
        ("raises when called", "exception", {"window": "class Window:\n    pass"}),
        ("raises markup", "exception", {"transfer": RAISES_MARKUP}),
        ("raises at length", "exception", {"transfer": RAISES_AT_LENGTH}),
        ("raises the unprintable", "exception", {"transfer": RAISES_UNPRINTABLE}),
        ("raises the unencodable", "exception", {"transfer": RAISES_UNENCODABLE}),
        ("recurses for ever", "exception", {"pages": RECURSES}),
        (
            "hard-coded",
            "right value for public inputs only",
            {
                "pages": hard_coded("pages", "pages(tokens, page_tokens)"),
                "transfer": hard_coded("transfer", "transfer_ms(size_bytes, link_bytes_per_s)"),
            },
        ),
        *((name, "right value for public inputs only", _plan(value)) for name, value in PLANS.items()),
    ]


CASES = (
    *(_wrong(*one) for one in _rows()),
    Case("all wrong", WRONG, "exception", wrong_but(), dict.fromkeys(lab.POINTS, FAILED), frozenset({GRADED})),
)
