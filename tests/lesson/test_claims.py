"""The ledger of claims: every entry is whole, and every one is on trial in its chapter."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from helpers.catalog import WorkbookError
from helpers.lesson import claims

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
CHAPTERS = {path.name[:2] for path in NOTEBOOKS.glob("[0-9]*.ipynb")}
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
def test_every_claim_of_a_chapter_is_tried_in_it_or_its_companion_and_in_no_other(chapter):
    owned = {key for key, claim in claims.ledger().items() if claim.chapter == chapter}
    places = (NOTEBOOKS, NOTEBOOKS / "deeper")
    tried = [key for place in places for path in place.glob(f"{chapter}_*.ipynb") for key in trials(path)]
    assert set(tried) == owned
    assert len(tried) == len(set(tried))


HEAVY = "attn-heavy"


def test_evidence_in_one_text_stands_beside_the_ledgers_verdict():
    lines = claims.answer(claims.ledger()["adam-3x"], "four times").splitlines()
    assert lines[0].startswith("> Gradients double")
    assert lines[2] == "> — a cloud's guide to LLM optimization"
    assert lines[4] == "Four times"
    assert lines[6].startswith("**Wrong.** With Adam it is four times")


def test_a_source_is_named_by_its_title_and_date():
    assert "a masterclass on production budgeting (*GPU Memory Management For Large Models*, 2025-11-10)" in (
        claims.ledger()["zero3-all"].quoted
    )


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [((True, True), "holds"), ((False, True), "holds with conditions"), ((False, False), "wrong")],
)
def test_the_verdict_follows_from_the_cases(outcomes, verdict):
    assert claims.verdict_of(outcomes) == verdict


def test_a_verdict_that_the_evidence_refutes_is_an_error():
    with pytest.raises(AssertionError, match="the evidence says 'holds', the ledger 'wrong'"):
        claims.trial(HEAVY, {"a model made of attention": True})


def test_the_readers_verdict_stands_beside_the_computed_one():
    for guess, said in {"wrong": "wrong, as computed", "holds": "holds, the cases say otherwise"}.items():
        text = claims.answer(claims.ledger()[HEAVY], {"Llama-2-7B": False}, you=claims.read(HEAVY, guess=guess))
        assert f"Your verdict: {said}" in text
        assert "- Llama-2-7B: does not hold" in text
    assert "Your verdict: none yet." in claims.answer(claims.ledger()[HEAVY], {"x": False}, you=claims.read(HEAVY))


def test_a_reader_who_missed_is_told_what_to_look_at():
    claim = claims.ledger()[HEAVY]
    text = claims.answer(claim, {"Llama-2-7B": False}, you=claims.read(HEAVY, guess="holds"))
    assert "Your verdict: holds, the cases say otherwise. Count: four matrices" in text
    with pytest.raises(WorkbookError, match="verdict missed"):
        claims.Claim("x", "02", ("cloud",), "It is so.", "wrong", "nobody knows.", {"wrong": "No"})


def test_many_cases_make_a_table_and_each_counts():
    claim = claims.ledger()["amp-2x"]
    cases = {("small", "plain", "1.1×"): False, ("small", "fused", "1.0×"): False, ("large", "plain", "2.0×"): True}
    text = claims.answer(claim, cases)
    assert "|  | plain | fused |\n| --- | --- | --- |\n| small | 1.1×, does not hold | 1.0×, does not hold |" in text
    assert "| large | 2.0×, holds |  |\n\n**Holds with conditions.**" in text
    with pytest.raises(AssertionError, match="the evidence says 'wrong'"):
        claims.answer(claim, dict(list(cases.items())[:2]))


def test_a_verdict_on_another_claim_is_refused():
    with pytest.raises(WorkbookError, match="a verdict on 'adam-3x'"):
        claims.trial(HEAVY, {"x": False}, you=claims.read("adam-3x"))


def test_bad_trials_are_refused():
    with pytest.raises(WorkbookError, match="unknown claim 'adam-3'") as raised:
        claims.trial("adam-3", "x")
    assert "did you mean 'adam-3x'?" in raised.value.do
    with pytest.raises(WorkbookError, match="without evidence"):
        claims.trial("adam-3x", {})
    with pytest.raises(WorkbookError, match="a case of the evidence is nan"):
        claims.trial("adam-3x", {"x": float("nan")})


@pytest.mark.parametrize(
    ("guess", "said", "taken"),
    [
        (" Holds  with conditions\n", "Your verdict: **holds with conditions**.", "holds with conditions"),
        ("hold", "did you mean 'holds'?", None),
        ("perhaps", "none of the three verdicts", None),
        (True, "none of the three verdicts", None),
        ("", "none of the three verdicts", None),
        (None, "Your verdict? `guess=` one of", None),
    ],
)
def test_a_verdict_is_taken_as_written_or_a_line_says_how(guess, said, taken, monkeypatch):
    shown = []
    monkeypatch.setattr(claims, "_show", shown.append)
    assert claims.read("adam-3x", guess=guess).guess == taken
    assert said in shown[0]
    assert taken or '`"wrong"`' in shown[0]


def test_a_verdict_is_one_of_three():
    with pytest.raises(WorkbookError, match="unknown verdict 'maybe'"):
        claims.Claim("x", "02", ("cloud",), "It is so.", "maybe", "nobody knows.")
