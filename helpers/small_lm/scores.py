"""Two scores of a causal language model: perplexity on held-out text, and recall of facts stated earlier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..catalog.by_transformers import with_cache
from ..catalog.errors import WorkbookError, require_whole
from .language import QUESTION_TO_ANSWER, TOKEN_ID, Document, held_out_documents, recall_documents

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import Cache, PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

DISTANCES = (50, 100, 250, 500, 1000)
ROWS = 4  # documents in one forward


@dataclass(frozen=True)
class DistanceRecall:
    """Questions at one distance, and how many got the right word."""

    distance: int
    questions: int
    right: int

    @property
    def rate(self) -> float:
        return self.right / self.questions


@dataclass(frozen=True)
class Recall:
    """Recall by distance in words; `total` counts all questions, `recall[1000]` is the rate at that distance.

    >>> print(Recall((DistanceRecall(100, 64, 64), DistanceRecall(1000, 64, 48))))
    recall 87.5 %  (100: 100.0 %, 1000: 75.0 %)
    """

    by_distance: tuple[DistanceRecall, ...]

    @property
    def total(self) -> float:
        return sum(asked.right for asked in self.by_distance) / self.questions

    @property
    def questions(self) -> int:
        return sum(asked.questions for asked in self.by_distance)

    def __getitem__(self, distance: int) -> float:
        rates = {asked.distance: asked.rate for asked in self.by_distance}
        if distance in rates:
            return rates[distance]
        what, do = f"no question was asked at distance {distance!r}", f"pass distances=({distance!r},) to recall()"
        raise WorkbookError(what, ", ".join(map(str, rates)), do)

    def __str__(self) -> str:
        each = ", ".join(f"{asked.distance}: {asked.rate:.1%}" for asked in self.by_distance)
        return f"recall {self.total:.1%}  ({each})".replace("%", " %")


def perplexity(
    model: PreTrainedModel, documents: Sequence[Document] | None = None, tokenizer: Tokenizer | None = None
) -> float:
    """exp of the mean loss per token, over `documents` (8 held-out ones of 1,024 words).

    `tokenizer` is for a model with another vocabulary than the small one's: perplexity is then per token of *its* text,
    which cannot be compared with the small model's. WorkbookError if the logits are not finite.
    """
    import torch
    from torch.nn import functional as F

    documents = held_out_documents() if documents is None else documents
    if not documents:
        raise WorkbookError("no documents", "one or more", "leave documents out for the held-out ones")
    loss_sum, tokens = 0.0, 0
    with torch.no_grad():
        for text in tokenized_texts(model, documents, tokenizer):
            logits = _logits(model, text.ids)[:, :-1].float()
            loss_sum += F.cross_entropy(logits.flatten(0, 1), text.ids[:, 1:].flatten(), reduction="sum").item()
            tokens += text.ids[:, 1:].numel()
    mean = loss_sum / tokens
    return math.exp(mean) if mean < 700 else math.inf  # where exp ends


def recall(
    model: PreTrainedModel,
    distances: Sequence[int] = DISTANCES,
    cache: Callable[[], Cache] | None = None,
    tokenizer: Tokenizer | None = None,
    documents: int = 4,
) -> Recall:
    """How often the most likely word after a name is the right one, its fact stated `distance` words before.

    Up to 16 questions in each of `documents` documents per distance. With `cache`, a callable that makes an empty
    Transformers cache, the facts are read through it in one prefill and the questions decoded from it one by one: a
    quantized, windowed or evicted cache is scored by what it has lost. Of a model with a `tokenizer` of its own the
    first token of the word is asked for.

    >>> print(recall(load().model, distances=(100, 1000)))
    recall 100.0 %  (100: 100.0 %, 1000: 100.0 %)
    """
    import torch

    by_distance = []
    with torch.no_grad():
        for distance in _checked(distances, documents):
            read = tokenized_texts(model, recall_documents(distance, documents), tokenizer)
            marks = [mark for text in read for mark in _right(model, text, cache)]
            by_distance.append(DistanceRecall(distance, len(marks), sum(marks)))
    return Recall(tuple(by_distance))


def _right(model: PreTrainedModel, text: TokenizedText, cache: Callable[[], Cache] | None) -> list[bool]:
    """Whether each answer of each row is the most likely token where it stands."""
    import torch

    if cache is None:
        logits = _logits(model, text.ids)[:, [position - 1 for position in text.answers]]
    else:
        logits = torch.stack(list(_decoded(model, text, cache())), dim=1)
    return (logits.argmax(-1) == text.ids[:, text.answers]).flatten().tolist()


def _decoded(model: PreTrainedModel, text: TokenizedText, cache: Cache) -> Iterator[Tensor]:
    """Logits [rows, vocabulary] before each answer, the questions read one after the other."""
    fed = 0
    for end in (text.questions, *text.answers):
        logits = _logits(model, text.ids[:, fed:end], cache, first=fed)
        if end in text.answers:
            yield logits[:, -1]
        fed = end


def _logits(model: PreTrainedModel, ids: Tensor, cache: Cache | None = None, first: int = 0) -> Tensor:
    """Positions are passed, so that they stay true where a cache has dropped tokens."""
    import torch

    positions = torch.arange(first, first + ids.shape[1], device=ids.device)[None]
    keep = with_cache(cache) | {"use_cache": cache is not None}
    logits = model(input_ids=ids, position_ids=positions, **keep).logits
    if not logits.isfinite().all():
        what, expected = "the model's logits are not all finite", "numbers; a broken model has no score"
        raise WorkbookError(what, expected, "look for the layer that overflows")
    return logits


def _checked(distances: Sequence[int], documents: int) -> Sequence[int]:
    if not isinstance(distances, (tuple, list, range)) or not distances:
        expected = "a sequence of numbers of words"
        raise WorkbookError(f"distances is {distances!r}", expected, "pass distances=(100, 1000)")
    require_whole("documents", documents, do="pass documents=4")
    return distances


@dataclass(frozen=True)
class TokenizedText:
    """Token ids [rows, tokens] of equally long documents; `word_starts` are the tokens at which words begin.

    `document` is the first of them: all rows have their answers at the same tokens.
    """

    ids: Tensor
    word_starts: Sequence[int]
    document: Document

    @property
    def answers(self) -> list[int]:
        """The token at which each answer begins."""
        return [self.word_starts[answer.position] for answer in self.document.answers]

    @property
    def questions(self) -> int:
        """The token at which the first question begins."""
        return self.word_starts[self.document.answers[0].position - QUESTION_TO_ANSWER]


def tokenized_texts(
    model: PreTrainedModel, documents: Sequence[Document], tokenizer: Tokenizer | None = None
) -> Iterator[TokenizedText]:
    """Four documents at once where a word is a token and they are equally long, else one by one.

    `tokenizer` is asked for where the model's vocabulary is not the small one's. WorkbookError without it, and for a
    text longer than the model's positions.
    """
    import torch

    own = _own_tokenizer(model, tokenizer)
    equally_long = len({len(document.words) for document in documents}) == 1
    rows = ROWS if own is None and equally_long else 1
    for first in range(0, len(documents), rows):
        some = documents[first : first + rows]
        if own is None:
            ids, word_starts = [document.ids for document in some], list(range(len(some[0].words)))
        else:
            ids, word_starts = _pieces(some[0], own)
        _check_length(model, len(ids[0]))
        yield TokenizedText(torch.tensor(ids, device=model.device), word_starts, some[0])


def _own_tokenizer(model: PreTrainedModel, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """None where a word is a token."""
    size = model.config.vocab_size
    if tokenizer is None and size != len(TOKEN_ID):
        what, do = f"a model with a vocabulary of {size} tokens", "pass tokenizer=, the second of what load() returns"
        raise WorkbookError(what, f"the small model's {len(TOKEN_ID)}, or the model's own tokenizer beside it", do)
    return None if tokenizer is None or tokenizer.get_vocab() == TOKEN_ID else tokenizer


def _pieces(document: Document, tokenizer: Tokenizer) -> tuple[list[list[int]], list[int]]:
    """Ids, and for every word the first token that holds a letter of it; <bos>, where there is one, is the model's."""
    encoded = tokenizer(document.text, return_offsets_mapping=True)
    ends = [end for _, end in encoded["offset_mapping"]]
    word_starts, token, letter = [0], 0, 0
    for word in document.words[1:]:
        while ends[token] <= letter:
            token += 1
        word_starts.append(token)
        letter += len(word) + 1
    return [encoded["input_ids"]], word_starts


def _check_length(model: PreTrainedModel, tokens: int) -> None:
    most = getattr(model.config, "max_position_embeddings", None) or tokens
    if tokens > most:
        do = "pass documents=held_out_documents(8, words=512), or shorter distances"
        raise WorkbookError(f"a text of {tokens} tokens", f"at most the model's {most}", do)
