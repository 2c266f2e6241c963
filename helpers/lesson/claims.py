"""The ledger of claims: what articles say, in our words, and what the workbook's cells found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..catalog.errors import WorkbookError, require_name

VERDICTS = ("holds", "holds with conditions", "wrong")
_LEDGER = Path(__file__).parent / "data" / "claims.json"


@dataclass(frozen=True)
class Claim:
    """One claim: where it is made (a kind of article), what it says, the verdict and the reason for it."""

    id: str
    chapter: str
    made_in: str
    claim: str
    verdict: str
    because: str

    def __post_init__(self) -> None:
        require_name("verdict", self.verdict, VERDICTS)


@cache
def ledger() -> dict[str, Claim]:
    """Every claim by id."""
    entries = json.loads(_LEDGER.read_text(encoding="utf-8"))["claims"]
    return {key: Claim(id=key, **entry) for key, entry in entries.items()}


def trial(claim_id: str, evidence: str) -> None:
    """Print a claim, the evidence that the calling cell computed, and the ledger's verdict.

    >>> trial("attn-heavy", "attention 1, feed-forward 2")  # doctest: +ELLIPSIS
    Said in a cloud's guide to LLM optimization: Attention layers hold more weight memory than feed-forward layers.
    Computed: attention 1, feed-forward 2
    Verdict: wrong. In a Llama-shaped layer ...
    """
    require_name("claim", claim_id, ledger())
    if not evidence:
        raise WorkbookError("a trial without evidence", "what the cell computed, as text", "pass it second")
    one = ledger()[claim_id]
    print(f"Said in {one.made_in}: {one.claim}")
    print(f"Computed: {evidence}")
    print(f"Verdict: {one.verdict}. {one.because[0].upper()}{one.because[1:]}")
