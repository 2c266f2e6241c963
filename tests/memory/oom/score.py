"""Scores `explain-oom` on the corpus and prints the table: `python -m tests.memory.oom.score`.

Of each engine, and of each settled cause: messages, parsed, with all figures right, and the verdicts on those whose
thread names a cause. Right: the reason is the cause. Named: the answer is that the bytes do not decide, and the cause
is among the few that it leaves. Open: it is not. Wrong: another reason.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from helpers.catalog.errors import WorkbookError
from helpers.memory.oom import Reason, explain, parse

from .corpus.cases import CASES, LESS, Case, read_figures


@dataclass(frozen=True)
class Scored:
    case: Case
    parsed: bool
    figures_right: bool = False
    reason: Reason | None = None
    possible: tuple[Reason, ...] = ()

    @property
    def verdict(self) -> str:
        """right, wrong, named or open; "" where the thread names no cause."""
        if self.case.cause is None:
            return ""
        if self.reason is None:
            return "wrong"
        if self.case.is_right(self.reason):
            return "right"
        if any(map(self.case.is_right, self.possible)):
            return "named"
        return "open" if self.reason is Reason.UNCLEAR else "wrong"


def score(case: Case) -> Scored:
    try:
        oom = parse(case.text)
    except WorkbookError:
        return Scored(case, parsed=False)
    wanted, why = case.figures, explain(case.text).why
    return Scored(case, True, read_figures(oom, wanted) == wanted, why.reason, why.possible)


def count(scored: Iterable[Scored]) -> Counter[str]:
    """Verdicts of those whose thread names a cause."""
    return Counter(one.verdict for one in scored if one.verdict)


COLUMNS = ("messages", "parsed", "figures right", "settled", "right", "named", "open", "wrong")


def _row(name: str, scored: list[Scored]) -> str:
    verdicts = [one.verdict for one in scored if one.verdict]
    counts = (
        len(scored),
        sum(one.parsed for one in scored),
        sum(one.figures_right for one in scored),
        len(verdicts),
        *(verdicts.count(verdict) for verdict in COLUMNS[-4:]),
    )
    return (
        f"| {name:<18} |"
        + "|".join(f" {count:>{len(column)}} " for count, column in zip(counts, COLUMNS, strict=True))
        + "|"
    )


def table(scored: list[Scored], key: Callable[[Scored], str | None], title: str) -> Iterator[str]:
    groups: defaultdict[str, list[Scored]] = defaultdict(list)
    for one in scored:
        groups[key(one) or "no cause named"].append(one)
    yield f"| {title:<18} |" + "|".join(f" {column} " for column in COLUMNS) + "|"
    yield f"|{'-' * 20}|" + "|".join("-" * (len(column) + 2) for column in COLUMNS) + "|"
    yield from (_row(name, groups[name]) for name in sorted(groups))
    yield _row("all", scored)


def main() -> None:
    scored = [score(case) for case in CASES]
    print("\n".join(table(scored, lambda one: one.case.engine, "engine")), end="\n\n")
    print("\n".join(table(scored, lambda one: one.case.cause, "cause")), end="\n\n")
    samples: dict[str, Callable[[Case], bool]] = {
        "first sample, the half that rules were tuned on": lambda case: case.sample == 1 and case.is_first_half,
        "first sample, the other half": lambda case: case.sample == 1 and not case.is_first_half,
        "second sample": lambda case: case.sample == 2,
        "threads that name one reason": lambda case: case.cause != LESS,
    }
    for name, wanted in samples.items():
        verdicts = count(one for one in scored if wanted(one.case))
        print(f"{name}: {verdicts['right']} of {verdicts.total()} right, {verdicts['named']} more among those left")
    if "--wrong" in sys.argv:
        for one in scored:
            if not one.parsed or not one.figures_right or one.verdict not in ("", "right"):
                print(one.verdict, one.case.thread, one.case.kind, one.case.cause, one.reason, one.figures_right)


if __name__ == "__main__":
    main()
