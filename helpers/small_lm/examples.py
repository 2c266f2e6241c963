"""What the small model is trained on, step by step: batches of words to copy, then documents with facts."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from .language import TOKEN_ID, training_documents
from .words import BEGIN, SPECIAL, VOCABULARY

ANSWER_WEIGHT = 4.0


@dataclass(frozen=True)
class TrainingStage:
    """`steps` steps on `rows` rows of `words` words each."""

    task: str
    words: int
    rows: int
    steps: int


# A model that cannot copy does not learn to answer: trained on facts alone it stays near one answer in five.
STAGES = (
    TrainingStage("copying", words=128, rows=16, steps=450),
    TrainingStage("facts", words=128, rows=16, steps=150),
    TrainingStage("facts", words=256, rows=8, steps=150),
    TrainingStage("facts", words=512, rows=4, steps=250),
    TrainingStage("facts", words=1152, rows=2, steps=500),
)


@dataclass(frozen=True)
class ExampleBatch:
    """Token ids [rows, words], and what each counts for in the loss; `graded` marks repeats and answers."""

    ids: Tensor
    weights: Tensor
    graded: Tensor


def batch(stage: TrainingStage, step: int, seed: int) -> ExampleBatch:
    """The batch of a step: it depends on the three arguments alone, so a resumed run sees what it would have seen."""
    return _copying(stage, step, seed) if stage.task == "copying" else _facts(stage, step, seed)


def _facts(stage: TrainingStage, step: int, seed: int) -> ExampleBatch:
    """Each step has its own block of 16 document numbers."""
    documents = training_documents(stage.rows, stage.words, seed, first=16 * step)
    graded = torch.zeros(stage.rows, stage.words, dtype=torch.bool)
    for row, document in enumerate(documents):
        graded[row, [answer.position for answer in document.answers]] = True
    ids = torch.tensor([document.ids for document in documents])
    return ExampleBatch(ids, torch.where(graded, ANSWER_WEIGHT, 1.0), graded)


def _copying(stage: TrainingStage, step: int, seed: int) -> ExampleBatch:
    random = Random(seed * 1_000_003 + step)
    rows = [_copying_row(random, stage.words) for _ in range(stage.rows)]
    graded = torch.tensor([graded for _, graded in rows])
    return ExampleBatch(torch.tensor([ids for ids, _ in rows]), graded.float(), graded)


def _copying_row(random: Random, words: int) -> tuple[list[int], list[bool]]:
    """A segment of random words, repeated to the end of the row with random words between; only repeats count."""

    def drawn(count: int) -> list[int]:
        return [random.randrange(len(SPECIAL), len(VOCABULARY)) for _ in range(count)]

    segment = drawn(random.randrange(4, 33))
    ids, graded = [TOKEN_ID[BEGIN], *segment], [False] * (1 + len(segment))
    while len(ids) < words:
        gap = drawn(random.randrange(17))
        ids += [*gap, *segment]
        graded += [False] * (len(gap) + 1) + [True] * (len(segment) - 1)
    return ids[:words], graded[:words]
