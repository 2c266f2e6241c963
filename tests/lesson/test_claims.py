"""The ledger of claims: every entry is whole, and every one is on trial in its chapter."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from helpers.catalog import WorkbookError
from helpers.lesson import claims

CHAPTERS = {path.name[:2]: path for path in (Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb")}
TRIAL = re.compile(r"claims\.trial\(\s*[\"']([\w.-]+)[\"']")


def trials(path):
    """Claim ids tried in a notebook, in order."""
    cells = nbformat.read(path, as_version=4).cells
    return [found for cell in cells if cell.cell_type == "code" for found in TRIAL.findall(cell.source)]


@pytest.mark.parametrize("key", claims.ledger())
def test_every_claim_is_whole(key):
    claim = claims.ledger()[key]
    assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", key)
    assert re.fullmatch(r"\d\d", claim.chapter)
    assert claim.verdict in claims.VERDICTS
    for text in (claim.claim, claim.because):
        assert text.strip() == text
        assert text.endswith(".")
    assert claim.made_in
    assert len(claim.because) > 40, "a verdict without a reason"


def test_ids_are_written_once():
    names = []

    def note(pairs):
        names.extend(key for key, _ in pairs)
        return dict(pairs)

    json.loads(claims._LEDGER.read_text(encoding="utf-8"), object_pairs_hook=note)
    ids = [name for name in names if name in claims.ledger()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("chapter", sorted(CHAPTERS))
def test_every_claim_of_a_chapter_is_tried_in_it_and_no_other(chapter):
    owned = {key for key, claim in claims.ledger().items() if claim.chapter == chapter}
    tried = trials(CHAPTERS[chapter])
    assert set(tried) == owned
    assert len(tried) == len(set(tried))


def test_a_trial_prints_claim_evidence_and_verdict(printed):
    lines = printed(claims.trial, "adam-3x", "four times").splitlines()
    assert lines[0].startswith("Said in a cloud's guide to LLM optimization: Gradients double")
    assert lines[1] == "Computed: four times"
    assert lines[2].startswith("Verdict: wrong. In one dtype")


def test_bad_trials_are_refused():
    with pytest.raises(WorkbookError, match="unknown claim 'adam-3'") as raised:
        claims.trial("adam-3", "x")
    assert "did you mean 'adam-3x'?" in raised.value.do
    with pytest.raises(WorkbookError, match="without evidence"):
        claims.trial("adam-3x", "")


def test_a_verdict_is_one_of_three():
    with pytest.raises(WorkbookError, match="unknown verdict 'maybe'"):
        claims.Claim("x", "02", "somewhere", "It is so.", "maybe", "nobody knows.")
