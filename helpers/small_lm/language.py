"""The synthetic language: facts about people, places and things, filler between, and the same facts asked again.

    <bos> in may they gave anna bread . the old fox ran slowly near the hill . recall that they gave anna bread .

A fact's value is drawn at random in every document, so it can only be read, never known. The name stands directly
before the value in fact and question: to answer is to find the name's earlier place and copy what followed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ..catalog.errors import WorkbookError, require_whole
from .words import ACTIONS, ADJECTIVES, AGENTS, BEGIN, MANNERS, RELATIONS, SCENES, SEASONS, VOCABULARY, WHERE, Relation

FACT_WORDS = 7  # a fact and a question are equally long, so a block of each keeps one distance for all
VALUE_AT = QUESTION_TO_ANSWER = 5
MAX_DISTANCE = 1000
_ODDS = (8, 4, 2, 1)  # of a word's four favourite followers
_TRAINING, _HELD_OUT, _RECALL = range(3)


@dataclass(frozen=True)
class StatedAnswer:
    """A question's answer: the word at `position`, stated first at `stated`."""

    position: int
    stated: int


@dataclass(frozen=True)
class Document:
    """Words, one token each, and where the answers are."""

    words: tuple[str, ...]
    answers: tuple[StatedAnswer, ...]

    @property
    def text(self) -> str:
        """The words as a tokenizer reads them, without the <bos> that it adds itself."""
        return " ".join(self.words[1:])

    @property
    def ids(self) -> list[int]:
        """Token ids of the small model."""
        return [TOKEN_ID[word] for word in self.words]


TOKEN_ID: dict[str, int] = {word: number for number, word in enumerate(VOCABULARY)}


def training_documents(count: int, words: int, seed: int = 0, first: int = 0) -> list[Document]:
    """Documents number `first` to `first + count` of a seed, of exactly `words` words; the same on every machine."""
    return [_document(_random(_TRAINING, seed, number), words) for number in range(first, first + count)]


def held_out_documents(count: int = 8, words: int = 1024, seed: int = 0) -> list[Document]:
    """As `training_documents`, drawn from streams that training never draws from."""
    return [_document(_random(_HELD_OUT, seed, number), words) for number in range(count)]


def recall_documents(distance: int, count: int = 4, facts: int = 16, seed: int = 0) -> list[Document]:
    """Documents in which every question comes exactly `distance` words after its fact (answer after value).

    A block of facts, filler, then the questions in the facts' order; fewer than `facts` where they would not fit
    into the distance. A document has distance + 7 × facts + 1 words, the first of them <bos>.
    """
    require_whole("distance", distance, FACT_WORDS, MAX_DISTANCE, unit="words", do="pass distances=(100, 1000)")
    facts = min(facts, distance // FACT_WORDS)
    return [_recall_document(_random(_RECALL, seed, distance, number), distance, facts) for number in range(count)]


def _random(*numbers: int) -> Random:
    """A generator of its own per stream, seed and document. Only `randrange` is used: it is the same everywhere."""
    seed = 0
    for number in numbers:
        seed = seed * 1_000_003 + number + 1
    return Random(seed)


def _document(random: Random, length: int) -> Document:
    """Facts become rarer and questions more frequent towards the end, so that distances are short and long."""
    if length < 2:
        raise WorkbookError(f"a document of {length} words", "two or more", "pass words=1024")
    words, pending, answers = [BEGIN], [], []
    names = _shuffled_names(random)
    while len(words) < length:
        drawn = random.randrange(5 * length)
        if drawn >= 3 * length:
            words += _filler(random)
        elif drawn >= 3 * len(words) and names:
            relation, name = names.pop()
            pending.append(_stated(random, relation, name, at=len(words)))
            words += pending[-1].words
        elif pending:
            fact = pending.pop(random.randrange(len(pending)))
            answers.append(StatedAnswer(len(words) + QUESTION_TO_ANSWER, fact.value_at))
            words += fact.question
    return Document(tuple(words[:length]), tuple(answer for answer in answers if answer.position < length))


def _recall_document(random: Random, distance: int, facts: int) -> Document:
    names = enumerate(_shuffled_names(random)[:facts])
    stated = [_stated(random, relation, name, at=1 + FACT_WORDS * number) for number, (relation, name) in names]
    words = [BEGIN] + [word for fact in stated for word in fact.words]
    filler: list[str] = []
    filler_words = distance - FACT_WORDS * facts
    while len(filler) < filler_words:
        filler += _filler(random)
    words += filler[len(filler) - filler_words :]  # cut at its beginning: the last sentence stays whole
    words += [word for fact in stated for word in fact.question]
    return Document(tuple(words), tuple(StatedAnswer(fact.value_at + distance, fact.value_at) for fact in stated))


@dataclass(frozen=True)
class _Fact:
    claim: tuple[str, ...]
    season: str
    value_at: int

    @property
    def words(self) -> tuple[str, ...]:
        return ("in", self.season, *self.claim)

    @property
    def question(self) -> tuple[str, ...]:
        return ("recall", "that", *self.claim)


def _stated(random: Random, relation: Relation, name: str, at: int) -> _Fact:
    claim = ("they", relation.verb, name, _pick(random, relation.values), ".")
    return _Fact(claim, _pick(random, SEASONS), at + VALUE_AT)


def _filler(random: Random) -> list[str]:
    """`the old fox ran slowly near the hill .`: what follows what is a habit of the language, learnt by weights."""
    adjective = random.randrange(len(ADJECTIVES))
    agent = _follower(random, adjective, AGENTS)
    action = _follower(random, agent, ACTIONS)
    manner = _follower(random, action, MANNERS)
    where = _follower(random, action, WHERE)
    scene = _follower(random, agent, SCENES)
    subject = ["the", ADJECTIVES[adjective], AGENTS[agent]]
    return [*subject, ACTIONS[action], MANNERS[manner], WHERE[where], "the", SCENES[scene], "."]


def _follower(random: Random, word: int, followers: Sequence[str]) -> int:
    """One of four followers of word number `word`, with odds 8:4:2:1."""
    drawn, favourite = random.randrange(sum(_ODDS)), 0
    while drawn >= _ODDS[favourite]:
        drawn -= _ODDS[favourite]
        favourite += 1
    return (7 * word + 11 * favourite) % len(followers)


def _pick(random: Random, words: Sequence[str]) -> str:
    return words[random.randrange(len(words))]


def _shuffled_names(random: Random) -> list[tuple[Relation, str]]:
    """Fisher-Yates by `randrange`: `Random.shuffle` promises no order across versions."""
    names = [(relation, name) for relation in RELATIONS for name in relation.names]
    for last in range(len(names) - 1, 0, -1):
        other = random.randrange(last + 1)
        names[last], names[other] = names[other], names[last]
    return names
