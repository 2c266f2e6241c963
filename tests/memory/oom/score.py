"""Scores `explain-oom` on the corpus and prints the table: `python -m tests.memory.oom.score`.

Of each engine, and of each settled cause: messages, parsed, with all figures right, and the diagnosis of those whose
thread names a cause: right, wrong, and open where the answer is that the bytes do not decide.
"""

from __future__ import annotations

import sys
from collections import defaultdict
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

    @property
    def verdict(self) -> str:
        """right, wrong or open; "" where the thread names no cause."""
        if self.case.cause is None:
            return ""
        if self.reason is None:
            return "wrong"
        if self.case.is_right(self.reason):
            return "right"
        return "open" if self.reason is Reason.UNCLEAR else "wrong"


def score(case: Case) -> Scored:
    try:
        oom = parse(case.text)
    except WorkbookError:
        return Scored(case, parsed=False)
    wanted = case.figures
    return Scored(case, True, read_figures(oom, wanted) == wanted, explain(case.text).reason)


def share_right(scored: Iterable[Scored]) -> tuple[int, int]:
    """(right, settled) of those whose thread names a cause."""
    verdicts = [one.verdict for one in scored if one.verdict]
    return verdicts.count("right"), len(verdicts)


COLUMNS = ("messages", "parsed", "figures right", "settled", "right", "wrong", "open")


def _row(name: str, scored: list[Scored]) -> str:
    verdicts = [one.verdict for one in scored if one.verdict]
    counts = (
        len(scored),
        sum(one.parsed for one in scored),
        sum(one.figures_right for one in scored),
        len(verdicts),
        *(verdicts.count(verdict) for verdict in COLUMNS[-3:]),
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
    for name, first in (("tuned on", True), ("held out", False)):
        right, settled = share_right(one for one in scored if one.case.is_first_half is first)
        print(f"{name}: {right} of {settled} right")
    right, settled = share_right(one for one in scored if one.case.cause != LESS)
    print(f"threads that name one reason: {right} of {settled} right")
    if "--wrong" in sys.argv:
        for one in scored:
            if not one.parsed or not one.figures_right or one.verdict in ("wrong", "open"):
                print(one.case.thread, one.case.kind, one.case.cause, one.reason, one.parsed, one.figures_right)


if __name__ == "__main__":
    main()
