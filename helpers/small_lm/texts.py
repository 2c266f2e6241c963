"""Documents as a model reads them: token ids in batches, and at which token each word begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..catalog.errors import WorkbookError
from .language import QUESTION_TO_ANSWER, TOKEN_ID, Document

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ROWS = 4  # documents in one forward


@dataclass(frozen=True)
class Text:
    """Token ids [rows, tokens] of equally long documents; word w of `document`, the first, begins at `places[w]`."""

    ids: Tensor
    places: Sequence[int]
    document: Document

    @property
    def answers(self) -> list[int]:
        """The token at which each answer begins."""
        return [self.places[answer.position] for answer in self.document.answers]

    @property
    def questions(self) -> int:
        """The token at which the first question begins."""
        return self.places[self.document.answers[0].position - QUESTION_TO_ANSWER]


def texts(
    model: PreTrainedModel, documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase | None = None
) -> Iterator[Text]:
    """Four documents at once where a word is a token and they are equally long, else one by one.

    `tokenizer` is asked for where the model's vocabulary is not the small one's. WorkbookError without it, and for a
    text longer than the model's positions.
    """
    import torch

    own = _reads_words(model, tokenizer)
    rows = ROWS if own and len({len(document.words) for document in documents}) == 1 else 1
    for first in range(0, len(documents), rows):
        some = documents[first : first + rows]
        if own:
            ids, places = [document.ids for document in some], range(len(some[0].words))
        else:
            ids, places = _tokenized(some[0], tokenizer)
        _check_length(model, len(ids[0]))
        yield Text(torch.tensor(ids, device=model.device), places, some[0])


def _reads_words(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> bool:
    size = model.config.vocab_size
    if tokenizer is None and size != len(TOKEN_ID):
        raise WorkbookError(
            f"a model with a vocabulary of {size} tokens",
            f"the small model's {len(TOKEN_ID)}, or the model's own tokenizer beside it",
            "pass tokenizer=, the second of what load() returns",
        )
    return tokenizer is None or tokenizer.get_vocab() == TOKEN_ID


def _tokenized(document: Document, tokenizer: PreTrainedTokenizerBase) -> tuple[list[list[int]], list[int]]:
    """Ids, and for every word the first token that holds a letter of it; <bos>, where there is one, is the model's."""
    encoded = tokenizer(document.text, return_offsets_mapping=True)
    ends = [end for _, end in encoded["offset_mapping"]]
    places, token, letter = [0], 0, 0
    for word in document.words[1:]:
        while ends[token] <= letter:
            token += 1
        places.append(token)
        letter += len(word) + 1
    return [encoded["input_ids"]], places


def _check_length(model: PreTrainedModel, tokens: int) -> None:
    most = getattr(model.config, "max_position_embeddings", None) or tokens
    if tokens > most:
        raise WorkbookError(
            f"a text of {tokens} tokens",
            f"at most the model's {most}",
            "pass documents=held_out_documents(8, words=512), or shorter distances",
        )
