"""The ledger of claims: what articles say, in our words, the reader's verdict, and what the workbook's cells found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..catalog.errors import WorkbookError, require_name, unknown_name
from . import notes
from .plain import encode, shown

VERDICTS = ("holds", "holds with conditions", "wrong")
Cases = Mapping[str, bool] | Mapping[tuple[str, str, str], bool]
_LEDGER = Path(__file__).parent / "data" / "claims.json"


@dataclass(frozen=True)
class ClaimSource:
    """Where claims are made: the kind of article, and its title and date where it has them."""

    kind: str
    title: str | None = None
    date: str | None = None

    def __str__(self) -> str:
        named = ", ".join(part for part in (self.title and f"*{self.title}*", self.date) if part)
        return f"{self.kind} ({named})" if named else self.kind


@dataclass(frozen=True)
class Claim:
    """One claim: where it is made (keys of `sources`), what it says, the verdict and the reason for it.

    `misses` are sentences for whoever gave another verdict, by that verdict.
    """

    id: str
    chapter: str
    made_in: tuple[str, ...]
    claim: str
    verdict: str
    because: str
    misses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for missed in self.misses:
            require_name("verdict missed", missed, [one for one in VERDICTS if one != self.verdict])
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
def sources() -> dict[str, ClaimSource]:
    """Every source by its key in the ledger."""
    return {key: ClaimSource(**entry) for key, entry in _read()["sources"].items()}


@cache
def ledger() -> dict[str, Claim]:
    """Every claim by id."""
    entries = _read()["claims"].items()
    return {key: Claim(id=key, **entry | {"made_in": tuple(entry["made_in"])}) for key, entry in entries}


def read(claim_id: str, guess: str | None = None) -> Verdict:
    """Show a claim and take the reader's verdict, before any evidence: "holds", "holds with conditions" or "wrong".

    Stands alone in its cell, as `predict` does; `trial(..., you=...)` in a later cell answers. Case and spaces do not
    matter. Another verdict is none: a line names the nearest, and the chapter goes on without. An unknown claim is a
    WorkbookError.

    >>> read("attn-heavy", guess="holds").guess
    'holds'
    """
    require_name("claim", claim_id, ledger())
    claim, verdict = ledger()[claim_id], " ".join(guess.casefold().split()) if isinstance(guess, str) else None
    if verdict in VERDICTS:
        said = f"Your verdict: **{verdict}**."
    else:
        said = f"{_refused(guess)}Your verdict? `guess=` one of {_choices()}."
        verdict = None
    _show(f"{claim.quoted}\n\n{said}")
    return Verdict(claim, verdict)


def _refused(guess: object) -> str:
    """What is wrong with a verdict that is none of the three; '' for None."""
    if guess is None:
        return ""
    near = unknown_name("verdict", guess, VERDICTS).do if isinstance(guess, str) else ""
    hint = f": {near}" if near.startswith("did you") else "."
    return f"`{shown(guess, 40)}` is none of the three verdicts, so you have none yet{hint} "


def trial(claim_id: str, evidence: Cases | str, you: Verdict | None = None) -> None:
    """Show the evidence that the calling cell computed, the verdict that follows from it, and the reader's.

    `evidence` says for each case, in words with its numbers, whether the claim holds there. Many cases make a table:
    then a case is (row, column, what the cell of the table says). The claim holds if it holds
    in all cases, is wrong if in none, and holds with conditions otherwise; AssertionError where the ledger differs.
    Evidence in one text has no cases, and the ledger's verdict stands unproved. WorkbookError for evidence that is
    empty or neither, for a case that is neither true nor false, and for a verdict on another claim.

    >>> trial("attn-heavy", {"Llama-2-7B: attention 2.1, feed-forward 4.3 billion parameters": False})
    """
    require_name("claim", claim_id, ledger())
    if not isinstance(evidence, str | Mapping) or not evidence:
        raise WorkbookError("a trial without evidence", "what the cell computed, case by case", "pass it second")
    if isinstance(you, Verdict) and you.claim.id != claim_id:
        raise WorkbookError(f"a verdict on {you.claim.id!r}", f"one on {claim_id!r}", "pass what its own read returned")
    _show(answer(ledger()[claim_id], evidence, you))
    if isinstance(you, Verdict) and you.guess is not None:
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
        lines += ["", f"Your verdict: {_weighed(you, claim)}."]
    return "\n".join([*lines, "", f"**{claim.verdict.capitalize()}.** {claim.because[0].upper()}{claim.because[1:]}"])


def _weighed(you: object, claim: Claim) -> str:
    if not isinstance(you, Verdict):
        return f"none yet. It comes from `claims.read`, and this is `{shown(you, 40)}`"
    if not you.guess:
        return "none yet"
    if you.guess == claim.verdict:
        return f"{you.guess}, as computed"
    missed = claim.misses.get(you.guess, "")
    return f"{you.guess}, the cases say otherwise" + (f". {missed}" if missed else "")


def verdict_of(holds: Iterable[bool]) -> str:
    """The verdict that cases give together; WorkbookError for one that is neither true nor false.

    >>> verdict_of([True, False])
    'holds with conditions'
    """
    outcomes = set(map(_is_true, holds))
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
    return "holds" if _is_true(holds) else "does not hold"


def _is_true(holds: object) -> bool:
    """Of NumPy's booleans and a tensor's, too; of no number, since nan would count as true."""
    with contextlib.suppress(Exception):
        if isinstance(outcome := encode(holds), bool):
            return outcome
    raise WorkbookError(f"a case of the evidence is {shown(holds, 40)}", "True or False", "compare: found < limit")


@cache
def _read() -> dict:
    return json.loads(_LEDGER.read_text(encoding="utf-8"))


def _choices() -> str:
    return ", ".join(f'`"{verdict}"`' for verdict in VERDICTS)


def _show(text: str) -> None:
    from IPython.display import Markdown, display

    display(Markdown(text.replace("$", r"\$")))  # a price; two of them would be a formula
