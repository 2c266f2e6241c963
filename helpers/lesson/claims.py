"""The ledger of claims: what articles say, in our words, the reader's verdict, and what the workbook's cells found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..catalog.errors import WorkbookError, require_name
from . import notes

VERDICTS = ("holds", "holds with conditions", "wrong")
Cases = Mapping[str, bool] | Mapping[tuple[str, str, str], bool]
_LEDGER = Path(__file__).parent / "data" / "claims.json"


@dataclass(frozen=True)
class Source:
    """Where claims are made: the kind of article, and its title and date where it has them."""

    kind: str
    title: str | None = None
    date: str | None = None

    def __str__(self) -> str:
        named = ", ".join(part for part in (self.title and f"*{self.title}*", self.date) if part)
        return f"{self.kind} ({named})" if named else self.kind


@dataclass(frozen=True)
class Claim:
    """One claim: where it is made (keys of `sources`), what it says, the verdict and the reason for it."""

    id: str
    chapter: str
    made_in: tuple[str, ...]
    claim: str
    verdict: str
    because: str

    def __post_init__(self) -> None:
        require_name("verdict", self.verdict, VERDICTS)
        for name in self.made_in:
            require_name("source", name, sources())

    @property
    def quoted(self) -> str:
        """The claim and its sources, in Markdown."""
        *first, last = (str(sources()[name]) for name in self.made_in)
        where = f"{', '.join(first)} and {last}" if first else last
        return f"> {self.claim}\n>\n> — {where}"


@dataclass(frozen=True)
class Verdict:
    """What the reader says of a claim before the evidence: one of VERDICTS, or None."""

    claim: Claim
    guess: str | None


@cache
def sources() -> dict[str, Source]:
    """Every source by its key in the ledger."""
    return {key: Source(**entry) for key, entry in _read()["sources"].items()}


@cache
def ledger() -> dict[str, Claim]:
    """Every claim by id."""
    entries = _read()["claims"].items()
    return {key: Claim(id=key, **entry | {"made_in": tuple(entry["made_in"])}) for key, entry in entries}


def read(claim_id: str, guess: str | None = None) -> Verdict:
    """Show a claim and take the reader's verdict, before any evidence: "holds", "holds with conditions" or "wrong".

    Stands alone in its cell, as `predict` does; `trial(..., you=...)` in a later cell answers. Raises WorkbookError for
    an unknown claim and for another verdict.

    >>> read("attn-heavy", guess="holds").guess
    'holds'
    """
    require_name("claim", claim_id, ledger())
    if guess is not None:
        require_name("verdict", guess, VERDICTS)
    claim = ledger()[claim_id]
    said = f"Your verdict: **{guess}**." if guess else f"Your verdict? `guess=` one of {_choices()}."
    _show(f"{claim.quoted}\n\n{said}")
    return Verdict(claim, guess)


def trial(claim_id: str, evidence: Cases | str, you: Verdict | None = None) -> None:
    """Show the evidence that the calling cell computed, the verdict that follows from it, and the reader's.

    `evidence` says for each case, in words with its numbers, whether the claim holds there. Many cases make a table:
    then a case is (row, column, what the cell of the table says). The claim holds if it holds
    in all cases, is wrong if in none, and holds with conditions otherwise; AssertionError where the ledger differs.
    Evidence in one text has no cases, and the ledger's verdict stands unproved.

    >>> trial("attn-heavy", {"Llama-2-7B: attention 2.1, feed-forward 4.3 billion parameters": False})
    """
    require_name("claim", claim_id, ledger())
    if not evidence:
        raise WorkbookError("a trial without evidence", "what the cell computed, case by case", "pass it second")
    if you is not None and you.claim.id != claim_id:
        raise WorkbookError(f"a verdict on {you.claim.id!r}", f"one on {claim_id!r}", "pass what its own read returned")
    _show(answer(ledger()[claim_id], evidence, you))
    if you is not None and you.guess is not None:
        notes.judged(claim_id, you.guess, you.guess == you.claim.verdict)


def answer(claim: Claim, evidence: Cases | str, you: Verdict | None = None) -> str:
    """What `trial` shows, in Markdown."""
    if isinstance(evidence, str):
        lines = [claim.quoted, "", f"{evidence[0].upper()}{evidence[1:]}"]
    else:
        found = verdict_of(evidence.values())
        if found != claim.verdict:
            raise AssertionError(f"{claim.id}: the evidence says {found!r}, the ledger {claim.verdict!r}: {evidence}")
        lines = [f"- {case}: {_word(holds)}" for case, holds in evidence.items() if isinstance(case, str)]
        lines = lines or _table({case: holds for case, holds in evidence.items() if isinstance(case, tuple)})
    if you is not None:
        right = "as computed" if you.guess == claim.verdict else "the cases say otherwise"
        lines += ["", f"Your verdict: {f'{you.guess}, {right}' if you.guess else 'none yet'}."]
    return "\n".join([*lines, "", f"**{claim.verdict.capitalize()}.** {claim.because[0].upper()}{claim.because[1:]}"])


def verdict_of(holds: Iterable[bool]) -> str:
    """The verdict that cases give together.

    >>> verdict_of([True, False])
    'holds with conditions'
    """
    outcomes = {bool(each) for each in holds}
    return VERDICTS[1] if len(outcomes) > 1 else VERDICTS[0] if True in outcomes else VERDICTS[2]


def _table(evidence: Mapping[tuple[str, str, str], bool]) -> list[str]:
    """Cases of (row, column, text) as a table in Markdown, rows and columns in the order in which they come.

    >>> _table({("1 GPU", "plain", "2.1×"): True, ("1 GPU", "fused", "1.2×"): False})[2]
    '| 1 GPU | 2.1×, holds | 1.2×, does not hold |'
    """
    rows, columns = (list(dict.fromkeys(case[at] for case in evidence)) for at in (0, 1))
    said = {(row, column): f"{text}, {_word(holds)}" for (row, column, text), holds in evidence.items()}
    lines = [("", *columns), ("---",) * (1 + len(columns))]
    lines += [(row, *(said.get((row, column), "") for column in columns)) for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _word(holds: bool) -> str:
    return "holds" if holds else "does not hold"


@cache
def _read() -> dict:
    return json.loads(_LEDGER.read_text(encoding="utf-8"))


def _choices() -> str:
    return ", ".join(f'`"{verdict}"`' for verdict in VERDICTS)


def _show(text: str) -> None:
    from IPython.display import Markdown, display

    display(Markdown(text.replace("$", r"\$")))  # a price; two of them would be a formula
