"""The synthetic language: the same words everywhere, and answers that are where they are said to be."""

import hashlib
import subprocess
import sys
from itertools import pairwise

import pytest

from helpers.catalog import WorkbookError
from helpers.small_lm import held_out_documents, recall_documents, training_documents
from helpers.small_lm.language import FACT_WORDS, MAX_DISTANCE
from helpers.small_lm.words import ACTIONS, AGENTS, RELATIONS, SCENES, VOCABULARY

DIGESTS = {  # of the text; a change here changes what every score means, and the checkpoint with it
    "training": "b3780f656b853d51",
    "held-out": "2ec658f34a65c7ff",
    "recall": "5442521c55bfacfd",
}
DRAWN = """
import hashlib
from helpers.small_lm import held_out_documents, recall_documents, training_documents
for documents in (training_documents(3, 300, 7), held_out_documents(3, 300, 7), recall_documents(250, 3)):
    print(hashlib.sha256("\\n".join(document.text for document in documents).encode()).hexdigest()[:16])
"""


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_the_same_text_in_every_process(hash_seed):
    done = subprocess.run(
        [sys.executable, "-c", DRAWN],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
    )
    assert dict(zip(DIGESTS, done.stdout.split(), strict=True)) == DIGESTS


def test_the_order_of_the_vocabulary_is_kept():
    """Token ids are positions in it: another order is another language to the checkpoint."""
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 416
    assert hashlib.sha256(" ".join(VOCABULARY).encode()).hexdigest()[:16] == "fd24d71936061795"


def test_a_document_reads_like_english():
    text = training_documents(1, 40, seed=3)[0].text
    assert text.startswith("in june they taught otto grammar . the stubborn monk stood alone past the garden .")


@pytest.mark.parametrize("document", training_documents(4, 600, seed=1) + held_out_documents(2, 1024))
def test_an_answer_is_its_facts_value_and_stands_after_its_name(document):
    assert len(document.answers) > 10
    for answer in document.answers:
        assert document.words[answer.position] == document.words[answer.stated]
        assert document.words[answer.position - 1] == document.words[answer.stated - 1]
        assert document.words[answer.position - 5 : answer.position - 3] == ("recall", "that")
        assert document.words[answer.stated - 5] == "in"


@pytest.mark.parametrize("document", training_documents(4, 600, seed=1) + recall_documents(500, 2))
def test_a_name_is_stated_once_and_asked_at_most_once(document):
    """Otherwise an answer could be copied from an earlier question, nearer than the distance says."""
    for relation in RELATIONS:
        for name in relation.names:
            assert document.words.count(name) <= 2
    asked = [document.words[answer.position - 1] for answer in document.answers]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("distance", [7, 8, 50, 111, 112, 113, 999, 1000])
def test_recall_documents_have_the_distance(distance):
    for document in recall_documents(distance, count=3):
        assert {answer.position - answer.stated for answer in document.answers} == {distance}
        assert len(document.answers) == min(16, distance // FACT_WORDS)
        assert len(document.words) == 1 + distance + FACT_WORDS * len(document.answers)
        for answer in document.answers:
            assert document.words[answer.position] == document.words[answer.stated]


def test_no_answer_lies_behind_the_cut():
    for words in range(2, 120):
        document = training_documents(1, words, seed=5)[0]
        assert len(document.words) == words
        assert all(answer.position < words for answer in document.answers)


def test_training_never_sees_held_out_or_recall_text():
    trained = {document.words for document in training_documents(50, 64)}
    assert len(trained) == 50
    assert not trained & {document.words for document in held_out_documents(50, 64)}
    assert held_out_documents(2, 64, seed=0) != held_out_documents(2, 64, seed=1)


def test_documents_are_numbered_so_that_training_can_resume():
    assert training_documents(4, 64)[2:] == training_documents(2, 64, first=2)


def neighbours(documents):
    """All pairs of words that follow one another."""
    return [pair for document in documents for pair in pairwise(document.words)]


def test_a_value_cannot_be_known_from_its_name():
    """Drawn anew in each document: a model that answers has read, not remembered."""
    values = [value for name, value in neighbours(training_documents(300, 400)) if name == "oslo"]
    assert len(set(values)) > 12


def test_filler_has_habits():
    """The fox has four ways to act, one of them half the time: this is what weights must hold."""
    after = [action for agent, action in neighbours(training_documents(60, 1000)) if agent == "fox"]
    assert set(after) <= set(ACTIONS)
    assert len(set(after)) == 4
    commonest = max(set(after), key=after.count)
    assert after.count(commonest) / len(after) == pytest.approx(8 / 15, abs=0.08)
    assert set(AGENTS).isdisjoint(SCENES)


@pytest.mark.parametrize("distance", [0, 6, MAX_DISTANCE + 1, -5, 100.0, "100", True, None])
def test_distances_that_cannot_be(distance):
    with pytest.raises(WorkbookError) as caught:
        recall_documents(distance)
    assert repr(distance) in caught.value.what


def test_a_document_of_one_word():
    with pytest.raises(WorkbookError):
        training_documents(1, 1)
